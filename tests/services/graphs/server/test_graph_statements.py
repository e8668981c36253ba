"""Which Cypher may run, and how its rows are limited."""

from __future__ import annotations

import pytest

from holdfast.services.graphs.server.statement import StatementRefused, checked, limited


@pytest.mark.parametrize(
    "statement",
    [
        "MATCH (n) RETURN n",
        "optional match (n) return n",
        "// a comment\nMATCH (n) /* COPY x TO 'y'; */ RETURN n;",
        "RETURN 'COPY x TO y; LOAD FROM z', \"CALL timeout=0\"",
        "MATCH (n:load) WHERE n.load > 1 RETURN n.load AS load, n.created_at, n.`CHECKPOINT`, n.offset",
        "UNWIND [1, 2] AS x RETURN x",
        "CALL show_tables() RETURN *",
        "call TABLE_INFO('P') return name",
        "EXPLAIN MATCH (n) RETURN n",
        "EXPLAIN LOGICAL MATCH (n) RETURN n",
        "PROFILE MATCH (n) RETURN n",
        r"RETURN 'it\'s; COPY'",
        "MATCH (n) SET n.x = 1",  # the engine refuses it: its database is open read-only
    ],
)
def test_a_reading_statement_may_run(statement: str):
    assert checked(statement).rstrip(";") in statement


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("COPY (MATCH (n) RETURN n) TO 'x.csv'", "not with 'COPY'"),
        ("EXPORT DATABASE 'x'", "not with 'EXPORT'"),
        ("CHECKPOINT", "not with 'CHECKPOINT'"),
        ("BEGIN TRANSACTION", "not with 'BEGIN'"),
        ("INSTALL json", "not with 'INSTALL'"),
        ("ATTACH 'x' AS y", "not with 'ATTACH'"),
        ("EXPLAIN COPY x FROM 'y'", "not with 'EXPLAIN'"),
        ("`MATCH` (n)", "not with '`MATCH`'"),
        ("LOAD FROM '/etc/passwd' RETURN *", "not with 'LOAD'"),
        ("MATCH (n) LOAD FROM '/etc/passwd' RETURN *", "reads files of the server"),
        ("UNWIND [1] AS x LOAD /**/ WITH HEADERS (a STRING) FROM 'x' RETURN *", "reads files of the server"),
        ("CALL timeout=0", "is not allowed"),
        ("CALL threads = 1", "is not allowed"),
        ("CALL current_setting = 1", "must be a function call"),
        ("CALL read_parquet('x') RETURN *", "is not allowed"),
        ("MATCH (n) CALL read_csv_serial('/etc/passwd') RETURN *", "is not allowed"),
        ("CALL `read_parquet`('x') RETURN *", "is not allowed"),
        ("CALL project_graph_cypher('g', 'LOAD FROM \"x\" RETURN *')", "is not allowed"),
        ("RETURN 1; CHECKPOINT", "several statements"),
        ("RETURN 'open", "does not end"),
        ("RETURN 1 /* open", "does not end"),
        ("RETURN `open", "does not end"),
        (" ; ", "empty"),
        ("", "empty"),
        ("RETURN '" + "x" * 100_000 + "'", "characters"),
    ],
)
def test_a_statement_that_reaches_beyond_the_graph_is_refused(statement: str, reason: str):
    """E-26: read-only is decided by clauses, not by substrings; files, settings and several statements are refused."""
    with pytest.raises(StatementRefused) as refused:
        checked(statement)

    assert reason in str(refused.value)


@pytest.mark.parametrize("statement", ["CREATE (:P)", "MERGE (:P {id: 1})", "DROP TABLE P", "alter table P add x INT64"])
def test_a_writing_statement_is_refused_as_such(statement: str):
    with pytest.raises(StatementRefused) as refused:
        checked(statement)

    assert refused.value.is_write


def test_parameters_must_match_the_statement():
    """The engines read a missing parameter as NULL, or ignore the condition: kuzu returns every row."""
    with pytest.raises(StatementRefused, match=r"uses \$b, which is not given"):
        checked("MATCH (n {a: $a, b: $b}) RETURN n", {"a"})
    with pytest.raises(StatementRefused, match="'c' is given, but"):
        checked("MATCH (n {a: $a}) RETURN n, '$c'", {"a", "c"})


@pytest.mark.parametrize(
    ("statement", "made"),
    [
        ("MATCH (n) RETURN n", "MATCH (n) RETURN n\nLIMIT 10"),
        ("MATCH (n) RETURN n ORDER BY n.x", "MATCH (n) RETURN n ORDER BY n.x\nLIMIT 10"),
        ("MATCH (n) RETURN n LIMIT 3", "MATCH (n) RETURN n LIMIT 3"),
        ("MATCH (n) RETURN n LIMIT 30", "MATCH (n) RETURN n LIMIT 10"),
        ("MATCH (n) RETURN n SKIP 1 LIMIT $x", "MATCH (n) RETURN n SKIP 1 LIMIT $x"),
        ("MATCH (n) RETURN n LIMIT 5 + 50", "MATCH (n) RETURN n LIMIT 5 + 50"),
        ("MATCH (n) WITH n LIMIT 99 RETURN n", "MATCH (n) WITH n LIMIT 99 RETURN n\nLIMIT 10"),
        ("MATCH (n) RETURN n.limit", "MATCH (n) RETURN n.limit\nLIMIT 10"),
        ("WITH 1 AS limit RETURN limit", "WITH 1 AS limit RETURN limit\nLIMIT 10"),
        ("WITH 1 AS limit RETURN limit, 2 AS x", "WITH 1 AS limit RETURN limit, 2 AS x\nLIMIT 10"),
        ("MATCH (n) RETURN n // LIMIT 3", "MATCH (n) RETURN n // LIMIT 3\nLIMIT 10"),
        ("MATCH (n) WHERE EXISTS { MATCH (n) RETURN n LIMIT 1 } RETURN n", None),
        ("RETURN 1 UNION ALL RETURN 2", "RETURN 1 UNION ALL RETURN 2"),
        ("EXPLAIN MATCH (n) RETURN n", "EXPLAIN MATCH (n) RETURN n"),
    ],
)
def test_a_row_limit_is_part_of_the_statement(statement: str, made: str | None):
    assert limited(statement, 10) == (made or f"{statement}\nLIMIT 10")
