"""Logs, metrics and traces: the names of all events and metrics, and how they are written."""
