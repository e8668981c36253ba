"""Reports to the control plane: queries since the last report, memory, disk, and the progress of the load.

They go to `<callback>/report` with the secret of this start, which the control plane accepts for this instance only. A
report that fails is sent again with the next one: queries are counted until a report is acknowledged. If the control plane
answers that it does not want this graph server any more, the program ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.addresses import api_at
from holdfast.extras import lazily
from holdfast.services.graphs.server.status import ServerStatus
from holdfast.telemetry.log import log
from holdfast.threads import in_thread

if TYPE_CHECKING:
    import httpx2
else:
    httpx2 = lazily("httpx2")

TIMEOUT: Final = 10.0
WHILE_LOADING: Final = 1.0  # seconds between reports


class Reporter:
    """Counts activity and sends reports until it is cancelled."""

    def __init__(
        self,
        url: str,
        secret: str,
        status: ServerStatus,
        *,
        every: float,
        folder: Path,
        plain_http: bool,
        stop: Callable[[], None],
        name: str,
    ) -> None:
        api_at(url, with_token=True, plain_http=plain_http)
        self._url, self._status, self._every, self._folder, self._stop = url.rstrip("/"), status, every, folder, stop
        self._headers = {"Authorization": f"Bearer {secret}"}
        self._queries, self._name = 0, name

    def note_query(self) -> None:
        """Count one query."""
        self._queries += 1

    async def run(self) -> None:
        """Send reports for ever."""
        async with httpx2.AsyncClient(headers=self._headers, timeout=TIMEOUT, trust_env=False) as http:
            while True:
                is_loading = self._status.phase == "loading"
                if self._status.start_token is not None:
                    await self.send(http)
                await asyncio.sleep(min(self._every, WHILE_LOADING) if is_loading else self._every)

    async def send(self, http: httpx2.AsyncClient) -> None:
        """Send one report; a failure is logged."""
        queries = self._queries
        body = {
            "start_token": self._status.start_token,
            "pod_name": self._name,
            "queries": queries,
            "progress": self._status.as_json()["progress"],
            "memory_bytes": await in_thread(resident_bytes),
            "disk_bytes": await in_thread(disk_bytes, self._folder),
        }
        try:
            answer = await http.post(f"{self._url}/report", json=body)
            answer.raise_for_status()
            said = answer.json()
        except (httpx2.HTTPError, ValueError) as error:
            log.warning("graph_report_failed", error=str(error) or type(error).__name__)
            return
        self._queries -= queries
        if _is_unwanted(said):
            log.warning("graph_server_not_wanted")
            self._stop()


def _is_unwanted(said: Any) -> bool:
    """Whether the control plane says that this graph server is not needed; anything unclear is not that. Pure."""
    return isinstance(said, dict) and isinstance(said.get("data"), dict) and said["data"].get("wanted") is False


def resident_bytes(process: str = "self") -> int | None:
    """The memory of this process and of its children, which run algorithms; None where /proc does not tell."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
        children = [child for task in Path(f"/proc/{process}/task").iterdir() for child in _words(task / "children")]
    except OSError:
        return None
    own = [int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS:")]
    return sum(own) + sum(resident_bytes(child) or 0 for child in children) if own else None


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:  # the thread has ended, or the kernel does not list children
        return []


def disk_bytes(folder: Path) -> int:
    """The size of all files in a folder; files that vanish meanwhile do not count."""
    size = 0
    for file in folder.rglob("*"):
        try:
            size += file.lstat().st_size
        except OSError:
            continue
    return size
