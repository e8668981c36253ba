"""Graphs: graph databases that are loaded from snapshots, queried, and removed automatically.

service.py   the description of the service: start here
settings.py  its settings        policy.py, problems.py, names.py, limits.py   its entries in the kernel's tables
states.py    the states of an instance, and which follow which
instances/   one file per operation on instances: create, read, change, delete, and the jobs that start, resize and remove
runtimes/    where graph servers run: a child process (local) or a pod (kubernetes)
plan.py      what a graph server loads     server/   the graph server itself
loops/       reconciliation, lifecycle, orchestration, resource monitor
api/         routes              cli/      commands              client/   the namespace of the HTTP client
kinds.py     what a worker imports        migrations/   Alembic revisions
"""

from holdfast.services.graphs.service import SERVICE as SERVICE
