"""Mappings: which nodes and edges a graph has, and the SQL of each, in versions that never change.

definitions.py  what a node and an edge are      rules.py  what is wrong with them, all at once
select.py       is it one SELECT, and no more?   dry_run.py  would the engine return these columns?
store.py        their rows                       diff.py  what changed between two versions
"""
