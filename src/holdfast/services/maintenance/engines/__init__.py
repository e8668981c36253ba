"""Maintenance engines: who rewrites, expires and removes. `interface.py` has what the rest of the service knows of them.

actions.py       the actions, their parameters and bounds    interface.py   measurements, results, the fence, the engine
crash_points.py  where a test can kill an engine             catalogs.py    PyIceberg catalogs from configuration
pyiceberg/       the embedded engine, without a JVM          trino.py, spark.py  remote engines
"""
