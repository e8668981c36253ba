"""The CRDs of the operators that `deploy/` uses, from their Go modules: KEDA and the Prometheus operator."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import yaml

# Module, version and checksum.
KEDA = "github.com/kedacore/keda/v2", "2.21.0", "h1:R6z2HZvstK4RLUMxroNACzBj74xGxt3kG59b5Xc+Xps="
PROMETHEUS = (
    "github.com/prometheus-operator/prometheus-operator",
    "0.85.0",
    "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=",
)
CRDS_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def environment() -> dict[str, str]:
    """How Go is run: as it is installed, and without changes of what is pinned."""
    return {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-buildvcs=false -modcacherw -mod=readonly"}


def downloaded(module: str, version: str, checksum: str) -> Path:
    """The folder of a module, in Go's cache."""
    asked = ["go", "mod", "download", "-json", f"{module}@v{version}"]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(asked, env=environment(), cwd=folder, check=True, capture_output=True)
    found = json.loads(done.stdout)
    if found["Sum"] != checksum:
        raise RuntimeError(f"{module} {version} has the checksum {found['Sum']}, not {checksum}")
    return Path(found["Dir"])


def crds_of_keda() -> list[dict[str, Any]]:
    done = subprocess.run(["kubectl", "kustomize", downloaded(*KEDA) / "config/crd"], check=True, capture_output=True)
    return list(yaml.safe_load_all(done.stdout))


def crds_of_prometheus() -> list[dict[str, Any]]:
    folder = downloaded(*PROMETHEUS) / "example/prometheus-operator-crd"
    names = ("podmonitors", "prometheusrules")
    return [yaml.safe_load((folder / f"monitoring.coreos.com_{name}.yaml").read_text()) for name in names]
