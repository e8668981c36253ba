"""Write Arrow batches to Parquet files within a memory limit: `schema.py` converts types, `files.py` writes."""
