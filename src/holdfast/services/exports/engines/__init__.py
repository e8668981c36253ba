"""Who answers SQL. `port.py` says what an engine is; each folder beside it is one."""
