"""The keeper process, its executors, and what they say to each other."""
