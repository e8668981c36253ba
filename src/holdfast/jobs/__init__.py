"""The kernel: what a job is, and one file per thing that can happen to it. `states.py` is the place to start."""
