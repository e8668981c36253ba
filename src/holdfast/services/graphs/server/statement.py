"""Which Cypher may run. Pure.

The engines refuse writes to a database that is open read-only. They still let a read-only session write and read files
(`COPY … TO`, `EXPORT DATABASE`, `LOAD FROM`, `CALL read_parquet(…)`), change settings (`CALL timeout=0`), and `CHECKPOINT`,
after which ladybug 0.22 refuses all further work. So a statement must begin with a reading clause, `LOAD FROM` is refused
everywhere, and `CALL` may call only the functions listed here.

Words in strings, comments and quoted names do not count: `RETURN n.load, 'COPY x TO y'` is allowed.

Both engines read a parameter that is not given as NULL or ignore the condition; kuzu then returns every row. Parameters are
compared with the statement for this reason.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

LONGEST: Final = 100_000  # characters
READING: Final = frozenset({"MATCH", "OPTIONAL", "UNWIND", "WITH", "RETURN", "CALL"})
SHOWING: Final = frozenset({"EXPLAIN", "PROFILE"})
WRITING: Final = frozenset({"CREATE", "MERGE", "SET", "DELETE", "DETACH", "DROP", "ALTER", "COMMENT"})
FUNCTIONS: Final = frozenset(
    {
        *("SHOW_TABLES", "SHOW_CONNECTION", "SHOW_FUNCTIONS", "SHOW_INDEXES", "SHOW_MACROS", "SHOW_SEQUENCES", "SHOW_WARNINGS"),
        *("TABLE_INFO", "DB_VERSION", "STATS_INFO", "STORAGE_INFO", "CURRENT_SETTING"),
        *("PROJECT_GRAPH", "DROP_PROJECTED_GRAPH", "PROJECTED_GRAPH_INFO", "SHOW_PROJECTED_GRAPHS"),
        *("PAGE_RANK", "WEAKLY_CONNECTED_COMPONENTS", "STRONGLY_CONNECTED_COMPONENTS", "K_CORE_DECOMPOSITION", "LOUVAIN"),
        *("STRONGLY_CONNECTED_COMPONENTS_KOSARAJU", "PR", "WCC", "SCC", "SCC_KO", "KCORE"),
        *("QUERY_FTS_INDEX", "QUERY_VECTOR_INDEX"),
    }
)
TOKEN: Final = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)
      | (?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
      | (?P<quoted>`[^`]*`)
      | (?P<parameter>\$\w+)
      | (?P<word>[^\W\d]\w*)
      | (?P<number>\d+)
      | (?P<sign>[^'"`])""",
    re.VERBOSE | re.DOTALL,
)


class StatementRefused(Exception):
    """The statement may not run. `is_write`: because it would change the graph."""

    def __init__(self, message: str, *, is_write: bool = False) -> None:
        super().__init__(message)
        self.is_write = is_write


@dataclass(frozen=True, slots=True)
class Token:
    """A word, sign, string, number, parameter or quoted name. `at` is its position, `depth` its number of open brackets."""

    kind: str
    text: str
    at: int
    depth: int

    @property
    def word(self) -> str:
        """A keyword in upper case; empty for everything that is not a plain word."""
        return self.text.upper() if self.kind == "word" else ""


def checked(statement: str, parameters: Collection[str] = ()) -> str:
    """The statement without a final semicolon; `StatementRefused` says why it may not run."""
    if len(statement) > LONGEST:
        raise StatementRefused(f"the query has {len(statement):,} characters; at most {LONGEST:,} are allowed")
    found = [*tokens(statement)]
    while found and found[-1].text == ";":
        statement = statement[: found.pop().at]
    if not found:
        raise StatementRefused("the query is empty")
    if any(token.text == ";" for token in found):
        raise StatementRefused("the query has several statements; send one at a time")
    _refuse_beginning(found)
    _refuse_files(found)
    _refuse_calls(found)
    _compare_parameters(found, parameters)
    return statement


def limited(statement: str, rows: int) -> str:
    """The statement with a LIMIT of `rows` if it has none or a higher one. Pure.

    A statement with UNION, or with a LIMIT that is not a number, stays as it is: the caller looks at the size of its result.
    """
    found = [token for token in tokens(statement) if token.depth == 0]
    words = [token.word for token in found]
    if "RETURN" not in words or "UNION" in words or words[0] in SHOWING:
        return statement
    last = len(words) - 1 - words[::-1].index("RETURN")
    at = next((n for n in range(last + 1, len(words)) if _is_limit(found, n)), None)
    if at is None:
        return f"{statement}\nLIMIT {rows}"
    if len(found) == at + 2 and found[at + 1].kind == "number" and int(found[at + 1].text) > rows:
        return f"{statement[: found[at + 1].at]}{rows}"
    return statement


def tokens(statement: str) -> Iterator[Token]:
    """The tokens of a statement without spaces and comments; `StatementRefused` if a string or a quoted name does not end."""
    depth = 0
    at = 0
    while at < len(statement):
        found = TOKEN.match(statement, at)
        if found is None or (found["sign"] == "/" and statement.startswith("/*", at)):
            raise StatementRefused(f"the text that begins at character {at + 1} ({statement[at : at + 20]!r}) does not end")
        kind, text = str(found.lastgroup), found[0]
        depth -= text in (")", "]", "}")
        if kind != "space":
            yield Token(kind, text, at, depth)
        depth += text in ("(", "[", "{")
        at = found.end()


def _is_limit(found: list[Token], at: int) -> bool:
    """Whether this is the keyword, and not a variable or property with its name."""
    follows = found[at + 1] if at + 1 < len(found) else None
    is_value = follows is not None and follows.kind in ("number", "parameter", "word", "sign") and follows.text not in ",.)]}="
    return found[at].word == "LIMIT" and is_value and found[at - 1].text not in (".", ",") and found[at - 1].word != "AS"


def _refuse_beginning(found: list[Token]) -> None:
    first = found[0].word
    if first in SHOWING:
        rest = found[2:] if len(found) > 1 and found[1].word == "LOGICAL" else found[1:]
        first = rest[0].word if rest else ""
    if first in READING:
        return
    if first in WRITING:
        raise StatementRefused(f"{first} would change the graph, which is read-only; run it in the database of the source",
                               is_write=True)  # fmt: skip
    raise StatementRefused(
        f"a query begins with {', '.join(sorted(READING))}, EXPLAIN or PROFILE, not with {found[0].text[:40]!r}"
    )


def _refuse_files(found: list[Token]) -> None:
    for before, token, after in zip([None, *found], found, [*found[1:], None], strict=False):
        is_name = before is not None and before.text in (".", ":")
        if token.word == "LOAD" and not is_name and after is not None and after.word in ("FROM", "WITH", "EXTENSION"):
            raise StatementRefused("LOAD FROM reads files of the server and is refused; export the data into the graph instead")


def _refuse_calls(found: list[Token]) -> None:
    for number, token in enumerate(found):
        is_name = number > 0 and (found[number - 1].text in (".", ":") or found[number - 1].word == "AS")
        if token.word != "CALL" or is_name or number + 1 == len(found):
            continue
        called = found[number + 1]
        if called.kind not in ("word", "quoted"):
            continue  # CALL { … }: its tokens are checked, too
        if called.text.strip("`").upper() not in FUNCTIONS or found[number + 2 : number + 3] == []:
            raise StatementRefused(f"CALL {called.text} is not allowed; allowed are: {', '.join(sorted(FUNCTIONS)).lower()}")
        if found[number + 2].text != "(":
            raise StatementRefused(f"CALL {called.text} must be a function call; settings cannot be changed")


def _compare_parameters(found: list[Token], given: Collection[str]) -> None:
    used = {token.text[1:] for token in found if token.kind == "parameter"}
    missing, unused = sorted(used - set(given)), sorted(set(given) - used)
    if missing:
        raise StatementRefused(f"the query uses ${missing[0]}, which is not given; add it to `parameters`")
    if unused:
        raise StatementRefused(f"the parameter {unused[0]!r} is given, but the query does not use ${unused[0]}; remove it")
