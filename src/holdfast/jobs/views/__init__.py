"""Read-only queries of jobs: nothing here changes a row."""
