"""Snapshots: runs of a mapping version, with one export job per node and edge.

states.py  states and transitions         create.py  create a snapshot with its jobs, in one transaction
read.py    state and progress             change.py  cancel, retry, delete, set the lifecycle
settle.py  the safety net behind the trigger that ends snapshots (docs/decisions/0013)
"""
