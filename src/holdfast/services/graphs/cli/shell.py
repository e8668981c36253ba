"""`holdfast graph shell`: Cypher at a prompt, with history, input of several lines, and commands that begin with a dot.

A statement ends with a semicolon, or with an empty line. Ctrl-C drops the input, Ctrl-D leaves. Without a terminal, statements
are read from standard input; the first that fails ends the program with exit code 1.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from holdfast.errors import HoldfastError, UsageError
from holdfast.extras import loaded
from holdfast.services.graphs.cli.query import instance_id
from holdfast.services.graphs.cli.rows import GraphRequests, print_rows, write_rows
from holdfast.toolkit.cli.output import Column, Format, Kind, NoClock, Shape
from holdfast.toolkit.cli.times import length
from holdfast.toolkit.cli.verb import Session
from holdfast.toolkit.client.environment import client_settings

MODES: Final = ("table", "wide", "json", "jsonl", "csv", "tsv", "yaml")
HELP: Final = f"""\
End a statement with ; or an empty line.
  .schema          labels, edge types and their properties
  .mode MODE       output: {", ".join(MODES)}
  .parquet FILE    write the rows of the last statement to a Parquet file
  .timeout TIME    stop statements after this time, such as 30s
  .help            this text
  .quit            leave; also Ctrl-D
"""
TABLES: Final = Shape(
    "table",
    [
        Column("KIND", "kind"),
        Column("NAME", "name"),
        Column("BETWEEN", "between"),
        Column("ROWS", "rows", Kind.NUMBER),
        Column("PROPERTIES", "properties", long=True),
    ],
    key="name",
)


def shell_command(
    session: Session,
    graph: Annotated[str, typer.Argument(help="The instance's id or name.", metavar="GRAPH", show_default=False)],
    timeout: Annotated[str, typer.Option("--timeout", help="Stop a statement after this time, such as 30s.")] = "60s",
    max_rows: Annotated[int, typer.Option("--max-rows", min=1, help="Return at most this many rows.")] = 1000,
) -> None:
    """Open a prompt for Cypher on a graph instance. `.help` lists its commands."""
    seconds = length(timeout).total_seconds()
    requests = GraphRequests(session, instance_id(session, graph), seconds=seconds, max_rows=max_rows)
    shell = Shell(session, requests)
    if not sys.stdin.isatty():
        for text in statements(sys.stdin):
            if not shell.handle(text):
                return
        return
    session.out.say(f"Connected to graph {graph}. .help lists commands, Ctrl-D leaves.", "dim")
    converse(shell, prompt_for(graph, history_file()))


class Shell:
    """What one line or statement does."""

    def __init__(self, session: Session, requests: GraphRequests) -> None:
        self._session, self._requests = session, requests
        self._last: str | None = None
        self._commands: dict[str, Callable[[str], None]] = {
            ".schema": self._schema,
            ".mode": self._mode,
            ".parquet": self._parquet,
            ".timeout": self._timeout,
            ".help": self._help,
        }

    def handle(self, text: str) -> bool:
        """Run a statement or a command; False: leave. Raises what a command of the command line raises."""
        text = text.strip()
        if not text.startswith("."):
            if text.rstrip("; \n"):
                self._last = text
                print_rows(self._session.out, self._requests, text, {})
            return True
        name, _, rest = text.rstrip(";").partition(" ")
        if name in (".quit", ".exit"):
            return False
        command = self._commands.get(name)
        if command is None:
            raise UsageError(f"there is no command {name}; .help lists all")
        command(rest.strip())
        return True

    def _schema(self, _: str) -> None:
        self._session.out.rows(TABLES, tables_of(self._requests.schema()), NoClock())

    def _mode(self, mode: str) -> None:
        if mode not in MODES:
            raise UsageError(f".mode needs one of: {', '.join(MODES)}")
        self._session.out.format = Format(mode)

    def _parquet(self, file: str) -> None:
        if self._last is None or not file:
            raise UsageError(".parquet FILE writes the rows of the last statement; run one first")
        self._session.out.say(write_rows(self._requests, self._last, {}, Path(file).with_suffix(".parquet")))

    def _timeout(self, time: str) -> None:
        self._requests.seconds = length(time).total_seconds()

    def _help(self, _: str) -> None:
        self._session.out.say(HELP)


def tables_of(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """The tables of a graph, one row each. Pure."""

    def properties(table: dict[str, Any]) -> str:
        key = table.get("primary_key")
        return ", ".join(f"{one['name']} {one['type']}{' (key)' if one['name'] == key else ''}" for one in table["properties"])

    nodes = [
        {"kind": "node", "name": one["label"], "between": None, "rows": one["rows"], "properties": properties(one)}
        for one in schema["nodes"]
    ]
    edges = [
        {
            "kind": "edge",
            "name": one["type"],
            "between": f"{one['from']} → {one['to']}",
            "rows": one["rows"],
            "properties": properties(one),
        }
        for one in schema["edges"]
    ]
    return [*nodes, *edges]


def statements(lines: Any) -> Iterator[str]:
    """The statements and commands in a text. Each ends with a semicolon at the end of a line, or an empty line. Pure."""
    gathered: list[str] = []
    for line in lines:
        gathered.append(line.rstrip("\n"))
        if is_complete("\n".join(gathered)):
            yield "\n".join(gathered)
            gathered = []
    if "".join(gathered).strip():
        yield "\n".join(gathered)


def is_complete(text: str) -> bool:
    """Whether Enter sends this input, and does not begin a new line. Pure."""
    stripped = text.strip()
    return not stripped or stripped.startswith(".") or stripped.endswith(";") or text.endswith("\n")


# ---------------------------------------------------------------------------------------------------------------------
# The prompt
# ---------------------------------------------------------------------------------------------------------------------


def converse(shell: Shell, ask: Callable[[], str]) -> None:
    """Read and handle input until the user leaves. Errors are printed, and the prompt returns."""
    while True:
        try:
            text = ask()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        try:
            if not shell.handle(text):
                return
        except HoldfastError as error:
            shell._session.out.mistake(str(error))
        except KeyboardInterrupt:
            shell._session.out.mistake("Stopped waiting; the graph server stops the query.")


def history_file() -> Path:
    """Where statements are kept, for this user only."""
    folder: Path = client_settings().config_dir.expanduser()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder / "graph_history"


def prompt_for(graph: str, history: Path) -> Callable[[], str]:
    """A prompt with history and several lines."""
    toolkit = loaded("prompt_toolkit", extra="graphs")
    bindings = import_module("prompt_toolkit.key_binding").KeyBindings()

    @bindings.add("enter")  # type: ignore[untyped-decorator]
    def _(event: Any) -> None:
        buffer = event.current_buffer
        if is_complete(buffer.text) or not buffer.document.current_line.strip():
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    history.touch(mode=0o600)
    prompt = toolkit.PromptSession(
        history=import_module("prompt_toolkit.history").FileHistory(str(history)),
        multiline=True,
        key_bindings=bindings,
        prompt_continuation=lambda width, *_: " " * (width - 2) + "· ",
    )
    ask: Callable[[], str] = lambda: str(prompt.prompt(f"{graph}> "))  # noqa: E731
    return ask
