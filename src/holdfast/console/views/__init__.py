"""The console's own read-only queries. Each reads a bounded number of rows, whatever the size of the tables."""
