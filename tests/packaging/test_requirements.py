"""The pinned requirements: `make up` and `make test` install exactly these, whatever has been released since."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REQUIREMENTS = Path(__file__).parents[2] / "requirements"


@pytest.mark.parametrize("name", ["all", "dev"])
def test_pins_have_every_extra_that_another_package_requires(name: str) -> None:
    """pip applies the pin `httpx2==2.16.0` to `httpx2` only. For `httpx2[http2]` it takes the newest release, and then refuses
    that, because it has no hash."""
    pins = _pins(REQUIREMENTS / f"{name}.txt")

    without = [
        f"{package} requires {required.name}[{','.join(sorted(required.extras))}]"
        for package, pin in pins.items()
        for required in _required_by(pin)
        if not required.extras <= pins[canonicalize_name(required.name)].extras
    ]

    assert any(_required_by(pin) for pin in pins.values()), "no package was looked at"
    assert without == [], f"requirements/{name}.txt pins these without the extras: run `make requirements`"


def _pins(path: Path) -> dict[str, Requirement]:
    lines = (line.rstrip("\\ ") for line in path.read_text().splitlines() if line[:1].isalnum())
    return {canonicalize_name(pin.name): pin for pin in map(Requirement, lines)}


def _required_by(pin: Requirement) -> list[Requirement]:
    """What the installed package requires with extras, on this platform."""
    return [required for required in _installed_requirements(pin) if required.extras]


def _installed_requirements(pin: Requirement) -> Iterator[Requirement]:
    try:
        lines = requires(pin.name) or []
    except PackageNotFoundError:  # for another platform
        return
    for required in map(Requirement, lines):
        if not required.marker or any(required.marker.evaluate({"extra": extra}) for extra in ("", *pin.extras)):
            yield required
