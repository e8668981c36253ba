"""One maintenance job: its request, its lock, its handler, a result for each action, and the history of a table."""
