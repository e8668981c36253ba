"""The loop `lifecycle`: mappings and snapshots whose TTL or inactivity timeout is over are deleted.

decide.py     which ones (pure)                     loop.py      one pass: observe, decide, act
snapshots.py  mark, remove the files, remove the row mappings.py  remove the row, if no snapshot needs it
"""
