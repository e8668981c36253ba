"""The child process that runs one algorithm: `python -m holdfast.services.graphs.server.algorithms.child FOLDER`.

The folder has `task.json` and `edges.arrow`; the child writes `result.arrow` and ends with 0, or prints why it failed to
standard error and ends with 1. Standard output has a JSON line now and then that says how far it is.

It is a process of its own so that a run can be stopped at any moment, and never holds the interpreter lock of the server. It
ends when its standard input is closed: it does not outlive the server.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.extras import lazily
from holdfast.services.graphs.server.algorithms.compute import Edges, compute
from holdfast.services.graphs.server.algorithms.progress import Lines, Tell

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
else:
    np, pa = lazily("numpy"), lazily("pyarrow")


class TaskWrong(Exception):
    """The algorithm cannot run on these edges."""


def run(folder: Path, tell: Tell) -> None:
    """Read the task, run it, write the result."""
    task = json.loads((folder / "task.json").read_text())
    answer = compute(task["algorithm"], read_edges(folder / "edges.arrow", task["nodes"]), task["parameters"], tell)
    table = pa.table(answer)
    part = folder / "result.part"
    with pa.OSFile(str(part), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    part.rename(folder / "result.arrow")


def read_edges(file: Path, nodes: int) -> Edges:
    """The edges in a file; `TaskWrong` if a weight is missing, negative or infinite."""
    with pa.memory_map(str(file)) as source:
        table = pa.ipc.open_file(source).read_all()
        weight = table.column("weight").to_numpy() if "weight" in table.column_names else None
        if weight is not None and not ((weight >= 0) & np.isfinite(weight)).all():
            raise TaskWrong("an edge has a negative or infinite weight, or none; weights must be finite numbers from 0 on")
        ends = [table.column(name).to_numpy().astype(np.int64) for name in ("source", "target")]
        return Edges(nodes, ends[0], ends[1], None if weight is None else weight.astype(float))


def _end_with_the_server() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def main() -> None:
    """Run the task of the folder that the first argument names."""
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    try:
        run(Path(sys.argv[1]), Lines(sys.stdout).tell)
    except Exception as error:  # foreign code: the server shows the message
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)  # the thread that reads standard input would delay a normal end


if __name__ == "__main__":
    main()
