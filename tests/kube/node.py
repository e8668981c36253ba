"""A node that takes every pod by itself: `async with Node(access)`. `ProcessNode` runs the program of a pod as a local process.

It polls, so it needs nothing of the API server but reads and the reports of a kubelet. It binds pods: there is no scheduler.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx2

from kube.access import Access, ApiRefused
from kube.kubelet import Kubelet, Object

COMMAND = (sys.executable, "-m", "holdfast")
# Of this process's pods: two runs of the tests on one machine must not share it.
NETWORK = f"127.{1 + os.getpid() // 256 % 254}.{os.getpid() % 256}"
KEPT = ("PATH", "LANG", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV")


class Node(Kubelet):
    """Every pod becomes ready, is resized when that is asked for, and ends when it is deleted."""

    def __init__(self, access: Access, name: str = "node-1") -> None:
        super().__init__(access, name)
        self.held: set[str] = set()  # pods that do not become ready
        self.stuck: set[str] = set()  # pods whose deletion is never confirmed
        self.unhandled: list[str] = []

    async def __aenter__(self) -> Node:
        await self.register()
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self.stop_all()
        await self.close()

    async def _run(self) -> None:
        while True:
            try:
                for pod in (await self.api.get(self.api.path("pods")))["items"]:
                    await self._step(pod)
            except (ApiRefused, httpx2.HTTPError) as error:  # the server is away, or the pod was deleted meanwhile
                self.unhandled.append(repr(error))
            await asyncio.sleep(0.03)

    async def _step(self, pod: Object) -> None:
        name, status = pod["metadata"]["name"], pod.get("status", {})
        if pod["metadata"].get("deletionTimestamp"):
            if name not in self.stuck:
                await self.stop(pod)
                await self.confirm_deletion(name)
        elif status.get("phase") == "Pending" and name not in self.held:
            await self.start(await self.bind(name) if not pod["spec"].get("nodeName") else pod)
        elif status.get("phase") == "Running":
            await self._keep(pod)

    async def _keep(self, pod: Object) -> None:
        name, container = pod["metadata"]["name"], pod["status"]["containerStatuses"][0]
        asked = pod["spec"]["containers"][0]["resources"]
        if await self.has_ended(pod):
            return
        if (not container["ready"] and await self.is_ready(pod)) or (
            container["ready"] and container.get("resources") != asked
        ):
            await self.ready(name, ip=pod["status"]["podIP"])

    async def start(self, pod: Object) -> None:
        await self.run(pod["metadata"]["name"])

    async def stop(self, pod: Object) -> None:
        """The container of a deleted pod ends."""

    async def stop_all(self) -> None:
        """Nothing of this node runs afterwards."""

    async def is_ready(self, pod: Object) -> bool:
        return True

    async def has_ended(self, pod: Object) -> bool:
        return False


class ProcessNode(Node):
    """Runs the first container of a pod as a process: arguments, environment, secrets, volumes, probes and its log."""

    def __init__(self, access: Access, folder: Path, name: str = "node-1") -> None:
        super().__init__(access, name)
        self.folder, self.processes, self.oom = folder, dict[str, subprocess.Popen[bytes]](), set[str]()
        self._addresses = iter(range(1, 250))
        self.http = httpx2.AsyncClient(trust_env=False, timeout=5)

    def log(self, pod_name: str) -> str:
        file = self.folder / pod_name / "log"
        return file.read_text(errors="replace") if file.exists() else ""

    async def start(self, pod: Object) -> None:
        """Each pod has a loopback address of its own, so all of them can listen on the same port."""
        ip, name = f"{NETWORK}.{next(self._addresses)}", pod["metadata"]["name"]
        home = self.folder / name
        paths = await self._mount(pod, home)
        environment = {key: os.environ[key] for key in KEPT if key in os.environ}
        for each in pod["spec"]["containers"][0]["env"]:
            environment[each["name"]] = await self._value(each, paths, name)
        environment["HOLDFAST_GRAPH_HOST"] = ip
        with (home / "log").open("wb") as log:
            arguments = [*COMMAND, *pod["spec"]["containers"][0]["args"]]
            self.processes[pod["metadata"]["uid"]] = subprocess.Popen(  # noqa: ASYNC220 - a node may block for a moment
                arguments, env=environment, cwd=home, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        await self.run(name, ip=ip)

    async def _mount(self, pod: Object, home: Path) -> dict[str, Path]:
        """A folder for every volume; those of secrets have their files."""
        home.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240
        folders = {}
        for volume in pod["spec"]["volumes"]:
            folder = home / volume["name"]
            folder.mkdir(exist_ok=True)
            folders[volume["name"]] = folder
            if "secret" in volume:
                for key, value in (await self._secret(volume["secret"]["secretName"])).items():
                    (folder / key).write_bytes(value)
        mounts = pod["spec"]["containers"][0]["volumeMounts"]
        return {mount["mountPath"]: folders[mount["name"]] for mount in mounts if mount["name"] in folders}

    async def _value(self, variable: Object, paths: dict[str, Path], name: str) -> str:
        if "valueFrom" in variable:
            if "fieldRef" in variable["valueFrom"]:
                return name  # the only field that our pods ask for
            wanted = variable["valueFrom"]["secretKeyRef"]
            return (await self._secret(wanted["name"]))[wanted["key"]].decode()
        value = str(variable["value"])
        for path, folder in paths.items():
            if value == path or value.startswith(f"{path}/"):
                return str(folder) + value.removeprefix(path)
        return value

    async def _secret(self, name: str) -> dict[str, bytes]:
        found = await self.api.get(self.api.path("secrets", name))
        return {key: base64.b64decode(value) for key, value in found["data"].items()}

    async def is_ready(self, pod: Object) -> bool:
        """The readiness probe."""
        container = pod["spec"]["containers"][0]
        probe, port = container["readinessProbe"]["httpGet"], container["ports"][0]["containerPort"]
        try:
            answer = await self.http.get(f"http://{pod['status']['podIP']}:{port}{probe['path']}")
        except httpx2.HTTPError:
            return False
        return answer.status_code < 400

    async def has_ended(self, pod: Object) -> bool:
        process = self.processes.get(pod["metadata"]["uid"])
        if process is None or process.poll() is None:
            return False
        name, code = pod["metadata"]["name"], process.returncode
        reason = "OOMKilled" if pod["metadata"]["uid"] in self.oom else "Error" if code else "Completed"
        await self.end(name, 128 - code if code < 0 else code, reason, "".join(self.log(name).splitlines(True)[-20:])[-2000:])
        return True

    async def kill_for_memory(self, name: str) -> None:
        """What the kernel does with a process that is over its limit."""
        pod = await self.pod(name)
        self.oom.add(pod["metadata"]["uid"])
        self.processes[pod["metadata"]["uid"]].kill()

    async def stop(self, pod: Object) -> None:
        process = self.processes.pop(pod["metadata"]["uid"], None)
        if process is not None:
            await _ended(process)

    async def stop_all(self) -> None:
        for process in self.processes.values():
            await _ended(process)
        await self.http.aclose()


async def _ended(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(20):
            while process.poll() is None:
                await asyncio.sleep(0.02)
    except TimeoutError:
        process.kill()
        process.wait()
