"""Policies: which tables are maintained when, and by which actions."""
