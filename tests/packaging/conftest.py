"""Clean installations: folders with the built wheel, the packages that its metadata asks for, and nothing else.

A folder has links to the packages of the environment that runs the tests, so no network is needed. Python runs with `-S`:
of third-party packages it sees that folder alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from email.message import Message
from email.parser import Parser
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from holdfast import distribution as ours

ROOT = Path(__file__).parents[2]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this source tree."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def metadata(wheel: Path) -> Message:
    """The metadata of the wheel: name, version, requirements, extras."""
    with zipfile.ZipFile(wheel) as packed:
        (name,) = [name for name in packed.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(packed.read(name).decode())


@pytest.fixture(scope="session")
def installed(wheel: Path, metadata: Message, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`installed("cli")`: the folder of an installation with these extras; without any, the base installation."""
    made: dict[tuple[str, ...], Path] = {}

    def install(*extras: str) -> Path:
        if extras not in made:
            made[extras] = tmp_path_factory.mktemp("-".join(("base", *extras)))
            with zipfile.ZipFile(wheel) as packed:
                packed.extractall(made[extras])
            for package in closure(metadata, extras):
                link(package, made[extras])
        return made[extras]

    return install


@pytest.fixture
def run(installed: Callable[..., Path], tmp_path: Path) -> Run:
    """`run("cli")("-m", "holdfast", "status")`: Python with these arguments in such an installation."""

    def run_in(*extras: str) -> Run:
        def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
            inherited = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "PYTHON"))}
            return subprocess.run(
                [sys.executable, "-S", *arguments],
                check=False,
                cwd=tmp_path,
                env={**inherited, "PYTHONPATH": str(installed(*extras)), **environment},
                capture_output=True,
                text=True,
                timeout=120,
            )

        return python

    return run_in


def closure(metadata: Message, extras: tuple[str, ...]) -> set[str]:
    """The packages that this metadata asks for with these extras, and what those ask for in turn."""
    found: set[str] = set()
    asked: set[tuple[str, str]] = set()
    todo = [(ours.NAME, extra) for extra in ("", *extras)]
    while todo:
        name, extra = todo.pop()
        if (name, extra) in asked:
            continue
        asked.add((name, extra))
        for wanted in requirements_of(name, metadata):
            if wanted.marker is None or wanted.marker.evaluate({"extra": extra}):
                todo += [(wanted.name, one) for one in ("", *wanted.extras)]
                found.add(wanted.name)
    return {name for name in found if name != ours.NAME}


def requirements_of(name: str, metadata: Message) -> Iterator[Requirement]:
    """What a package asks for, each with its marker."""
    lines = metadata.get_all("Requires-Dist", []) if name == ours.NAME else distribution(name).requires or []
    yield from map(Requirement, lines)


def link(package: str, folder: Path) -> None:
    """Put a package of this environment into the folder."""
    try:
        files = distribution(package).files or []
    except PackageNotFoundError:  # pragma: no cover
        pytest.fail(f"{package} is required by the wheel and is not in this environment; run `make requirements`")
    for top in {file.parts[0] for file in files if file.parts[0] not in ("..", "__pycache__")}:
        target = folder / top
        if not target.exists():
            target.symlink_to(Path(str(distribution(package).locate_file(top))))
