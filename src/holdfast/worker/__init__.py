"""One process that runs jobs: kinds (what can run), execute (one job, top to bottom), loop, heartbeat."""
