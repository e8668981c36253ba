"""What a file says is what is there afterwards, and what it says wrongly is refused before anything is changed."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import duckdb
import pytest
from running import Run

from holdfast.toolkit.cli.exit_codes import Exit

MAP = """\
name: people
nodes:
  - label: Person
    sql: SELECT range AS id FROM range(10)
    primary_key: {name: id, type: INT64}
edges:
  - {type: KNOWS, from_node: Person, to_node: Person, from_key: a, to_key: b,
     sql: "SELECT range AS a, range + 1 AS b FROM range(9)"}
"""


def applied(command: Run, text: str, *words: str) -> Any:
    Path("map.yaml").write_text(text)
    return command("mapping", "apply", "-f", "map.yaml", *words)


def now(command: Run) -> dict[str, Any]:
    found = command("mapping", "show", "people", "-o", "json")
    assert found.code == 0, found.err
    shown: dict[str, Any] = json.loads(found.out)
    return shown


REFUSED = {
    MAP.replace("edges:", "edge:"): "map.yaml has unknown keys: edge; allowed keys: name, description, engine, nodes,",
    MAP + "ttll: P7D\n": "map.yaml has unknown keys: ttll",
    MAP + "since: 2026-01-01\n": "map.yaml has unknown keys: since",
    MAP + "engine: trino\n": "mapping 'people' is for duckdb, and the engine cannot change; use another name for trino",
    MAP + "description: 2026-01-01\n": "map.yaml/description is datetime.date(2026, 1, 1) in YAML; quote it",
    MAP.replace("KNOWS", "2026-01-01"): "map.yaml/edges/0/type is datetime.date(2026, 1, 1)",
    MAP + "ttl: .nan\n": "map.yaml/ttl is nan",
    MAP + "ttl: seven days\n": "map.yaml/ttl: ",
    MAP + "description: &a [*a]\n": "contains itself",
    MAP + "engine: [\n": "map.yaml, line 10, column 1 is neither YAML nor JSON: ",
    MAP.replace("name: people", "name: people: x"): "map.yaml, line 1, column 13 is neither YAML nor JSON: mapping values",
    MAP + "ttl: 2026-02-30\n": "map.yaml is neither YAML nor JSON: day",
    MAP + "ttl: \x01\n": "map.yaml is neither YAML nor JSON: ",
    "nodes: 3": "map.yaml must have a `name` and a list of `nodes`",
}


@pytest.mark.parametrize("text", REFUSED, ids=range(len(REFUSED)))
def test_what_is_wrong_in_a_file_is_said_and_nothing_is_changed(direct: Run, text: str) -> None:
    assert applied(direct, MAP).code == 0
    before = now(direct)

    told = applied(direct, text)

    assert (told.code, REFUSED[text] in told.err) == (Exit.USAGE, True), told.err
    assert "fault" not in told.err
    assert now(direct) == before


@pytest.mark.more
def test_everything_that_a_file_says_of_a_mapping_that_is_there_is_done(command: Run) -> None:
    assert "is created." in applied(command, MAP).err
    assert "Nothing changed." in applied(command, MAP).err

    told = applied(command, MAP + "ttl: P7D\ndescription: friends\n")
    assert "is at version 1; changed: ttl, description." in told.err
    assert (now(command)["ttl"], now(command)["description"]) == ("P7D", "friends")
    told = applied(command, MAP + "ttl:\ninactivity_timeout: PT4H\ndescription:\n")
    assert "changed: ttl, inactivity_timeout, description." in told.err
    shown = now(command)
    assert (shown["ttl"], shown["inactivity_timeout"], shown["description"]) == (None, "PT4H", "")

    told = applied(command, MAP.split("  - {type")[0])
    assert "is at version 2; changed: definitions." in told.err
    assert now(command)["edges"] == [], "`edges:` with nothing below it are none"


def test_a_lifetime_is_not_changed_when_the_definitions_are_refused(direct: Run) -> None:
    applied(direct, MAP)

    told = applied(direct, MAP.replace("Person\n", "1st\n", 1) + "ttl: P7D\n")
    long = applied(direct, MAP + "ttl: P7D\n", "-m", "x" * 1001)

    assert (told.code, "map.yaml/nodes/0/label" in told.err) == (Exit.USAGE, True), told.err
    assert (long.code, "change_description" in long.err) == (Exit.USAGE, True), long.err
    assert now(direct)["ttl"] is None


PAGE = Path(__file__).resolve().parents[2] / "docs/howto/mappings-and-snapshots.md"
SHOP = """
    CREATE TABLE customers AS SELECT 1 AS id, 'Ada' AS name, DATE '2026-01-01' AS since;
    CREATE TABLE accounts AS SELECT 'a1' AS number, 1.5::DECIMAL(12, 2) AS balance;
    CREATE TABLE owns AS SELECT 1 AS customer_id, 'a1' AS account;
"""


def test_the_page_about_mappings_shows_what_is_printed(direct: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its mapping is valid; with the two mistakes that it speaks of, the command says what stands there."""
    with duckdb.connect("shop.duckdb") as shop:
        shop.execute(SHOP)
    monkeypatch.setenv("HOLDFAST_DUCKDB_ATTACH", json.dumps({"shop": str(Path("shop.duckdb").absolute())}))
    text = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.S)[0]
    shown = re.findall(r"```console\n\$ (.*?)\n(.*?)```", PAGE.read_text(), re.S)[0]
    broken = text.replace("CAST(balance AS DOUBLE) AS balance", "balance").replace("from_node: Customer", "from_node: Client")
    assert broken.count("Client") == broken.count("number, balance FROM") == 1

    Path("bank.yaml").write_text(broken)
    told = direct(*shlex.split(shown[0])[1:])
    Path("bank.yaml").write_text(text)
    valid = direct(*shlex.split(shown[0])[1:])

    assert told.err == shown[1]
    assert (valid.code, valid.err) == (0, "bank is valid.\n")
