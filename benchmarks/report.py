"""The tables that people read and the JSON that programs read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.figures import Figure
from benchmarks.peers import Peer, versions
from benchmarks.scene import Samples

# metric, heading, decimals
TABLES: dict[str, list[tuple[str, str, int]]] = {
    "Drain no-op jobs (jobs a second; the worker's CPU in µs a job)": [
        ("drain_one", "one worker", 0),
        ("drain_two", "two workers", 0),
        ("drain_one_cpu_us", "CPU, one", 0),
        ("drain_two_cpu_us", "CPU, two", 0),
    ],
    "Enqueue (jobs a second)": [
        ("enqueue_bulk", "best bulk call", 0),
        ("enqueue_copy", "raw COPY", 0),
        ("enqueue_one", "one at a time, 4 tasks", 0),
    ],
    "Pick-up on an idle worker (ms)": [
        ("pickup_p50_ms", "p50 from commit", 2),
        ("pickup_p95_ms", "p95 from commit", 2),
        ("pickup_from_call_p50_ms", "p50 from the call", 2),
        ("pickup_from_call_p95_ms", "p95 from the call", 2),
    ],
    "Chain (ms a step)": [
        ("chain_mean_ms", "mean", 2),
        ("chain_p50_ms", "p50", 2),
        ("chain_steps", "steps made", 0),
    ],
    "Depth (jobs a second)": [
        ("drain_from_small", "small table", 0),
        ("drain_from_deep", "deep table", 0),
        ("drain_unblocked", "nothing blocked", 0),
        ("drain_beside_blocked", "crowd behind a lock", 0),
    ],
    "Idle worker (statements a second)": [
        ("idle_statements_per_second", "all", 2),
        ("idle_beyond_heartbeat_per_second", "beyond the heartbeat", 2),
    ],
    "While a transaction holds xmin (jobs a second)": [
        ("xmin_first_rate", "first seconds", 0),
        ("xmin_last_rate", "last seconds", 0),
    ],
}


def print_tables(console: Console, peers: Sequence[Peer], samples: Samples) -> None:
    """One table per workload that was run: medians, with the span of the rounds behind them."""
    for title, columns in TABLES.items():
        shown = [column for column in columns if column[0] in samples.values]
        if not shown:
            continue
        table = Table(title=title, title_justify="left")
        table.add_column("peer")
        for _, heading, _ in shown:
            table.add_column(heading, justify="right")
        for peer in peers:
            table.add_row(peer.name, *(cell(samples, metric, peer, decimals) for metric, _, decimals in shown))
        console.print(table)


def cell(samples: Samples, metric: str, peer: Peer, decimals: int) -> str:
    """A median, and the span of its rounds."""
    numbers = samples.values[metric].get(peer.name)
    if not numbers:
        return "–"
    middle = f"{median(numbers):,.{decimals}f}"
    if len(numbers) == 1:
        return middle
    return f"{middle} [dim]({min(numbers):,.{decimals}f} to {max(numbers):,.{decimals}f})[/]"


def print_figures(console: Console, figures: Sequence[Figure]) -> None:
    """The promises and whether they hold."""
    table = Table(title="Holdfast against its goals (medians of the rounds' ratios)", title_justify="left")
    for heading in ("figure", "what", "against", "value", "goal", ""):
        table.add_column(heading, justify="right" if heading in ("value", "goal") else "left")
    for figure in figures:
        value = "–" if figure.value is None else f"{figure.value:.2f}"
        sign = "≥" if figure.better == "higher" else "≤"
        verdict = {None: "[dim]not measured[/]", True: "[green]met[/]", False: "[red]missed[/]"}[figure.is_met]
        table.add_row(
            figure.name, figure.meaning, figure.against or "", value, f"{sign} {figure.goal:g}", verdict
        )  # fmt: skip
    console.print(table)


def write_results(
    path: Path, *, machine: Mapping[str, Any], peers: Sequence[Peer], figures: Sequence[Figure], samples: Samples
) -> None:
    """Everything, for programs and for later comparison."""
    raw = {
        metric: {
            peer: {"median": median(numbers), "rounds": numbers} for peer, numbers in sorted(rows.items())
        }
        for metric, rows in samples.values.items()
    }  # fmt: skip
    results = {
        "machine": machine,
        "peers": {peer.name: {"settings": peer.settings, "versions": versions(peer)} for peer in peers},
        "figures": {figure.name: figure_row(figure) for figure in figures} | _measured_elsewhere(path, figures),
        "raw": raw,
        "notes": samples.notes,
    }
    path.write_text(json.dumps(results, indent=2, ensure_ascii=False, default=dict) + "\n")


def _measured_elsewhere(path: Path, figures: Sequence[Figure]) -> dict[str, Any]:
    """The figures of other programs, such as `benchmarks.control_plane`, which this run must not forget."""
    names = {figure.name for figure in figures}
    before = json.loads(path.read_text())["figures"] if path.exists() else {}
    return {name: row for name, row in before.items() if name not in names}


def figure_row(figure: Figure) -> dict[str, Any]:
    """One figure without its name, which is its key."""
    row = {**asdict(figure), "met": figure.is_met}
    del row["name"]
    return row
