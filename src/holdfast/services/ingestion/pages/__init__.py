"""Console pages of ingestion: the overview, one job, and the upload of a file."""
