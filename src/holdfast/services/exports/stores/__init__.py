"""Where files go: local folders, S3 and GCS, behind `port.py`; `opening.py` finds the right one for an address."""
