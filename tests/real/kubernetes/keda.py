"""KEDA on a control plane of ours: its operator and its metrics server, built once with Go, as processes on loopback.

They are built from the module that `operators` pins, into the cache of `kube_cluster`. One line is changed: the
metrics server would serve its own /metrics on all interfaces, and has no flag for it. Admission webhooks are left out.
"""

from __future__ import annotations

import base64
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from kube_cluster import KubeCluster, cache, free_port
from operators import CRDS_PATH, KEDA, crds_of_keda, downloaded, environment

PROGRAMS = {"keda-operator": "./cmd/operator", "keda-adapter": "./cmd/adapter"}
EVERYWHERE, LOOPBACK = 'Sprintf(":%v", metricsAPIServerPort)', 'Sprintf("127.0.0.1:%v", metricsAPIServerPort)'
GROUP = "external.metrics.k8s.io"


def build() -> Path:
    """The folder with the programs; those that are missing are built. The operator takes 12 minutes of two cores."""
    folder = cache() / f"keda-{KEDA[1]}"
    folder.mkdir(parents=True, exist_ok=True)
    missing = [name for name in PROGRAMS if not (folder / name).exists()]
    if not missing:
        return folder
    if shutil.which("go") is None:
        raise RuntimeError(f"{', '.join(missing)} is not built and there is no Go on this machine; install Go 1.26 or newer")
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        source = _source(Path(scratch) / "keda")
        for name in missing:
            _compile(source, name, folder)
    return folder


def _source(folder: Path) -> Path:
    """A copy of the module, changed as far as that is necessary."""
    shutil.copytree(downloaded(*KEDA), folder, copy_function=shutil.copy)
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode | 0o200)
    main = folder / "cmd/adapter/main.go"
    text = main.read_text()
    assert text.count(EVERYWHERE) == 1
    main.write_text(text.replace(EVERYWHERE, LOOPBACK))
    return folder


def _compile(source: Path, name: str, folder: Path) -> None:
    flags = f"-s -w -X {KEDA[0]}/version.Version={KEDA[1]}"
    command = ["nice", "-n", "5", "go", "build", "-trimpath", "-ldflags", flags, "-o", f"{source}/{name}", PROGRAMS[name]]
    subprocess.run(command, cwd=source, env=environment(), check=True)
    (source / name).rename(folder / name)


@dataclass
class KedaCluster(KubeCluster):
    """A control plane whose controllers look at metrics every 2 s instead of 15, with KEDA's CRDs; `start_keda` starts KEDA."""

    has_keda: ClassVar[bool] = True

    def api_server_settings(self) -> dict[str, Any]:
        """The API server forwards requests for external metrics to KEDA, with a certificate of its own."""
        pki = self.folder / "pki"
        return super().api_server_settings() | {
            "requestheader-client-ca-file": pki / "ca.crt",
            "requestheader-allowed-names": "front-proxy",
            "requestheader-username-headers": "X-Remote-User",
            "requestheader-group-headers": "X-Remote-Group",
            "requestheader-extra-headers-prefix": "X-Remote-Extra-",
            "proxy-client-cert-file": pki / "front-proxy.crt",
            "proxy-client-key-file": pki / "front-proxy.key",
        }

    def manager_settings(self) -> dict[str, Any]:
        return super().manager_settings() | {"horizontal-pod-autoscaler-sync-period": "2s"}

    def start_keda(self) -> None:
        """Start both programs and wait until the API server gets metrics from them."""
        self.keda_programs = build()
        for crd in crds_of_keda():
            self.apply(CRDS_PATH, crd)
        self.wait_for("/apis/keda.sh/v1alpha1")
        grpc, metrics, probe, adapter, adapter_metrics = (free_port() for _ in range(5))
        self._register(adapter)
        pki, config = self.folder / "pki", self.folder / "admin.kubeconfig"
        certificates = self.folder / "keda"
        certificates.mkdir()
        for ours, theirs in (("ca.crt", "ca.crt"), ("server.crt", "tls.crt"), ("server.key", "tls.key")):
            shutil.copy(pki / ours, certificates / theirs)
        operator = {
            "kubeconfig": config,
            "cert-dir": certificates,
            "metrics-bind-address": f"127.0.0.1:{metrics}",
            "health-probe-bind-address": f"127.0.0.1:{probe}",
            "metrics-service-bind-address": f"127.0.0.1:{grpc}",
        }
        self._start_keda("keda-operator", operator)
        self._wait("keda-operator", lambda: bool(self._read(f"http://127.0.0.1:{probe}/readyz")))
        same = ("kubeconfig", "lister-kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
        server = {
            **dict.fromkeys(same, config),
            "bind-address": "127.0.0.1",
            "secure-port": adapter,
            "port": adapter_metrics,
            "metrics-service-address": f"localhost:{grpc}",
            "cert-dir": certificates,
            "client-ca-file": certificates / "ca.crt",
            "tls-cert-file": certificates / "tls.crt",
            "tls-private-key-file": certificates / "tls.key",
        }
        self._start_keda("keda-adapter", server)
        self._wait("keda-adapter", lambda: b"ExternalMetricValueList" in self.get(f"/apis/{GROUP}/v1beta1"))

    def _register(self, port: int) -> None:
        """There is no kube-proxy: the service of KEDA's metrics server is a name for loopback."""
        ca = base64.b64encode(self.ca_file.read_bytes()).decode()
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "keda"}}
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "keda-metrics-apiserver", "namespace": "keda"},
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        }
        registration = {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": f"v1beta1.{GROUP}"},
            "spec": {
                "group": GROUP,
                "version": "v1beta1",
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
                "caBundle": ca,
                "service": {"name": "keda-metrics-apiserver", "namespace": "keda", "port": port},
            },
        }
        self.apply("/api/v1/namespaces", space)
        self.apply("/api/v1/namespaces/keda/services", service)
        self.apply("/apis/apiregistration.k8s.io/v1/apiservices", registration)

    def _start_keda(self, name: str, settings: dict[str, Any]) -> None:
        own = {"POD_NAMESPACE": "keda", "KEDA_CLUSTER_OBJECT_NAMESPACE": "keda", "WATCH_NAMESPACE": ""}
        self._start(name, *self.flags(settings), program=self.keda_programs / name, environment=own)
