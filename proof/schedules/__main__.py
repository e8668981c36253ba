"""`python -m proof.schedules`: see `run.py`."""

from proof.schedules.run import main

if __name__ == "__main__":  # a spawned process imports this module again
    main()
