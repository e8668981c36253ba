"""`python -m holdfast.services.graphs.server`: the same program as `holdfast graph-server`."""

from __future__ import annotations

from holdfast.services.graphs.server.program import main

if __name__ == "__main__":
    main()
