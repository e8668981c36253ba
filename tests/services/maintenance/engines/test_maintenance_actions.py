"""Requests become actions: every mistake is reported at once, with its place and its fix."""

from __future__ import annotations

import pytest

from holdfast.services.maintenance.engines.actions import (
    ACTIONS,
    ActionsInvalid,
    ExpireSnapshots,
    RewriteDataFiles,
    defaults,
    duration,
    parse_actions,
    size,
)


def test_actions_run_in_a_fixed_order():
    given = ["remove_orphan_files", "expire_snapshots", "rewrite_data_files", "rewrite_manifests"]

    assert [action.name for action in parse_actions(given)] == list(ACTIONS)[:4]


def test_all_mistakes_are_reported_at_once():
    given = [
        {"action": "rewrite_data_files", "target_file_size": "1 parsec", "min_input_files": 1, "colour": "red"},
        {"action": "vacuum"},
        {"action": "expire_snapshots", "older_than": "soon"},
    ]

    with pytest.raises(ActionsInvalid) as caught:
        parse_actions(given)

    assert [problem.pointer for problem in caught.value.problems] == [
        "/0/target_file_size",
        "/0/min_input_files",
        "/0/colour",
        "/1/action",
        "/2/older_than",
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "no action is given"),
        (["rewrite_manifests", "rewrite_manifests"], "listed twice"),
        ([7], "is not an action"),
        ([{"action": "rewrite_data_files", "sort_by": ["id"]}], "only used by strategy 'sort'"),
        ([{"action": "rewrite_data_files", "strategy": "zorder"}], "must be one of binpack, sort"),
        ([{"action": "rewrite_data_files", "sort_by": ["id", "id"], "strategy": "sort"}], "names a column twice"),
        ([{"action": "expire_snapshots", "retain_last": 0}], "must be between 1 and"),
        ([{"action": "expire_snapshots", "retain_last": True}], "must be a whole number"),
        ([{"action": "expire_snapshots", "retain_last": None}], "must not be null"),
    ],
)
def test_a_mistake_names_its_fix(given, message):
    with pytest.raises(ActionsInvalid, match=message):
        parse_actions(given)


def test_an_action_can_be_stored_and_read_again():
    action = RewriteDataFiles("sort", ("a", "-b"), 128 << 20, 3, "day > '2024-01-01'")

    assert parse_actions([action.as_json()]) == [action]
    assert parse_actions([ExpireSnapshots(60, 2).as_json()]) == [ExpireSnapshots(60, 2)]


@pytest.mark.parametrize("action", ACTIONS.values(), ids=lambda action: action.name)
def test_parameters_describe_the_fields(action):
    described = {parameter.name: parameter.default for parameter in action.parameters}

    assert described == defaults(action)


@pytest.mark.parametrize(("text", "value"), [("128MB", 128 * 10**6), ("1 GiB", 1 << 30), (5, 5), ("7", 7)])
def test_sizes(text, value):
    assert size(text) == value


@pytest.mark.parametrize(("text", "value"), [("P7D", 604800), ("PT12H", 43200), ("7d", 604800), ("P1DT1H", 90000), (60, 60)])
def test_durations(text, value):
    assert duration(text) == value


@pytest.mark.parametrize("text", ["", "P", "PT", "-1d", "1y", 1.5, True, [1]])
def test_what_is_no_duration(text):
    with pytest.raises(ValueError, match="is not a duration"):
        duration(text)
