"""One result of SQL as Parquet files: the job's kinds, and its ways to run."""
