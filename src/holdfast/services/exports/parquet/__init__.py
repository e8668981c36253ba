"""Arrow batches into Parquet files under a memory bound: `schema.py` says what becomes of types, `files.py` writes."""
