"""The runbook of the periodic loops has every required check and entry, and names only metrics and loops that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/runbooks/periodic-loops.md").read_text()
METRICS = set(re.findall(r"^\| `([a-z_]+)`", (ROOT / "docs/reference/metrics.md").read_text(), re.M))
EVENTS = set(re.findall(r"^\| `([a-z_]+)`", (ROOT / "docs/reference/events.md").read_text(), re.M))
LOOPS = set(re.findall(r"^\| `([a-z_]+)`", (ROOT / "docs/reference/loops.md").read_text(), re.M))


def part(start: str, end: str) -> str:
    """The text between two markers, or up to the end of the page."""
    return PAGE.partition(start)[2].partition(end)[0]


@pytest.mark.parametrize(
    ("start", "end", "required"),
    [
        (
            "**Daily**",
            "**Weekly**",
            ["/metrics", "background_job_execution_total[1h])) * background_job_interval_seconds", 'status="failed"', "1 %"],
        ),
        (
            "**Weekly**",
            "**Monthly**",
            [
                "holdfast_loop_items_total",
                "holdfast_unwanted_effects",
                "ttl_snapshots_deleted_total",
                "lifecycle_enforcement_lag",
            ],
        ),
        ("**Monthly**", "\n## ", ["background_job_execution_duration_seconds", "_JOB_INTERVAL_SECONDS"]),
    ],
    ids=["daily", "weekly", "monthly"],
)
def test_the_runbook_has_the_periodic_checks(start: str, end: str, required: list[str]) -> None:
    """V-12: reachable, rate and errors; trends, orphans and TTL; durations and intervals."""
    text = part(start, end)

    assert [item for item in required if item not in text] == []


@pytest.mark.parametrize(
    ("entry", "required"),
    [
        ("Loops do not run", ["scheduler_starting", "job_registered", "holdfast.loops"]),
        ("Orphans accumulate", ["holdfast.effects", "clean_tries"]),
        ("Expired resources are not deleted", ["lifecycle_termination_failed", "holdfast periodic run lifecycle"]),
        ("Exports are not finalised", ["export_reconciliation", "snapshot_finalization_failed"]),
        ("Loops are slow", ["p95 above 30 s", "loop_ticks_missed"]),
    ],
)
def test_the_runbook_has_the_five_troubleshooting_entries(entry: str, required: list[str]) -> None:
    """V-13: not running, orphans, lifecycle, finalisation, slow. `test_the_sql_of_every_page_runs` runs their queries."""
    text = part(f"## {entry}\n", "\n## ")

    assert [item for item in required if item not in text] == []


def test_the_runbook_names_only_metrics_events_and_loops_that_exist() -> None:
    named = set(re.findall(r"\b[a-z]+(?:_[a-z]+)*_(?:total|seconds|current|status|effects)\b", PAGE))
    logged = set(
        re.findall(r"(?:`|grep )([a-z]+(?:_[a-z]+)*_(?:failed|skipped|missed|duration|starting|registered|pruned))\b", PAGE)
    )
    run = set(re.findall(r"periodic run ([a-z_]+)", PAGE))

    assert named - METRICS == set()
    assert logged - EVENTS == set()
    assert run - LOOPS == set()
