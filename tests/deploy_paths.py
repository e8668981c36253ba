"""Where the parts of `deploy/` are, and what kustomize makes of them."""

from __future__ import annotations

import copy
import functools
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"


@functools.cache
def rendered(folder: str) -> str:
    """The output of `kubectl kustomize`, which needs no cluster."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    done = subprocess.run(["kubectl", "kustomize", str(DEPLOY / folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@functools.cache
def parsed(folder: str) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(rendered(folder)) if one]


def documents(folder: str) -> list[dict[str, Any]]:
    """The objects that an overlay or a base consists of; the caller may change them."""
    return copy.deepcopy(parsed(folder))


def workloads(folder: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Each object that makes pods, with the specification of its pods."""
    found = []
    for one in documents(folder):
        if one["kind"] in ("Deployment", "StatefulSet", "Job"):
            found.append((one, one["spec"]["template"]["spec"]))
        elif one["kind"] == "ScaledJob":
            found.append((one, one["spec"]["jobTargetRef"]["template"]["spec"]))
    return found


def containers(folder: str) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    return [
        (one["metadata"]["name"], pod, container)
        for one, pod in workloads(folder)
        for container in (*pod.get("initContainers", ()), *pod["containers"])
    ]


def named(folder: str, kind: str, name: str) -> dict[str, Any]:
    return next(one for one in documents(folder) if (one["kind"], one["metadata"]["name"]) == (kind, name))
