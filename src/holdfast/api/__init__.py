"""The control plane over HTTP: who may do what, to which noun, and how it is answered. Start reading in `app.py`."""
