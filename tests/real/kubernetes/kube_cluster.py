"""A real API server, controller-manager and etcd on loopback: built once, started in a few seconds, killed at the end.

They are built with Go from the modules that `control_plane/go.mod` pins, into a cache outside of the repository
(`HOLDFAST_KUBE_CACHE`, default ~/.cache/holdfast-kube). There is no scheduler and no real kubelet: tests play both.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import ipaddress
import json
import os
import re
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlencode

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

MODULE = Path(__file__).parent / "control_plane"
PROGRAMS = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
}
PATIENCE = 180.0


def cache() -> Path:
    return Path(os.environ.get("HOLDFAST_KUBE_CACHE", "~/.cache/holdfast-kube")).expanduser()


def build() -> Path:
    """The folder with the programs; those that are missing are built."""
    version = re.search(r"k8s\.io/kubernetes v(\S+)", (MODULE / "go.mod").read_text())
    assert version is not None
    folder = cache() / version[1]
    folder.mkdir(parents=True, exist_ok=True)
    stamp = "k8s.io/component-base/version"
    flags = f"-s -w -X {stamp}.gitVersion=v{version[1]} -X {stamp}.gitMajor=1 -X {stamp}.gitMinor={version[1].split('.')[1]}"
    environment = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-buildvcs=false -modcacherw -mod=readonly"}
    for name, package in PROGRAMS.items():
        if not (folder / name).exists():
            if shutil.which("go") is None:
                raise RuntimeError(f"{name} is not built and there is no Go on this machine; install Go 1.26 or newer")
            part = folder / f".{name}.{os.getpid()}"
            command = ["nice", "-n", "5", "go", "build", "-trimpath", "-ldflags", flags, "-o", str(part), package]
            subprocess.run(command, cwd=MODULE, env={**os.environ, **environment}, check=True)
            part.rename(folder / name)
    return folder


@dataclass
class KubeCluster:
    """One control plane. `admin` may do everything; `holdfast` nothing until a Role says so."""

    has_keda: ClassVar[bool] = False
    folder: Path
    tokens: dict[str, str] = field(default_factory=lambda: {"admin": secrets.token_hex(16), "holdfast": secrets.token_hex(16)})
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.etcd_port, self.peer_port, self.api_port, self.manager_port = (free_port() for _ in range(4))

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.api_port}"

    @property
    def ca_file(self) -> Path:
        return self.folder / "pki" / "ca.crt"

    def start(self) -> None:
        """Start everything and wait until pods can be created."""
        self.programs = build()
        write_keys(self.folder / "pki")
        groups = {"admin": "system:masters", "holdfast": "holdfast"}
        lines = [f'{token},{user},{user},"{groups[user]}"\n' for user, token in self.tokens.items()]
        (self.folder / "tokens.csv").write_text("".join(lines))
        self.start_etcd()
        self.start_api_server()
        self.start_controller_manager()

    def start_etcd(self) -> None:
        client, peer = f"http://127.0.0.1:{self.etcd_port}", f"http://127.0.0.1:{self.peer_port}"
        settings = {
            "data-dir": self.folder / "etcd",
            "log-level": "warn",
            "listen-client-urls": client,
            "listen-peer-urls": peer,
        }
        settings |= {"advertise-client-urls": client, "initial-advertise-peer-urls": peer, "initial-cluster": f"default={peer}"}
        self._start("etcd", "--unsafe-no-fsync", *self.flags(settings))
        self._wait("etcd", lambda: b"true" in self._read(f"{client}/health"))

    def start_api_server(self) -> None:
        self._start("kube-apiserver", *self.flags(self.api_server_settings()))
        self._wait("kube-apiserver", lambda: self.get("/readyz") == b"ok")

    def api_server_settings(self) -> dict[str, Any]:
        pki = self.folder / "pki"
        return {
            "etcd-servers": f"http://127.0.0.1:{self.etcd_port}",
            "bind-address": "127.0.0.1",
            "advertise-address": "127.0.0.1",
            "secure-port": self.api_port,
            "endpoint-reconciler-type": "none",
            "service-cluster-ip-range": "10.96.0.0/16",
            "authorization-mode": "RBAC",
            "token-auth-file": self.folder / "tokens.csv",
            "tls-cert-file": pki / "server.crt",
            "tls-private-key-file": pki / "server.key",
            "client-ca-file": pki / "ca.crt",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": pki / "accounts.key",
            "service-account-signing-key-file": pki / "accounts.key",
            "kubelet-preferred-address-types": "InternalIP",
            "profiling": "false",
        }

    def start_controller_manager(self) -> None:
        cluster = {"server": self.url, "certificate-authority": str(self.ca_file)}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": self.tokens["admin"]}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }
        (self.folder / "admin.kubeconfig").write_text(json.dumps(content))
        self._start("kube-controller-manager", *self.flags(self.manager_settings()))
        # Pods can be created as soon as the namespace has its default service account.
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        self._wait("kube-controller-manager", lambda: bool(self.get(account)))

    def manager_settings(self) -> dict[str, Any]:
        pki = self.folder / "pki"
        return {
            "kubeconfig": self.folder / "admin.kubeconfig",
            "bind-address": "127.0.0.1",
            "secure-port": self.manager_port,
            "leader-elect": "false",
            "service-account-private-key-file": pki / "accounts.key",
            "root-ca-file": pki / "ca.crt",
            "profiling": "false",
        }

    def kill_api_server(self) -> None:
        """Without a word, as a node that loses power. etcd keeps everything."""
        self._kill("kube-apiserver")

    def compact(self) -> None:
        """Let etcd forget the history; older continue tokens and versions are gone."""
        root = f"http://127.0.0.1:{self.etcd_port}/v3/kv"
        found = json.loads(self._read(f"{root}/range", json.dumps({"key": base64.b64encode(b"/").decode()}).encode()))
        revision = found["header"]["revision"]
        self._read(f"{root}/compaction", json.dumps({"revision": revision, "physical": True}).encode())

    def stop(self) -> None:
        for name in list(self.processes):
            self._kill(name)

    def get(self, path: str) -> bytes:
        return self._read(self.url + path)

    def apply(self, collection: str, content: dict[str, Any], **parameters: str) -> dict[str, Any]:
        """Server-side apply, as `kubectl apply --server-side`; an unknown field is an error."""
        asked = urlencode({"fieldManager": "test", "force": "true", "fieldValidation": "Strict", **parameters})
        url = f"{self.url}{collection}/{content['metadata']['name']}?{asked}"
        answer: dict[str, Any] = json.loads(
            self._read(url, json.dumps(content).encode(), method="PATCH", kind="application/apply-patch+yaml")
        )
        return answer

    def wait_for(self, *paths: str) -> None:
        """Wait until the server answers these: a group of a new CRD is served a moment later."""
        for path in paths:
            self._wait("kube-apiserver", lambda path=path: bool(json.loads(self.get(path))["resources"]))  # type: ignore[misc]

    @staticmethod
    def flags(settings: dict[str, Any]) -> Iterable[str]:
        return [f"--{name}={value}" for name, value in settings.items()]

    def _start(
        self, name: str, *arguments: str, program: Path | None = None, environment: dict[str, str] | None = None
    ) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            command = ["nice", "-n", "5", str(program or self.programs / name), *arguments]
            own = {**os.environ, **(environment or {})}
            self.processes[name] = subprocess.Popen(
                command, cwd=self.folder, env=own, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def _read(self, url: str, body: bytes | None = None, *, method: str | None = None, kind: str = "application/json") -> bytes:
        headers = {"Authorization": f"Bearer {self.tokens['admin']}", "Content-Type": kind}
        request = urllib.request.Request(url, body, headers, method=method)
        context = ssl.create_default_context(cafile=str(self.ca_file)) if url.startswith("https") else None
        with urllib.request.urlopen(request, context=context, timeout=10) as reply:
            return bytes(reply.read())

    def _wait(self, name: str, is_ready: Callable[[], bool]) -> None:
        give_up = time.monotonic() + PATIENCE
        while time.monotonic() < give_up and self.processes[name].poll() is None:
            with contextlib.suppress(urllib.error.URLError, OSError):
                if is_ready():
                    return
            time.sleep(0.05)
        end = (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]
        raise RuntimeError(f"{name} did not become ready; the end of its log:\n{end}")


def write_keys(folder: Path) -> None:
    """An authority, certificates of it for servers on loopback and for the API server as a client of others, and a key that
    signs tokens of service accounts."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority, server, proxy, accounts = (ec.generate_private_key(ec.SECP256R1()) for _ in range(4))
    own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube-tests")])
    ca = _certificate(own, authority, own, authority).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    names = (x509.DNSName(name) for name in ("localhost", "keda-metrics-apiserver.keda.svc"))
    loopback = [*names, *(x509.IPAddress(ipaddress.ip_address(each)) for each in ("127.0.0.1", "10.96.0.1"))]
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube-apiserver")])
    made = _certificate(subject, server, own, authority).add_extension(x509.SubjectAlternativeName(loopback), critical=False)
    client = _certificate(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "front-proxy")]), proxy, own, authority)
    pem = serialization.Encoding.PEM
    (folder / "ca.crt").write_bytes(ca.sign(authority, hashes.SHA256()).public_bytes(pem))
    (folder / "server.crt").write_bytes(made.sign(authority, hashes.SHA256()).public_bytes(pem))
    (folder / "front-proxy.crt").write_bytes(client.sign(authority, hashes.SHA256()).public_bytes(pem))
    for name, key in (("server", server), ("front-proxy", proxy), ("accounts", accounts)):
        plain = serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        (folder / f"{name}.key").write_bytes(key.private_bytes(pem, *plain))


def _certificate(
    subject: x509.Name, key: ec.EllipticCurvePrivateKey, issuer: x509.Name, signer: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    today = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key.public_key())
    made = made.serial_number(x509.random_serial_number()).not_valid_before(today - datetime.timedelta(days=1))
    made = made.not_valid_after(today + datetime.timedelta(days=7))
    return made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False).add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
