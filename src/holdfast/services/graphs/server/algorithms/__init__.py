"""Graph algorithms on Arrow arrays, in a child process.

catalog.py   which algorithms there are, and their parameters      extract.py   a part of the graph as arrays
compute.py   the algorithms                                        child.py     the child process that runs one
runs.py      one run at a time: start, cancel, result              writing.py   a result as a property of nodes
"""
