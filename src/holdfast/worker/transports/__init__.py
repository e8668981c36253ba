"""How a worker reaches the kernel: directly over Postgres, or over HTTP."""
