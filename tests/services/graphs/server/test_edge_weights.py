"""Weights of edges are checked before an algorithm begins: with a wrong one its result would be NaN."""

from __future__ import annotations

import math
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.services.graphs.server.algorithms.child import TaskWrong, read_edges


def edges_with(folder: Path, weight: float | None) -> Path:
    """A file with two edges, of which the second has this weight."""
    table = pa.table({"source": [0, 1], "target": [1, 0], "weight": pa.array([1.0, weight], pa.float64())})
    with pa.OSFile(str(folder / "edges.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return folder / "edges.arrow"


@pytest.mark.parametrize("weight", [-1.0, math.inf, -math.inf, math.nan, None])
def test_weight_that_is_missing_negative_or_infinite_is_refused(tmp_path: Path, weight: float | None) -> None:
    with pytest.raises(TaskWrong, match="weights must be finite numbers from 0 on"):
        read_edges(edges_with(tmp_path, weight), 2)


@pytest.mark.parametrize("weight", [0.0, 2.5])
def test_finite_weight_from_zero_on_is_read(tmp_path: Path, weight: float) -> None:
    read = read_edges(edges_with(tmp_path, weight), 2)

    assert read.weight is not None
    assert read.weight.tolist() == [1.0, weight]
