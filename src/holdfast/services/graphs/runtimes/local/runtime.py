"""The runtime `local`: each graph server is a process on this machine, under a supervisor in a session of its own.

Everything that it knows is in the folders (`folders.py`), so a restarted program finds its graph servers again, by instance id
and start token. A process id is used only together with the time when that process was started.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from holdfast.environment import passed_on
from holdfast.extras import lazily
from holdfast.services.graphs.runtimes.interface import ErrorCode, InstanceSpec, Observed, Reached, RuntimeFailed, Unknown
from holdfast.services.graphs.runtimes.local.folders import Folders, StartFolder, replace_text
from holdfast.services.graphs.server_status import ServerStatus, read_status
from holdfast.threads import in_thread

if TYPE_CHECKING:
    import httpx2
else:
    httpx2 = lazily("httpx2")

PROGRAM: Final = (sys.executable, "-m", "holdfast.services.graphs.server")  # holdfast graph-server, without the command line
SUPERVISOR: Final = str(Path(__file__).with_name("supervisor.py"))
GRACE_SECONDS, REMOVE_SECONDS, BIRTH_SECONDS = 3.0, 8.0, 10.0
PAUSE: Final = 0.02
AT_ONCE: Final = 20  # graph servers that are asked for their status at the same time
# A graph server gets what programs need to run and to reach object stores; never the database's address or our tokens.
KEPT_PREFIXES: Final = ("AWS_", "GOOGLE_", "HOLDFAST_S3_", "HOLDFAST_GCS_", "LC_", "SSL_", "PYTHON")
KEPT: Final = ("PATH", "HOME", "LANG", "TZ", "TMPDIR", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "USER", "LOGNAME")


class LocalRuntime:
    """Graph servers as processes of this machine."""

    name = "local"

    def __init__(self, root: Path, *, program: Sequence[str] = PROGRAM, grace_seconds: float = GRACE_SECONDS) -> None:
        self.folders = Folders(root)
        self._program, self._grace = tuple(program), grace_seconds
        self._client: httpx2.AsyncClient | None = None

    # -----------------------------------------------------------------------------------------------------------------
    # Starting
    # -----------------------------------------------------------------------------------------------------------------

    async def ensure(self, spec: InstanceSpec) -> Observed:
        """Adopt the process of this start, or start one."""
        seen = await self._observed(await in_thread(self._ensure, spec))
        if seen is None:
            raise Unknown(f"the start of instance {spec.instance_id} was removed meanwhile", retry_after=0.5)
        return seen

    def _ensure(self, spec: InstanceSpec) -> StartFolder:
        with self.folders.turn(spec.instance_id) as is_ours:
            if not is_ours:
                raise Unknown(f"another process starts or removes instance {spec.instance_id}", retry_after=0.5)
            self._replace_others(spec)
            folder = self.folders.start(spec.instance_id, spec.start_token)
            if folder.is_withdrawn and not self._remove(folder):
                raise Unknown(f"the removal of instance {spec.instance_id} has not ended yet", retry_after=1.0)
            if folder.order() is None:
                self._write_order(folder, spec)
            if not folder.is_alive() and folder.ended() is None:
                self._spawn(folder)
            return folder

    def _replace_others(self, spec: InstanceSpec) -> None:
        """Remove what earlier starts left. A later start means that the caller is a job that was replaced."""
        for other in self.folders.starts(spec.instance_id):
            if other.start_token == spec.start_token:
                continue
            order = other.order()
            if order is not None and order["fence_token"] > spec.fence_token:
                raise RuntimeFailed(f"instance {spec.instance_id} has a later start; this one was replaced")
            if not self._remove(other):
                raise Unknown(f"an earlier start of instance {spec.instance_id} has not ended yet", retry_after=1.0)

    def _write_order(self, folder: StartFolder, spec: InstanceSpec) -> None:
        """Everything that the supervisor needs. The order comes last: without it, the start has not begun."""
        (folder.path / "data").mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_text(folder.path / "plan.json", spec.plan.to_json())
        replace_text(folder.path / "limit_mb", str(spec.memory_mb))
        (folder.path / "lock").touch(mode=0o600)
        order = {
            "instance_id": spec.instance_id,
            "start_token": spec.start_token,
            "fence_token": spec.fence_token,
            "secret": spec.secret,
            "owner": spec.owner,
            "command": list(self._program),
            "environment": environment_of(spec, folder.path),
            "grace_seconds": self._grace,
        }
        replace_text(folder.path / "order.json", json.dumps(order))

    def _spawn(self, folder: StartFolder) -> None:
        """Start the supervisor, and wait until it has started the graph server: from then on the server has a name, and the
        death of its supervisor is noticed.

        It is started through a shell that ends at once, so it is nobody's child: no program has to wait for it.
        """
        command = [sys.executable, "-I", "-S", SUPERVISOR, str(folder.path)]
        with (folder.path / "supervisor.log").open("ab") as log:
            between = ["/bin/sh", "-c", '"$@" & exit 0', "sh", *command]
            subprocess.run(between, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, check=True)
        deadline = time.monotonic() + BIRTH_SECONDS
        while not (folder.is_alive() and folder.has_begun()) and folder.ended() is None:
            if time.monotonic() > deadline:
                said = (folder.path / "supervisor.log").read_text(errors="replace")[-500:]
                raise Unknown(f"the supervisor of instance {folder.instance_id} did not start in time: {said}")
            time.sleep(PAUSE)

    # -----------------------------------------------------------------------------------------------------------------
    # Looking
    # -----------------------------------------------------------------------------------------------------------------

    async def observe(self) -> list[Observed]:
        """Every start that has an order."""
        try:
            found = await in_thread(lambda: [one for i in self.folders.instances() for one in self.folders.starts(i)])
        except OSError as error:
            raise Unknown(f"{self.folders.root} cannot be read: {error}") from None
        limit = asyncio.Semaphore(AT_ONCE)

        async def one(folder: StartFolder) -> Observed | None:
            async with limit:
                return await self._observed(folder)

        return [seen for seen in await asyncio.gather(*map(one, found)) if seen is not None]

    async def look(self, instance_id: int) -> Observed | None:
        """The newest start of an instance."""
        seen = [await self._observed(one) for one in await in_thread(self.folders.starts, instance_id)]
        return max((one for one in seen if one is not None), key=lambda one: one.fence_token, default=None)

    async def _observed(self, folder: StartFolder) -> Observed | None:
        """What there is of one start; None if it has no order, or was removed while we looked."""
        try:
            order, facts = await in_thread(lambda: (folder.order(), _facts(folder)))
        except FileNotFoundError:
            return None
        if order is None:
            return None
        status = None
        if facts["alive"] and facts["address"] is not None:
            status = await read_status(self._http(), facts["address"], order["secret"])
            if status is not None and status.phase == "ready" and not facts["was_ready"]:
                await in_thread((folder.path / "ready").touch)
        phase, reason, message = verdict(facts, status, folder.start_token)
        return Observed(
            instance_id=order["instance_id"],
            start_token=order["start_token"],
            fence_token=order["fence_token"],
            phase=cast("Any", phase),
            created_at=facts["created_at"],
            address=facts["address"] if facts["alive"] else None,
            reason=reason,
            message=message,
            oom=reason == "OOM_KILLED",
            memory_bytes=facts["memory_bytes"],
            memory_limit_mb=facts["limit_mb"],
            name=f"pid {facts['child']}" if facts["child"] else None,
        )

    async def reach(self, instance_id: int, start_token: str) -> Reached | None:
        """From the order of this start, if its process lives."""
        folder = self.folders.start(instance_id, start_token)
        try:
            order, facts = await in_thread(lambda: (folder.order(), _facts(folder)))
        except FileNotFoundError:
            return None
        if order is None or not facts["alive"] or facts["address"] is None:
            return None
        return Reached(facts["address"], order["secret"])

    async def logs(self, instance_id: int, tail: int = 200) -> str:
        """The last lines of the newest start's log."""
        found = await in_thread(self.folders.starts, instance_id)
        newest = max(found, key=lambda one: (one.order() or {}).get("fence_token", 0), default=None)
        return "" if newest is None else await in_thread(newest.log_tail, tail)

    # -----------------------------------------------------------------------------------------------------------------
    # Changing
    # -----------------------------------------------------------------------------------------------------------------

    async def resize(self, spec: InstanceSpec, *, memory_mb: int, cpu: float) -> bool:
        """Change the memory limit in place. CPU has no limit here, so any value is in effect at once."""
        folder = self.folders.start(spec.instance_id, spec.start_token)
        if not await in_thread(folder.is_alive):
            raise RuntimeFailed(f"the graph server of instance {spec.instance_id} has ended", "UNEXPECTED_TERMINATION")
        await in_thread(folder.set_limit, memory_mb)
        return True

    async def remove(self, instance_id: int, *, start_token: str | None = None) -> bool:
        """End the processes and remove the folders."""
        return await in_thread(self._remove_starts, instance_id, start_token)

    def _remove_starts(self, instance_id: int, start_token: str | None) -> bool:
        with self.folders.turn(instance_id) as is_ours:
            if not is_ours:
                return False
            found = self.folders.starts(instance_id)
            gone = [self._remove(one) for one in found if start_token in (None, one.start_token)]
            self.folders.forget(instance_id)
            return all(gone)

    def _remove(self, folder: StartFolder) -> bool:
        """End one start and confirm it. The supervisor ends the graph server; if it was killed, the kernel has ended both."""
        folder.withdraw()
        deadline = time.monotonic() + self._grace + REMOVE_SECONDS
        while folder.is_alive() or not folder.kill_child_if_alone():
            folder.stop()  # again and again: a supervisor that has just begun has not written its process id yet
            if time.monotonic() > deadline:
                return False
            time.sleep(PAUSE)
        shutil.rmtree(folder.path, ignore_errors=True)
        return not folder.path.exists()

    async def close(self) -> None:
        """Close connections. Graph servers continue to run."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    def _http(self) -> httpx2.AsyncClient:
        if self._client is None:
            self._client = httpx2.AsyncClient(trust_env=False)
        return self._client


def _facts(folder: StartFolder) -> dict[str, Any]:
    """What the folder says. Blocking."""
    alive, port = folder.is_alive(), folder.port()
    return {
        "alive": alive,
        "address": None if port is None else f"http://127.0.0.1:{port}",
        "was_ready": (folder.path / "ready").exists(),
        "ended": None if alive else folder.ended(),
        "child": folder.child(),
        "memory_bytes": folder.memory_bytes() if alive else None,
        "limit_mb": folder.limit_mb(),
        "created_at": folder.created_at(),
    }


def verdict(facts: dict[str, Any], status: ServerStatus | None, start_token: str) -> tuple[str, ErrorCode | None, str | None]:
    """The phase, reason and message of a start. A server that is alive and too busy to answer keeps its phase. Pure."""
    if not facts["alive"]:
        ended = facts["ended"] or {}
        if ended.get("reason") == "OOM_KILLED":
            return "failed", "OOM_KILLED", f"it used more memory than its limit of {facts['limit_mb']} MiB"
        code = ended.get("code")
        how = "its supervisor was killed" if code is None else f"it ended with code {code}"
        return "failed", "UNEXPECTED_TERMINATION", f"the graph server is not running: {how}"
    if status is not None and status.start_token not in (None, start_token):
        status = None  # another process has taken the port
    if status is None:
        return ("running" if facts["was_ready"] else "starting"), None, None
    if status.phase == "failed":
        return "failed", cast("ErrorCode", status.error_code or "STARTUP_FAILED"), status.error
    return ("running" if status.phase == "ready" else "starting"), None, None


def environment_of(spec: InstanceSpec, folder: Path) -> dict[str, str]:
    """The environment of a graph server."""
    said = {
        "HOLDFAST_GRAPH_PLAN": str(folder / "plan.json"),
        "HOLDFAST_GRAPH_SECRET": spec.secret,
        "HOLDFAST_GRAPH_PORT": "0",
        "HOLDFAST_GRAPH_PORT_FILE": str(folder / "port"),
        "HOLDFAST_GRAPH_DATA_DIR": str(folder / "data"),
        "HOLDFAST_GRAPH_MEMORY_MB": str(spec.memory_mb),
        "HOLDFAST_GRAPH_CALLBACK_URL": spec.callback_url,
    }
    return passed_on(named=KEPT, prefixes=KEPT_PREFIXES) | {name: value for name, value in said.items() if value is not None}
