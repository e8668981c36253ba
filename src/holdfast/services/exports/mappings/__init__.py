"""Mappings: the nodes and edges of a graph and the SQL of each, in immutable versions.

definitions.py  nodes, edges and properties        rules.py    validation without an engine
store.py        the rows of mappings and versions  dry_run.py  validation by the parser and the engine
diff.py         differences between two versions
"""
