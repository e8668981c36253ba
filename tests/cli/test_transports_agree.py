"""What a command shows does not depend on the way: over HTTP and straight from the database it is the same, to the byte."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from running import Run
from story import Story, tell


@pytest.fixture
def story(do: Any) -> Story:
    found: Story = do(tell)
    return found


AGO = re.compile(r" \((now|in \w+|\w+ ago)\) *$", re.MULTILINE)  # differs with the moment, not with the way
LOOKS = {
    "job list": ["job", "list"],
    "job list with a filter": ["job", "list", "-f", "state:failed kind:recalc"],
    "job list of a condition": ["job", "list", "--condition", "stale"],
    "job show": ["job", "show", "{failed}"],
    "job show of the latest": ["job", "show", "@latest"],
    "job explain": ["job", "explain", "{lock_waiter}"],
    "job history": ["job", "history", "{failed}"],
    "job logs": ["job", "logs", "{failed}"],
    "failure list": ["failure", "list"],
    "pipeline list": ["pipeline", "list"],
    "pipeline show": ["pipeline", "show", "{pipeline}"],
    "lock list": ["lock", "list"],
    "lock show": ["lock", "show", "table:orders"],
    "worker list": ["worker", "list"],
    "kind list": ["kind", "list"],
    "audit list": ["audit", "list"],
    "auth token list": ["auth", "token", "list"],
    "config show": ["config", "show"],
    "config list": ["config", "list"],
}


def _timeless_text(text: str) -> str:
    """Without how long ago things were: a second later that may be a digit longer, and so may be its column."""
    return re.sub(" +", " ", AGO.sub("", text))


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS.keys())
def test_both_ways_show_the_same(look: list[str], story: Story, over_http: Run, direct: Run) -> None:
    words = [word.format(**story._asdict()) for word in look]

    forms = ("tsv", "json", "yaml", "csv", "name", "jsonl", "wide") if look == LOOKS["job list"] else ("json", "wide")
    for form in forms:
        one, other = over_http(*words, "-o", form), direct(*words, "-o", form)
        assert (one.code, _timeless_text(one.out)) == (other.code, _timeless_text(other.out)), form
        assert one.code == 0
        assert one.out or look[0] == "audit", form


def test_failure_show_is_the_same(story: Story, over_http: Run, direct: Run) -> None:
    fingerprint = json.loads(direct("failure", "list", "-o", "json").out)[0]["fingerprint"]

    one, other = (run("failure", "show", fingerprint, "-o", "json") for run in (over_http, direct))

    assert one.out == other.out
    assert json.loads(one.out)["newest"] == [story.failed]


def test_status_is_the_same_but_for_the_time_and_the_place(story: Story, over_http: Run, direct: Run) -> None:
    one, other = (json.loads(run("status", "-o", "json").out) for run in (over_http, direct))

    assert one.pop("at") != other.pop("at")
    assert _timeless(one) == _timeless(other)
    assert one["jobs"]["failed"] == 1
    assert one["stale"] == 1


def test_doctor_finds_the_same(story: Story, over_http: Run, direct: Run) -> None:
    one, other = (json.loads(run("doctor", "--json").out) for run in (over_http, direct))

    # Whether metrics are open and streams arrive is a matter of the way over HTTP alone.
    assert {name: levels for name, levels in _levels(one).items() if name not in ("metrics", "streams")} == _levels(other)
    assert _levels(one)["leases"] == {"warning"}


def test_only_who_asks_differs(story: Story, over_http: Run, direct: Run) -> None:
    assert json.loads(over_http("auth", "whoami", "-o", "json").out)["actor"] == "token:ada"
    assert json.loads(direct("auth", "whoami", "-o", "json").out)["method"] == "command line"


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _timeless(one) for name, one in value.items() if name != "seconds"}
    return [_timeless(one) for one in value] if isinstance(value, list) else value


def _levels(found: list[dict[str, Any]]) -> dict[str, set[str]]:
    """The levels of each check; which way was taken and how busy the server is may differ."""
    levels: dict[str, set[str]] = {}
    for finding in found:
        if finding["check"] not in ("way", "api", "clock"):
            levels.setdefault(finding["check"], set()).add(finding["level"])
    return levels
