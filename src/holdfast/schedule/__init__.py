"""Periodic loops: a clock in every process, and a row per loop that says who runs which tick."""
