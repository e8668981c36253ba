"""The benchmark marks the worker's first claim from outside; a change of the worker must not make it measure nothing."""

from __future__ import annotations

from pathlib import Path

from benchmarks.board import Board
from benchmarks.peers import versions
from benchmarks.peers.holdfast import PEER

from holdfast import distribution


async def test_benchmark_worker_reports_its_start(database: str, tmp_path: Path) -> None:
    made = Board.create(tmp_path / "board")
    board = Board.join(made.path)

    async with PEER.client(database) as client, PEER.worker(database, board) as worker:
        for number in range(3):
            await client.enqueue_one(number)
        await worker.run(until_empty=True)

    assert made.first_claim() is not None
    assert made.handled() == 3


def test_benchmark_report_names_the_version() -> None:
    assert versions(PEER)[distribution.NAME] == distribution.VERSION
