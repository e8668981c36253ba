"""Snapshots: one run of a mapping version. Its export jobs, their progress, and its end.

states.py  where a snapshot can be        create.py  a snapshot with all of its jobs, in one transaction
read.py    how far it is                  steer.py   cancel, retry, delete
settle.py  the safety net behind the trigger that ends it (docs/decisions/0013)
"""
