"""Loading: from staging to the tables of the service, and whether to load at all.

accept.py      error policies and results (pure)     entries.py   data entries
factors.py     factors and stale factors             references.py   reference lists, units, years
scopes.py      what is due for each type and year    emissions.py    recalculation and aggregation
"""
