"""Where graph servers run. `interface.py` is the contract; `local/` and `kubernetes/` fulfil it; `select.py` chooses."""
