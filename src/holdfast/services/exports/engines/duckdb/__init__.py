"""DuckDB in this process: files below allowed folders and attached databases, and no way out."""
