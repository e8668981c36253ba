"""The health score: a pure function of measured figures, with its parts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.services.maintenance.engines.interface import HealthInputs, TableStats
from holdfast.services.maintenance.tables.health import health_of, inputs_from, label_of
from maintenance_factories import HEALTHY, INPUTS, MIB

EMPTY = replace(HEALTHY, stats=TableStats(None, 0, 0, 0, 0, 0, 0))


def sized(**figures: int) -> TableStats:
    return replace(INPUTS.stats, **figures)


@pytest.mark.parametrize(
    ("inputs", "score", "reasons"),
    [
        (EMPTY, 100, []),
        (HEALTHY, 100, []),
        (INPUTS, 55, ["small files"]),
        (replace(INPUTS, stats=sized(data_files=6), small_files=6, small_bytes=MIB), 81, ["small files"]),
        (replace(INPUTS, stats=sized(data_files=2), small_files=2, small_bytes=MIB), 98, ["small files"]),
        (replace(HEALTHY, stats=replace(HEALTHY.stats, data_files=10), files_with_deletes=5), 75, ["delete files"]),
        (replace(HEALTHY, snapshots_over_5_days=50), 80, ["snapshots"]),
        (replace(HEALTHY, snapshots_over_5_days=5000), 80, ["snapshots"]),
        (replace(HEALTHY, stats=replace(HEALTHY.stats, manifests=100)), 90, ["manifests"]),
        (replace(INPUTS, small_partitions=1000, partitions=1000), 100, []),
    ],
    ids=["empty", "one file", "1,000 small files", "six small files", "two small files", "half has deletes", "50 old snapshots",
         "no more than its weight", "many manifests", "one small file per partition cannot be merged"],
)  # fmt: skip
def test_score_of(inputs: HealthInputs, score: int, reasons: list[str]):
    found = health_of(inputs)

    assert (found.score, found.reasons) == (score, reasons)
    assert 100 - sum(part.lost for part in found.parts) == found.score


counts = st.integers(0, 10_000)


@given(
    files=counts, small=counts, deletes=counts, manifests=counts, snapshots=counts, partitions=st.integers(1, 100), size=counts
)
def test_score_is_between_0_and_100_and_every_lost_point_has_an_action(
    files: int, small: int, deletes: int, manifests: int, snapshots: int, partitions: int, size: int
):
    stats = TableStats(1, files, size * files, files, deletes, manifests, snapshots + 1)
    inputs = replace(
        INPUTS, stats=stats, small_files=min(small, files), small_bytes=size * min(small, files), small_partitions=partitions,
        files_with_deletes=min(deletes, files), snapshots_over_5_days=snapshots,
    )  # fmt: skip

    found = health_of(inputs)

    assert 0 <= found.score <= 100
    assert all((part.lost > 0) == (part.action is not None) for part in found.parts)
    assert all(part.lost <= part.weight for part in found.parts)


def test_inputs_come_back_from_the_cache_as_they_were():
    assert inputs_from(INPUTS.as_json()) == INPUTS
    assert inputs_from({**EMPTY.as_json(), "of_a_newer_version": 1}) == EMPTY


def test_labels():
    assert [label_of(score) for score in (None, 0, 49, 50, 79, 80, 100)] == [
        *("unknown", "poor", "poor", "fair", "fair", "good", "good")
    ]
