"""Kubernetes quantities ("1536Mi", "1.5Gi", "500m") as numbers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from lightkube.utils.quantity import parse_quantity


def megabytes(quantity: str) -> int:
    """A quantity of memory in MiB."""
    return int(number(quantity) // 2**20)


def number(quantity: str) -> Decimal:
    """A quantity in bytes or cores."""
    found: Decimal | None = parse_quantity(str(quantity))
    assert found is not None
    return found


def memory_of(metrics: Mapping[str, Any]) -> tuple[str, int]:
    """The name of a pod, and the bytes that its containers use together, from the metrics API."""
    used = sum(int(number(each["usage"]["memory"])) for each in metrics.get("containers") or ())
    return metrics["metadata"]["name"], used


def are_equal(left: Mapping[str, Any] | None, right: Mapping[str, Any] | None) -> bool:
    """Whether two sets of requests or limits have the same memory and CPU, however they are written."""
    return all(
        name in (left or {}) and name in (right or {}) and number((left or {})[name]) == number((right or {})[name])
        for name in ("cpu", "memory")
    )
