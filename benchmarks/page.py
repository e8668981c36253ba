"""Write the measured figures from results.json into docs/explanation/performance.md: `python -m benchmarks.page`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "performance.md"
RESULTS = ROOT / "benchmarks" / "results.json"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
WHAT = {
    "drain_vs_pgqueuer": "drain of 20,000 no-op jobs, one worker process, to pgqueuer tuned",
    "drain_vs_raw": "the same, to hand-written batch SQL",
    "drain_two_vs_one": "two worker processes to one",
    "enqueue_bulk_vs_raw": "bulk enqueue of 20,000, to a hand-written bulk insert",
    "enqueue_one_vs_best_peer": "enqueue one at a time, to the fastest peer",
    "chain_vs_raw": "a step of a chain, to hand-written enqueue, notify, claim and finish",
    "pickup_p50_vs_best_peer": "pick-up on an idle worker, p50, to the best (hand-written SQL)",
    "drain_1m_vs_20k": "drain with 1,000,000 pending, to 20,000",
    "drain_blocked_vs_20k": "drain beside 100,000 blocked behind one lock, to none",
    "idle_statements_per_second": "statements a second of an idle worker beyond its heartbeat",
    "api_p95_1m_vs_empty": "p95 of list, show and counts over HTTP at 1,000,000 jobs, to an empty table (the worst of them)",
    "export_trino_vs_official": "rows a second from Trino's protocol into Arrow, to the official client feeding PyArrow "
    "(the worst of wide and narrow, plain and spooled)",
    "submitted_500_look_late_p95_seconds": "500 exports at an engine, one worker, two lanes: seconds a look is late, p95",
    "submitted_500_worker_cpu_share": "the same: processor time of the worker, of one core",
    "export_text_peak_vs_copy": "direct export of texts of 20 kB: the most memory of its process, to DuckDB's own COPY",
    "export_duckdb_vs_copy": "direct export of a DuckDB table to Parquet, to DuckDB's own COPY (the worse of wide and narrow)",
    "console_1m_vs_empty": "server time of a console page at 1,000,000 jobs, to an empty table (the worst page)",
    "graph_load_vs_copy": "load of 200,000 nodes and 1,000,000 edges by the graph server, to the engine's own COPY",
    "graph_arrow_vs_engine": "1,000,000 rows over HTTP as Arrow, to the engine in the same process",
    "graph_query_50_vs_1_p95": "p95 of a small query with 50 clients, to one client",
    "graph_loops_10k_vs_1k_time": "a pass of a loop over 10,000 instances, to 1,000 (the worst loop)",
    "graph_loops_10k_vs_1k_memory": "the same: memory of the pass",
    "graph_ready_seconds": "seconds from POST to `running` of a small graph on the local runtime",
    "compact_vs_spark": "compaction of 1,000 files with 10,000,000 rows, to a local Spark with its start",
    "compact_peak_mb": "the same: the most memory of the process, in MB",
    "expire_vs_spark": "expiry of snapshots, to a local Spark",
    "manifests_vs_spark": "rewrite of manifests, to a local Spark",
    "orphans_vs_spark": "removal of orphan files, to a local Spark",
    "compact_10k_vs_1k_files": "compaction of 10,000 files, to 1,000 files",
    "ingest_vs_copy": "validated ingestion of 1,000,000 rows, to COPY into a table of the same shape",
    "ingest_vs_pandas": "the same, to pandas `read_csv` and `to_sql`",
    "ingest_10m_vs_1m_memory": "the most memory of an ingestion of 10,000,000 rows, to 1,000,000",
    "ingest_chain_step_ms": "a step of an ingestion's pipeline in a web process, p95 in ms",
    "recalc_vs_sql": "recalculation of 1,000,000 entries, to one hand-written UPDATE … FROM",
    "web_p95_isolated_vs_idle": "p95 of a web application while it ingests in an isolated process, to idle",
    "web_p95_worker_vs_idle": "the same with a separate worker on the same two cores",
}


def table(results: dict[str, Any]) -> str:
    machine = results["machine"]
    lines = [
        f"Machine: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']:.0f} GB; Python {machine['python']}, "
        f"PostgreSQL {machine['postgres']} (embedded), fsync and synchronous_commit on.",
        "",
        "| figure | what | measured | goal | |",
        "|---|---|---|---|---|",
    ]
    for name, figure in results["figures"].items():
        value, goal, lower = figure["value"], figure["goal"], figure.get("better") == "lower"
        met = value is not None and (value <= goal if lower else value >= goal)
        said = "–" if value is None else f"{value:.2f}"
        sign, verdict = ("≤" if lower else "≥"), ("met" if met else "missed")
        lines.append(f"| `{name}` | {WHAT[name]} | {said} | {sign} {goal:g} | {verdict} |")
    return "\n".join(lines)


def main() -> None:
    page = PAGE.read_text()
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{table(json.loads(RESULTS.read_text()))}\n{END}{after}")


if __name__ == "__main__":
    main()
