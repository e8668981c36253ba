"""Tables of the kernel and the services: in the same order in every process."""

from __future__ import annotations

from holdfast.registry import Registry


def test_order_does_not_depend_on_import_order():
    table = Registry[int]("events", {"z": 1})

    table.add("maintenance", {"b": 2, "a": 3})
    table.add("exports", {"y": 4})

    assert list(table) == ["z", "y", "b", "a"]
