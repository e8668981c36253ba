"""`python -m proof.mutants`: see `run.py`."""

from proof.mutants.run import main

if __name__ == "__main__":  # a spawned process imports this module again
    main()
