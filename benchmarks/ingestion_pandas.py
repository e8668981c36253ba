"""The same file with pandas: `read_csv` and `to_sql` in chunks. Needs `pip install pandas sqlalchemy`."""

from __future__ import annotations

import time
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

from sqlalchemy import create_engine, make_url

CHUNK = 50_000


def compare(url: str, file: Path, ours: list[dict[str, Any]]) -> dict[str, Any]:
    """How many times as fast the rounds of ours were."""
    pandas = import_module("pandas")
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"))
    begun = time.monotonic()
    for number, chunk in enumerate(pandas.read_csv(file, chunksize=CHUNK)):
        chunk.to_sql("pandas_flights", engine, if_exists="append" if number else "replace", index=False)
    took = time.monotonic() - begun
    engine.dispose()
    rounds = [
        {"pandas_seconds": round(took, 2), "seconds": one["seconds"], "ratio": round(took / one["seconds"], 2)} for one in ours
    ]
    print(f"pandas: {took:.1f} s", flush=True)
    return {"value": median(one["ratio"] for one in rounds), "rounds": rounds}
