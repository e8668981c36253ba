"""A node that runs the pods of `deploy/` as local processes, on a real API server: `async with PodProcesses(…)`.

It does what a scheduler, a kubelet and cluster DNS do for these pods: it binds them; runs init containers and the container
with arguments, environment, config maps, secrets and a token of the service account; probes readiness; restarts; sends SIGTERM
at a deletion, and SIGKILL after the grace period. Every pod has a loopback address of its own. It runs no image, and enforces
neither limits nor network policies.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

import programs
from kube.access import Access, ApiRefused
from kube.kubelet import Kubelet, Object

KEPT = ("PATH", "LANG", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV")
STEP_SECONDS = 0.2


@dataclass
class Running:
    """What runs of a pod: one container at a time, the init containers first."""

    ip: str
    home: Path
    containers: list[Object]
    at: int = 0
    process: programs.Started | None = None
    restarts: int = 0
    kill_at: float | None = None
    codes: list[int] = field(default_factory=list)

    @property
    def is_last(self) -> bool:
        return self.at == len(self.containers) - 1


class NotYet(Exception):
    """Something that the pod refers to does not exist; a kubelet waits for it."""


class PodProcesses(Kubelet):
    """`addresses` has the fixed address of each service; `shared` is what pods see as /shared."""

    def __init__(self, access: Access, folder: Path, addresses: dict[str, str]) -> None:
        super().__init__(access)
        self.folder, self.shared, self.addresses = folder, folder / "shared", addresses
        self.running: dict[str, Running] = {}
        self.held: set[str] = set()  # values of the label `app` whose pods are not started
        self.refused: list[str] = []
        self._next = iter(range(10, 250))
        self._http = httpx2.AsyncClient(trust_env=False, timeout=5)

    async def __aenter__(self) -> PodProcesses:
        self.shared.mkdir(parents=True)
        await self.register()
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        for one in self.running.values():
            if one.process is not None and one.process.poll() is None:
                one.process.kill_group()
        await self._http.aclose()
        await self.close()

    def log(self, pod_name: str) -> str:
        """The output of all containers of a pod."""
        return "".join(path.read_text(errors="replace") for path in sorted((self.folder / pod_name).glob("*.log")))

    def kill(self, pod: Object) -> None:
        """SIGKILL for everything that runs of a pod, as when its node loses power."""
        process = self.running[pod["metadata"]["uid"]].process
        assert process is not None
        process.kill_group()

    # ------------------------------------------------------------------------------------------------- the loop

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(httpx2.HTTPError):
                for pod in (await self.api.get(self.api.path("pods")))["items"]:
                    try:
                        await self._step(pod)
                    except NotYet as missing:
                        self.refused.append(str(missing))
                    except ApiRefused as refused:  # the pod was deleted or changed meanwhile
                        self.refused.append(f"{pod['metadata']['name']}: {refused}")
            await asyncio.sleep(STEP_SECONDS)

    async def _step(self, pod: Object) -> None:
        one, phase = self.running.get(pod["metadata"]["uid"]), pod["status"]["phase"]
        if pod["metadata"].get("deletionTimestamp"):
            await self._end_deleted(pod, one)
        elif one is None:
            if phase == "Pending" and pod["metadata"]["labels"].get("app") not in self.held:
                await self._begin(pod)
        elif phase in ("Pending", "Running"):
            await self._continue(pod, one)

    async def _begin(self, pod: Object) -> None:
        if not pod["spec"].get("nodeName"):
            pod = await self.bind(pod["metadata"]["name"])
        app, spec = pod["metadata"]["labels"]["app"], pod["spec"]
        ip = self.addresses.get(app) or f"127.0.7.{next(self._next)}"
        one = Running(ip, self.folder / pod["metadata"]["name"], [*spec.get("initContainers", ()), *spec["containers"]])
        one.home.mkdir(exist_ok=True)
        await self._start(pod, one)
        self.running[pod["metadata"]["uid"]] = one

    async def _continue(self, pod: Object, one: Running) -> None:
        assert one.process is not None
        name, code = pod["metadata"]["name"], one.process.poll()
        if code is None:
            if one.is_last and not pod["status"]["containerStatuses"][0]["ready"] and await self._is_ready(pod, one):
                await self.ready(name, ip=one.ip)
            return
        one.codes.append(code)
        if code == 0 and not one.is_last:
            one.at += 1
            await self._start(pod, one)
        elif one.is_last and pod["spec"]["restartPolicy"] == "Always":
            one.restarts += 1
            await self._start(pod, one)
        elif pod["status"]["phase"] != "Failed":
            await self.end(name, 128 - code if code < 0 else code, "Error" if code else "Completed")

    async def _end_deleted(self, pod: Object, one: Running | None) -> None:
        process = one.process if one is not None else None
        if one is not None and process is not None and process.poll() is None:
            now = time.monotonic()
            if one.kill_at is None:
                one.kill_at = now + pod["metadata"]["deletionGracePeriodSeconds"]
                process.send_signal(signal.SIGTERM)
            elif now > one.kill_at:
                process.kill_group()
            return
        await self.confirm_deletion(pod["metadata"]["name"])

    # ------------------------------------------------------------------------------------------------- one container

    async def _start(self, pod: Object, one: Running) -> None:
        container = one.containers[one.at]
        mounts = await self._mounted(pod, container, one)
        environment = {key: os.environ[key] for key in KEPT if key in os.environ} | {"HOME": str(one.home)}
        for key, value in (await self._variables(pod, container)).items():
            environment[key] = self._placed(value, mounts)
        if pod["spec"].get("automountServiceAccountToken"):
            environment["HOLDFAST_KUBERNETES_KUBECONFIG"] = str(await self._kubeconfig(pod, one))
        words = [self._placed(word.replace("0.0.0.0", one.ip), mounts) for word in container["args"]]
        with (one.home / f"{one.at}-{one.restarts}.log").open("w") as log:
            one.process = programs.start(*words, env=environment, folder=one.home, out=log, err=log, session=True)
        if one.is_last:
            await self.run(pod["metadata"]["name"], ip=one.ip)

    def _placed(self, text: str, mounts: dict[str, Path]) -> str:
        """Paths of volumes and names of services, as they are for a process of this machine."""
        for path, folder in mounts.items():
            if text == path or text.startswith(f"{path}/"):
                return str(folder) + text.removeprefix(path)
        for name, ip in self.addresses.items():
            text = text.replace(f"//{name}.{self.api.access.namespace}.svc:", f"//{ip}:").replace(f"//{name}:", f"//{ip}:")
        return text

    async def _mounted(self, pod: Object, container: Object, one: Running) -> dict[str, Path]:
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", ())}
        found = {"/shared": self.shared}
        for mount in container.get("volumeMounts", ()):
            folder = one.home / mount["name"]
            folder.mkdir(exist_ok=True)
            found[mount["mountPath"]] = folder
            if "secret" in volumes[mount["name"]]:
                for key, value in (await self._data("secrets", volumes[mount["name"]]["secret"]["secretName"])).items():
                    (folder / key).write_text(value)
        return found

    async def _variables(self, pod: Object, container: Object) -> dict[str, str]:
        found: dict[str, str] = {}
        for source in container.get("envFrom", ()):
            found |= await self._data("configmaps", source["configMapRef"]["name"])
        for one in container.get("env", ()):
            value = one["value"] if "value" in one else await self._looked_up(pod, one["valueFrom"])
            if value is not None:
                found[one["name"]] = value
        return found

    async def _looked_up(self, pod: Object, source: Object) -> str | None:
        if "fieldRef" in source:
            assert source["fieldRef"]["fieldPath"] == "metadata.name"
            return str(pod["metadata"]["name"])
        plural, key = ("secrets", "secretKeyRef") if "secretKeyRef" in source else ("configmaps", "configMapKeyRef")
        wanted = source[key]
        try:
            return (await self._data(plural, wanted["name"]))[wanted["key"]]
        except (NotYet, KeyError):
            if wanted.get("optional"):
                return None
            raise NotYet(f"{wanted['name']}/{wanted['key']}") from None

    async def _data(self, plural: str, name: str) -> dict[str, str]:
        try:
            data = (await self.api.get(self.api.path(plural, name)))["data"]
        except ApiRefused as refused:
            raise NotYet(f"{plural}/{name}: {refused.code}") from None
        return {key: base64.b64decode(value).decode() for key, value in data.items()} if plural == "secrets" else data

    async def _kubeconfig(self, pod: Object, one: Running) -> Path:
        """A token of the pod's service account, with its rights and no others."""
        account = self.api.path("serviceaccounts", f"{pod['spec']['serviceAccountName']}/token")
        made = await self.api.create(account, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}})
        file, ours = one.home / "kubeconfig", self.api.access
        Access(ours.url, made["status"]["token"], ours.namespace, file, ours.ca_file).write_kubeconfig()
        return file

    async def _is_ready(self, pod: Object, one: Running) -> bool:
        """The readiness probe, without its initial delay."""
        probe = one.containers[one.at].get("readinessProbe")
        if probe is None:
            return True
        try:
            answer = await self._http.get(f"http://{one.ip}:8080{probe['httpGet']['path']}")
        except httpx2.HTTPError:
            return False
        return answer.status_code < 400


def parsed(text: str) -> list[Any]:
    """The lines of a log that are JSON."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]
