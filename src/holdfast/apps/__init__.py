"""The programs: up (all in one), worker, migrate, and the demo that `up` runs. Start reading here."""
