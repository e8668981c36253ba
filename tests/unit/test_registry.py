"""Tables of the kernel and the services: in the same order in every process."""

from __future__ import annotations

from holdfast.registry import Registry


def test_the_order_does_not_depend_on_which_service_was_imported_first():
    table = Registry[int]("events", {"z": 1})

    table.add("maintenance", {"b": 2, "a": 3})
    table.add("exports", {"y": 4})

    assert list(table) == ["z", "y", "b", "a"]
