"""What people see of ingestion: lists of jobs, statistics, and what is due. Only reads."""
