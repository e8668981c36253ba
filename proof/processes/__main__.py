"""`python -m proof.processes`: see `run.py`."""

from proof.processes.run import main

if __name__ == "__main__":  # a spawned process imports this module again
    main()
