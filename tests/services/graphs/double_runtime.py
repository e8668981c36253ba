"""What a worker process of a test imports: the kinds of graphs, with a runtime that starts quick graph servers."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from holdfast.services.graphs.kinds import KINDS as KINDS
from holdfast.services.graphs.runtimes.local import runtime

DOUBLE = Path(__file__).with_name("graph_double.py")
runtime.LocalRuntime.__init__.__kwdefaults__["program"] = (  # type: ignore[index]
    *(sys.executable, "-I", "-S", str(DOUBLE)),
    os.environ["GRAPH_DOUBLE_SAYS"],
)
