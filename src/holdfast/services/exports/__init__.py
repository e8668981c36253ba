"""Exports: the results of SQL as Parquet files, one fenced job per result.

mappings/    which nodes and edges a graph has, and the SQL of each, in versions
snapshots/   one run of a mapping version: its export jobs, their progress, its end
export/      one result: the job's kind, and its ways to run (direct, unload, ctas)
engines/     who answers SQL, behind `engines/port.py`: DuckDB in this process, Trino over HTTP
parquet/     Arrow batches into files under a memory bound
stores/      where files go: local, S3, GCS; write-once paths under one prefix
catalog/     the schema cache: what the engine's catalogs hold
api/         its routes        reconcile.py  its loop        kinds.py  what a worker imports
"""
