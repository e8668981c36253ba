"""Send Cypher to an instance and print its rows. Used by `holdfast graph query` and `holdfast graph shell`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from holdfast.errors import UsageError
from holdfast.extras import loaded
from holdfast.toolkit.cli.output import Column, Format, Kind, NoClock, Output, Row, Shape
from holdfast.toolkit.cli.verb import Session

ARROW: Final = "application/vnd.apache.arrow.stream"
SPARE_SECONDS: Final = 30.0
NUMBERS: Final = frozenset({"INT64", "INT32", "INT16", "INT8", "DOUBLE", "FLOAT", "UINT64"})
SUFFIXES: Final = (".parquet", ".csv", ".json", ".arrow")


class GraphRequests:
    """Requests to the graph server of one instance."""

    def __init__(self, session: Session, instance_id: int, *, seconds: float, max_rows: int | None) -> None:
        self._session, self._path = session, f"/api/instances/{instance_id}/graph"
        self.seconds, self.max_rows = seconds, max_rows

    def rows(self, cypher: str, parameters: Mapping[str, Any], accept: str) -> bytes:
        """The rows of a query in this format."""
        body = {"query": cypher, "parameters": dict(parameters), "timeout_ms": round(self.seconds * 1000)}
        if self.max_rows is not None:
            body["max_rows"] = self.max_rows
        return self._session.transport.content(
            "POST", f"{self._path}/query", body=body, accept=accept, timeout=self.seconds + SPARE_SECONDS
        )

    def schema(self) -> dict[str, Any]:
        """The tables of the graph."""
        content = self._session.transport.content(
            "GET", f"{self._path}/schema", body=None, accept="application/json", timeout=SPARE_SECONDS
        )
        found: dict[str, Any] = json.loads(content)
        return found


def print_rows(out: Output, requests: GraphRequests, cypher: str, parameters: Mapping[str, Any]) -> None:
    """Run a query and print its rows in the format of the output."""
    if out.format is Format.CSV:
        sys.stdout.write(requests.rows(cypher, parameters, "text/csv").decode())
        sys.stdout.flush()
        return
    found = json.loads(requests.rows(cypher, parameters, "application/json"))
    shape = shape_of(found["columns"], found["column_types"])
    out.rows(shape, [dict(enumerate_row(found["columns"], row)) for row in found["rows"]], NoClock())
    if out.for_people:
        more = "; more rows exist, raise --max-rows" if found["truncated"] else ""
        out.say(f"{found['row_count']:,} rows in {found['execution_time_ms']:,.0f} ms{more}", "dim")


def shape_of(columns: list[str], types: list[str]) -> Shape:
    """How rows of these columns are printed. Pure."""
    made = [
        Column(name, _reader(name), Kind.NUMBER if kind in NUMBERS else Kind.TEXT)
        for name, kind in zip(columns, types, strict=True)
    ]
    return Shape("row", made, key=columns[0] if columns else "", empty="No rows.")


def _reader(name: str) -> Any:
    def read(row: Row) -> Any:
        value = row[name]
        return value if not isinstance(value, (dict, list)) else json.dumps(value, ensure_ascii=False)

    return read


def enumerate_row(columns: list[str], row: list[Any]) -> list[tuple[str, Any]]:
    """A row with the names of its columns. Pure."""
    return list(zip(columns, row, strict=True))


def write_rows(requests: GraphRequests, cypher: str, parameters: Mapping[str, Any], to: Path) -> str:
    """Run a query and write its rows to a file, whose suffix is the format; a sentence that says so."""
    if to.suffix not in SUFFIXES:
        raise UsageError(f"--to {to} must end with one of: {', '.join(SUFFIXES)}")
    if to.suffix == ".csv":
        content = requests.rows(cypher, parameters, "text/csv")
        to.write_bytes(content)
        return f"Wrote {len(content):,} bytes to {to}."
    pa = loaded("pyarrow", extra="graphs")
    content = requests.rows(cypher, parameters, ARROW)
    with pa.ipc.open_stream(pa.py_buffer(content)) as reader:
        table = reader.read_all()
    if to.suffix == ".parquet":
        loaded("pyarrow.parquet", extra="graphs").write_table(table, str(to))
    elif to.suffix == ".arrow":
        to.write_bytes(content)
    else:
        to.write_text("".join(f"{json.dumps(row, default=str, ensure_ascii=False)}\n" for row in table.to_pylist()))
    return f"Wrote {table.num_rows:,} rows to {to}."


def parameters_of(words: list[str]) -> dict[str, Any]:
    """Parameters from `name=text` and `name:=json`. Pure."""
    found: dict[str, Any] = {}
    for word in words:
        name, sign, value = word.partition("=")
        plain = name.removesuffix(":")
        if not sign or not plain.isidentifier():
            raise UsageError(f"--param {word!r} must be name=text or name:=json")
        try:
            found[plain] = json.loads(value) if name.endswith(":") else value
        except ValueError as error:
            raise UsageError(f"--param {word!r} is not valid JSON ({error}); for text write {plain}={value}") from None
    return found
