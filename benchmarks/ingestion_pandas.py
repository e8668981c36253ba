"""The same file with pandas, as its manual has it: `read_csv` and `to_sql` with their defaults. Needs `pip install pandas
sqlalchemy`.

The defaults insert row by row, in one transaction: SQLAlchemy calls `executemany` of psycopg, which sends one prepared
statement for each row without waiting for its answer. The index of the frame becomes a column with an index. pandas checks no
values and no keys, and creates a table of its own. `in_chunks` is the same with bounded memory and without that column, for
comparison.
"""

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
    took, chunked = load(url, file), load_in_chunks(url, file)
    print(f"pandas: {took:.1f} s, in chunks without an index {chunked:.1f} s", flush=True)
    rounds = [
        {
            "pandas_seconds": round(took, 2),
            "in_chunks_seconds": round(chunked, 2),
            "seconds": one["seconds"],
            "ratio": round(took / one["seconds"], 2),
            "in_chunks_ratio": round(chunked / one["seconds"], 2),
        }
        for one in ours
    ]
    return {"value": median(one["ratio"] for one in rounds), "rounds": rounds}


def load(url: str, file: Path) -> float:
    """Seconds with the defaults."""
    pandas = import_module("pandas")
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"))
    begun = time.monotonic()
    pandas.read_csv(file).to_sql("pandas_flights", engine)
    took = time.monotonic() - begun
    engine.dispose()
    return took


def load_in_chunks(url: str, file: Path) -> float:
    """Seconds in bounded memory, with the columns of the file only."""
    pandas = import_module("pandas")
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"))
    begun = time.monotonic()
    for chunk in pandas.read_csv(file, chunksize=CHUNK):
        chunk.to_sql("pandas_flights_in_chunks", engine, if_exists="append", index=False)
    took = time.monotonic() - begun
    engine.dispose()
    return took
