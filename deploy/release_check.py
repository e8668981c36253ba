"""Check a release: build sdist and wheel, install the wheel in clean environments, run the demo. By: `make release-check`.

Each extra is installed alone and all of them together, from the package index, with uv. In each environment the package is
imported and the modules of the extra are loaded. With all extras `holdfast up` plays the demo of the README on its own embedded
Postgres. Nothing is uploaded.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOAD = """
import importlib, sys
import holdfast
from holdfast.extras import EXTRAS
every = [name for names in EXTRAS.values() for name in names]
for name in every if sys.argv[1] == "all" else EXTRAS.get(sys.argv[1], ()):
    importlib.import_module(name)
print("imported", holdfast.__name__)
"""


def run(*words: str | Path, **how: object) -> str:
    """Run a command; what it printed. A failure ends the check with its output."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, **how)  # type: ignore[call-overload]
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return str(done.stdout)


def build(out: Path) -> Path:
    """Build both; the wheel is built from the sdist, so that the sdist has everything."""
    run("uv", "build", "--quiet", "--sdist", "--out-dir", out, ROOT)
    sdist = next(out.glob("*.tar.gz"))
    run("uv", "build", "--quiet", "--wheel", "--out-dir", out, sdist)
    return next(out.glob("*.whl"))


def check(wheel: Path, extra: str, folder: Path) -> None:
    """Install the wheel with one extra, and load what the extra brings."""
    target = folder / (extra or "base")
    run("uv", "venv", "--quiet", target)
    name = f"holdfast-jobs[{extra}] @ file://{wheel}" if extra else f"holdfast-jobs @ file://{wheel}"
    run(
        "uv",
        "pip",
        "install",
        "--quiet",
        "--python",
        target / "bin/python",
        "--constraint",
        ROOT / "requirements/all.txt",
        name,
    )
    run(target / "bin/python", "-I", "-c", LOAD, extra or "none", cwd=folder)
    if extra in ("all", "cli", "server"):
        run(target / "bin/holdfast", "--version", cwd=folder)
    if extra == "all":
        run(target / "bin/holdfast", "up", "--no-stay", "--port", "0", "--data", folder / "postgres", cwd=folder)


def main() -> None:
    """Everything, one after the other."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel = build(folder / "dist")
        for extra in ("", *(one for one in extras if one != "all"), "all"):
            check(wheel, extra, folder)
            print(f"ok  {extra or 'base'}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
