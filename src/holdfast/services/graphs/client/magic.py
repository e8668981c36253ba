"""`%%cypher` in notebooks:

    from holdfast.client import connect
    hf = connect()
    %load_ext holdfast.services.graphs.client.magic
    %cypher_use hf.graphs.get("social")

    %%cypher --out people id=7
    MATCH (p:Person {id: $id}) RETURN p

The words behind `%%cypher` are parameters: `name=value`, where the value is JSON, else text. `--out NAME` stores the result
in a variable, `--limit N` sets the row limit. `$name` that is not given as a parameter is taken from the notebook's variables.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import Any, Final

from holdfast.errors import UsageError
from holdfast.services.graphs.client.graphs import Graph
from holdfast.services.graphs.client.results import QueryResult

PARAMETER: Final = re.compile(r"\$([A-Za-z_]\w*)")


class CypherMagic:
    """The graph that `%%cypher` queries."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._graph: Graph | None = None

    def use(self, line: str) -> None:
        """`%cypher_use EXPRESSION`: query this graph from now on."""
        found = eval(line, self._shell.user_ns)  # noqa: S307 - the user's own expression, in the user's own notebook
        if not isinstance(found, Graph):
            raise UsageError(f"%cypher_use needs a graph, such as hf.graphs.get(7), not {type(found).__name__}")
        self._graph = found

    def cypher(self, line: str, cell: str | None = None) -> QueryResult | None:
        """`%%cypher`: run the cell. `%cypher QUERY`: run one line."""
        if self._graph is None:
            raise UsageError("say first which graph to query: %cypher_use hf.graphs.get(7)")
        options = {} if cell is None else options_of(line)
        text = line if cell is None else cell
        parameters = dict(options.get("parameters", {}))
        for name in PARAMETER.findall(text):
            if name not in parameters and name in self._shell.user_ns:
                parameters[name] = self._shell.user_ns[name]
        result = self._graph.query(text, parameters, max_rows=options.get("limit"))
        if "out" not in options:
            return result
        self._shell.user_ns[options["out"]] = result
        return None


def options_of(line: str) -> dict[str, Any]:
    """The options behind `%%cypher`. Pure."""
    found: dict[str, Any] = {"parameters": {}}
    words = iter(shlex.split(line))
    for word in words:
        if word in ("--out", "--limit"):
            value = next(words, None)
            if value is None or (word == "--limit" and not value.isdecimal()):
                raise UsageError(f"{word} needs a {'number' if word == '--limit' else 'name'}")
            found[word[2:]] = int(value) if word == "--limit" else value
            continue
        name, sign, value = word.partition("=")
        if not sign or not name.isidentifier():
            raise UsageError(f"{word!r} is neither an option (--out, --limit) nor a parameter name=value")
        found["parameters"][name] = _value(value)
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def load_ipython_extension(shell: Any) -> None:
    """Called by `%load_ext holdfast.services.graphs.client.magic`."""
    magic = CypherMagic(shell)
    shell.register_magic_function(magic.cypher, "line_cell", "cypher")
    shell.register_magic_function(magic.use, "line", "cypher_use")
