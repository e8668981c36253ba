"""The rows of a query, as an Arrow table and whatever can be made of one.

Polars, pandas and NetworkX are imported when they are asked for. Holdfast does not install them.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import UsageError
from holdfast.extras import loaded

if TYPE_CHECKING:
    import pyarrow as pa

SHOWN_ROWS: Final = 50
LONGEST_CELL: Final = 120
TABLE: Final = "border-collapse:collapse;font:13px/1.5 system-ui,sans-serif"
CELL: Final = "padding:.15rem .6rem;border:1px solid color-mix(in srgb,currentColor 18%,transparent)"


class QueryResult:
    """The rows of a query. Iterating gives a dict for each row."""

    def __init__(self, table: pa.Table, *, truncated: bool = False) -> None:
        self._table, self.truncated = table, truncated

    @classmethod
    def of_stream(cls, content: bytes) -> QueryResult:
        """The rows in an Arrow stream."""
        pa = loaded("pyarrow", extra="graphs")
        with pa.ipc.open_stream(pa.py_buffer(content)) as reader:
            table = reader.read_all()
        said = (table.schema.metadata or {}).get(b"holdfast_truncated")
        return cls(table.replace_schema_metadata(None), truncated=said == b"true")

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self._table.column_names)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self._table.to_batches():
            yield from batch.to_pylist()

    def rows(self) -> list[dict[str, Any]]:
        """All rows."""
        return list(self)

    def scalar(self) -> Any:
        """The only value; `UsageError` if there are more rows or columns than one."""
        if self._table.num_rows != 1 or self._table.num_columns != 1:
            shape = f"{self._table.num_rows} rows and {self._table.num_columns} columns"
            raise UsageError(f"the result has {shape}, not one value; return one, such as count(*)")
        return self._table.column(0)[0].as_py()

    # ---- conversions ------------------------------------------------------------------------------------------------

    def arrow(self) -> pa.Table:
        """A pyarrow table."""
        return self._table

    def polars(self) -> Any:
        """A Polars data frame."""
        return wanted("polars").from_arrow(self._table)

    def pandas(self) -> Any:
        """A pandas data frame."""
        wanted("pandas")
        return self._table.to_pandas()

    def parquet(self, path: str | Path) -> Path:
        """Write the rows to a Parquet file; its path."""
        loaded("pyarrow.parquet", extra="graphs").write_table(self._table, str(path))
        return Path(path)

    def networkx(self) -> Any:
        """A NetworkX graph of all nodes, edges and paths in the rows. Columns of other types are ignored.

        A node's key is `(table, offset)`, by which the engine knows it; its attributes are its properties and `label`. An edge
        whose ends are not in the result gets ends without properties.
        """
        graph = wanted("networkx").MultiDiGraph()
        for row in self:
            for value in row.values():
                _add(graph, value)
        return graph

    # ---- display ----------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        more = ", truncated" if self.truncated else ""
        return f"<QueryResult: {len(self):,} rows, columns {', '.join(self.columns)}{more}>"

    def _repr_html_(self) -> str:
        head = "".join(f'<th style="{CELL};text-align:left">{escape(name)}</th>' for name in self.columns)
        body = "".join(_html_row(row, self.columns) for row in self._table.slice(0, SHOWN_ROWS).to_pylist())
        return f'<table style="{TABLE}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{self._note()}'

    def _note(self) -> str:
        """How many rows there are, if not all of them are shown."""
        shown = min(len(self), SHOWN_ROWS)
        limit = "; the server stopped at max_rows" if self.truncated else ""
        return f'<div style="opacity:.7">{shown:,} of {len(self):,} rows{limit}</div>'


def wanted(module: str) -> Any:
    """A module that the user installs; `UsageError` says how."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise UsageError(f"{module} is not installed: pip install {module}") from None


def _html_row(row: dict[str, Any], columns: list[str]) -> str:
    cells = "".join(f'<td style="{CELL}">{escape(text_of(row[name]))}</td>' for name in columns)
    return f"<tr>{cells}</tr>"


def text_of(value: Any) -> str:
    """A value in one line: nodes as `(:Label {…})`, edges as `[:TYPE {…}]`. Pure."""
    if value is None:
        return ""
    if isinstance(value, dict) and "_LABEL" in value:
        pairs = (f"{name}: {one!r}" for name, one in value.items() if not name.startswith("_") and one is not None)
        text = f":{value['_LABEL']} {{{', '.join(pairs)}}}"
        return _short(f"[{text}]" if "_SRC" in value else f"({text})")
    return _short(str(value))


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_CELL else f"{text[: LONGEST_CELL - 1]}…"


def _add(graph: Any, value: Any) -> None:
    """Add a node, an edge or a path to a NetworkX graph."""
    if not isinstance(value, dict):
        return
    if "_NODES" in value and "_RELS" in value:
        for one in (*value["_NODES"], *value["_RELS"]):
            _add(graph, one)
    elif "_SRC" in value and "_DST" in value:
        ends = _key(value["_SRC"]), _key(value["_DST"])
        graph.add_edge(*ends, key=_key(value["_ID"]), label=value["_LABEL"], **_properties(value))
    elif value.get("_ID") is not None and "_LABEL" in value:
        graph.add_node(_key(value["_ID"]), label=value["_LABEL"], **_properties(value))


def _key(identity: dict[str, Any]) -> tuple[int, int]:
    """The table and offset of a node or edge."""
    return (identity["table"], identity["offset"])


def _properties(value: dict[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in value.items() if not name.startswith("_") and one is not None and name != "label"}
