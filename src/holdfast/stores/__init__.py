"""Stores for files: local folders, S3 and GCS. `port.py` has the interface, `opening.py` opens the store for an address."""
