"""Exports: the results of SQL as Parquet files, one fenced job per result.

service.py   the description of the service: start here
settings.py  its settings        policy.py, problems.py, names.py   its entries in the kernel's tables
mappings/    the nodes and edges of a graph, and the SQL of each, in versions
snapshots/   one run of a mapping version: its export jobs, their progress, its end
export/      one result: the kinds of jobs, and the ways to run them (direct, unload, ctas)
catalog/     the schema cache: what the engines' catalogs contain
lifecycle/   deletes what has expired
api/         routes              cli/      commands              client/   namespaces of the HTTP client
kinds.py     what a worker imports        loops.py, reconcile.py   periodic loops        migrations/   Alembic revisions
"""

from holdfast.services.exports.service import SERVICE as SERVICE
