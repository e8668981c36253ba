"""The kernel: the data types of jobs, and one file for each operation on a job. Start with `states.py`."""
