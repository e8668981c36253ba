"""The graph server: one process per instance that loads one snapshot and answers Cypher queries over HTTP.

program.py    starts it: `holdfast graph-server`, `python -m holdfast.services.graphs.server`
settings.py   its environment variables
loading.py    the load, table by table: files.py brings the files, columns.py has the types, schema.py the statements
status.py     phase, progress and error, as `/status` shows them
engines/      adapters of the embedded databases: ladybug, kuzu, ryugraph
graph.py      the open database, its sessions, and its replacement by a changed copy
statement.py  which Cypher may run        query.py    one query       answers.py   JSON, CSV and Arrow
algorithms/   PageRank and others, in a child process
reports.py    status and activity, sent to the control plane
app.py        the routes                  refusals.py  errors as HTTP answers

It has no access to Holdfast's database. It knows its plan, its secret and, if there is one, the address for its reports.
"""
