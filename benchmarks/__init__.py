"""Holdfast beside its peers and beside hand-written SQL, on one Postgres in one run. How to read it: `README.md`."""
