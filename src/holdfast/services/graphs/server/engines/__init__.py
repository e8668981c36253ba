"""Adapters of embedded graph databases behind one interface.

port.py     the interface        family.py   ladybug, kuzu and ryugraph, which have one Python API
select.py   the adapter for a name
"""
