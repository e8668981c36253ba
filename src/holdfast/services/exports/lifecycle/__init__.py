"""The loop `lifecycle`: delete mappings and snapshots whose TTL or inactivity timeout has passed.

loop.py    one pass: observe, decide, act           decide.py                  which ones (pure)
delete.py  delete one, with its files               snapshots.py, mappings.py  their rows
"""
