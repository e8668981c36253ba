"""The control plane over HTTP: routes, permissions and responses. Start reading in `app.py`."""
