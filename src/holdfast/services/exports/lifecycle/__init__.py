"""The loop `lifecycle`: mappings and snapshots whose TTL or inactivity timeout is over are deleted.

loop.py    one pass: observe, decide, act           decide.py                  which ones (pure)
delete.py  one of them, with its files, step by step  snapshots.py, mappings.py  their rows
"""
