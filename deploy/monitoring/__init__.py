"""Dashboards and the Prometheus operator's objects, generated from code: `python deploy/generate_monitoring.py`."""
