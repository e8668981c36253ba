"""What remote workers and the HTTP API send each other."""
