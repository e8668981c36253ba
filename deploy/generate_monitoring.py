"""Write the generated files of this folder: `python deploy/generate_monitoring.py`. With `--check`, report what is not current.

- `dashboards/<uid>.json` and the kustomization that makes ConfigMaps of them, from `monitoring/dashboards/`
- `alerts/prometheusrule.yaml`, the rules of `alerts/*.yaml` as an object of the Prometheus operator

Dashboards and rules of services that are not registered are left out.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from monitoring import dashboards  # noqa: E402
from monitoring.panels import as_json  # noqa: E402

from holdfast import catalog  # noqa: E402

KERNEL_RULES = ("jobs", "loops", "api", "postgres")
MADE = "# Made by deploy/generate_monitoring.py. Change what it reads, then run it.\n"


def services() -> set[str]:
    """The registered services."""
    return {service.name for service in catalog.SERVICES}


def rule_files() -> list[Path]:
    """The rules of the kernel and of the registered services."""
    return [path for path in sorted((HERE / "alerts").glob("*.yaml")) if path.stem in (*KERNEL_RULES, *services())]


def files() -> dict[Path, str]:
    """Every generated file with its content."""
    shown = [one for one in dashboards.ALL if one.service is None or one.service in services()]
    made = {HERE / "dashboards" / f"{one.uid}.json": json.dumps(as_json(one, services()), indent=1) + "\n" for one in shown}
    groups = [group for path in rule_files() for group in yaml.safe_load(path.read_text())["groups"]]
    rule = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "holdfast", "labels": {"app.kubernetes.io/part-of": "holdfast"}},
        "spec": {"groups": groups},
    }
    made[HERE / "alerts" / "prometheusrule.yaml"] = MADE + _yaml(rule)
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "configMapGenerator": [{"name": f"dashboard-{one.uid}", "files": [f"{one.uid}.json"]} for one in shown],
        "generatorOptions": {
            "disableNameSuffixHash": True,
            "labels": {"grafana_dashboard": "1"},
            "annotations": {"grafana_folder": "Holdfast"},
        },
    }
    made[HERE / "dashboards" / "kustomization.yaml"] = MADE + _yaml(kustomization)
    return made


def _yaml(content: Any) -> str:
    return yaml.safe_dump(content, sort_keys=False, width=200)


def main(check: bool) -> int:
    wanted = files()
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    extra = [path for path in (HERE / "dashboards").glob("*.json") if path not in wanted]
    if not check:
        (HERE / "dashboards").mkdir(exist_ok=True)
        for path, text in wanted.items():
            path.write_text(text)
        for path in extra:
            path.unlink()
        return 0
    for path in (*stale, *extra):
        print(f"{path.relative_to(HERE.parent)} is not current: run `python deploy/generate_monitoring.py`")  # noqa: T201
    return 1 if stale or extra else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
