"""What one works with in a notebook: a connection, mappings, snapshots, and what the engines' catalogs hold."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import yaml  # type: ignore[import-untyped]

from holdfast.client.asking import Asking
from holdfast.client.cards import card
from holdfast.client.showing import Shown, shown_live
from holdfast.errors import HoldfastError

ENDED: Final = frozenset({"ready", "failed", "cancelled"})
OnProgress = Callable[["Snapshot"], None]


class SnapshotFailed(HoldfastError):
    """It did not become ready. `snapshot` is what became of it."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(f"snapshot {snapshot.id} is {snapshot.status}: {snapshot.error or 'no error was given'}")
        self.snapshot = snapshot


class Thing:
    """Something on the control plane, as it was when it was last looked at."""

    def __init__(self, asking: Asking, data: dict[str, Any]) -> None:
        self._asking, self.data = asking, data

    def _html(self) -> str:
        raise NotImplementedError

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._html()}


class Mapping(Thing):
    """A mapping with its current version."""

    @property
    def id(self) -> int:
        return int(self.data["id"])

    @property
    def name(self) -> str:
        return str(self.data["name"])

    @property
    def version(self) -> int:
        return int(self.data["version"])

    def __repr__(self) -> str:
        return f"<mapping {self.name!r} v{self.version}: {len(self.data['nodes'])} nodes, {len(self.data['edges'])} edges>"

    def _html(self) -> str:
        nodes = [("node", one["label"], one["sql"]) for one in self.data["nodes"]]
        edges = [("edge", f"({e['from_node']})-{e['type']}->({e['to_node']})", e["sql"]) for e in self.data["edges"]]
        facts = {"version": self.version, "engine": self.data["engine"], "owner": self.data["owner"]}
        return card(f"mapping {self.name}", facts, ("", "name", "SQL"), [*nodes, *edges])


class Snapshot(Thing):
    """A snapshot with its exports."""

    @property
    def id(self) -> int:
        return int(self.data["snapshot"]["id"])

    @property
    def status(self) -> str:
        return str(self.data["snapshot"]["status"])

    @property
    def error(self) -> str | None:
        found: str | None = self.data["snapshot"]["error_message"]
        return found

    @property
    def share(self) -> float:
        """How far it is, 0 to 1."""
        return float(self.data["progress"]["share"])

    @property
    def exports(self) -> list[dict[str, Any]]:
        return list(self.data["exports"])

    @property
    def files(self) -> dict[str, list[str]]:
        """The Parquet files of each node and edge, as the manifests name them."""
        return {
            one["entity_name"]: [f"{one['gcs_path']}/{file['path']}" for file in one["files"] or ()] for one in self.exports
        }

    def refresh(self) -> Snapshot:
        """Look at it again."""
        self.data = self._asking.ask("GET", f"/api/snapshots/{self.id}")
        return self

    def wait(self, timeout: float | None = 900, poll: float = 1.0, on_progress: OnProgress | None = None) -> Snapshot:
        """Wait until it is ready; `SnapshotFailed` if it does not become so, `TimeoutError` if that takes too long."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with shown_live() as show:
            while True:
                self._tell(show, on_progress)
                if self.status in ENDED:
                    break
                if deadline is not None and time.monotonic() + poll > deadline:
                    raise TimeoutError(f"snapshot {self.id} is {self.status} after {timeout} s; it goes on without us")
                time.sleep(poll)
                self.refresh()
        if self.status != "ready":
            raise SnapshotFailed(self)
        return self

    def _tell(self, show: Shown, on_progress: OnProgress | None) -> None:
        show.update(self, [(f"{one['job_type']} {one['entity_name']}", *_bar(one)) for one in self.exports])
        if on_progress is not None:
            on_progress(self)

    def cancel(self, reason: str | None = None) -> Snapshot:
        """Stop it."""
        self.data = self._asking.ask("POST", f"/api/snapshots/{self.id}/cancel", {"reason": reason})
        return self

    def retry(self, reason: str | None = None) -> Snapshot:
        """Run what failed or was cancelled once more."""
        self.data = self._asking.ask("POST", f"/api/snapshots/{self.id}/retry", {"reason": reason})
        return self

    def __repr__(self) -> str:
        progress = self.data["progress"]
        return f"<snapshot {self.id} {self.status} {self.share:.0%}: {progress['rows']:,} rows, {progress['bytes']:,} bytes>"

    def _html(self) -> str:
        rows = [
            (
                one["job_type"],
                one["entity_name"],
                one["status"],
                one["row_count"],
                one["size_bytes"],
                one["attempts"],
                _says(one),
            )
            for one in self.exports
        ]
        facts = {"status": self.status, "done": f"{self.share:.0%}", "error": self.error}
        return card(f"snapshot {self.id}", facts, ("", "name", "status", "rows", "bytes", "attempts", ""), rows)


def _says(export: dict[str, Any]) -> str:
    queued = f"number {export['queue_position']} in the queue" if export["queue_position"] else None
    return str(export["error_message"] or queued or export["message"] or "")


def _bar(export: dict[str, Any]) -> tuple[float, str]:
    over = export["status"] in ("completed", "failed", "cancelled")
    return 1.0 if over else float(export["progress"] or 0.0), f"{export['status']} {_says(export)}".strip()


class Mappings:
    """The mappings of the control plane."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking

    def get(self, mapping: int | str) -> Mapping:
        """A mapping by its number or name."""
        number = mapping if isinstance(mapping, int) else self._number(mapping)
        return Mapping(self._asking, self._asking.ask("GET", f"/api/mappings/{number}"))

    def _number(self, name: str) -> int:
        found = self._asking.ask("GET", "/api/mappings", name=name, limit=2)
        if len(found) != 1:
            raise LookupError(f"{'no mapping' if not found else 'more than one mapping'} is called {name!r}; use its number")
        return int(found[0]["id"])

    def list(self, **filters: Any) -> list[dict[str, Any]]:
        """The newest mappings; filters as in the HTTP API."""
        found: list[dict[str, Any]] = self._asking.ask("GET", "/api/mappings", **filters)
        return found

    def apply(self, mapping: str | Path | dict[str, Any], *, message: str = "applied", use_case: str | None = None) -> Mapping:
        """Make the mapping that a dict or a YAML file describes, or bring it up to date."""
        asked = mapping if isinstance(mapping, dict) else yaml.safe_load(Path(mapping).read_text())
        me = self._asking.ask("GET", "/api/whoami")["actor"]
        there = self._asking.ask("GET", "/api/mappings", name=asked["name"], owner=me, limit=1)
        if not there:
            return Mapping(self._asking, self._asking.ask("POST", "/api/mappings", asked, use_case=use_case))
        change = {"change_description": message, "nodes": asked["nodes"], "edges": asked.get("edges", [])}
        return Mapping(self._asking, self._asking.ask("PUT", f"/api/mappings/{there[0]['id']}", change, use_case=use_case))


class Snapshots:
    """The snapshots of the control plane."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking

    def get(self, snapshot_id: int) -> Snapshot:
        """A snapshot by its number."""
        return Snapshot(self._asking, self._asking.ask("GET", f"/api/snapshots/{snapshot_id}"))

    def create(self, mapping: Mapping | int, *, use_case: str | None = None, **asked: Any) -> Snapshot:
        """Make a snapshot; it comes back at once, and workers do the rest."""
        number = mapping.id if isinstance(mapping, Mapping) else mapping
        made = self._asking.ask("POST", "/api/snapshots", {"mapping_id": number, **asked}, use_case=use_case)
        return Snapshot(self._asking, made)

    def create_and_wait(
        self,
        mapping: Mapping | int,
        *,
        timeout: float | None = 900,
        poll: float = 1.0,
        on_progress: OnProgress | None = None,
        use_case: str | None = None,
        **asked: Any,
    ) -> Snapshot:
        """Make a snapshot and wait until it is ready, showing how far it is."""
        return self.create(mapping, use_case=use_case, **asked).wait(timeout, poll, on_progress)


class Schema:
    """What the engines' catalogs hold."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking

    def search(self, prefix: str, *, columns: bool = False, limit: int = 100) -> list[dict[str, Any]]:
        """Tables, or columns, whose name begins so."""
        what = "columns" if columns else "tables"
        found: list[dict[str, Any]] = self._asking.ask("GET", f"/api/schema/search/{what}", q=prefix, limit=limit)
        return found


class Connection:
    """A control plane."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self.mappings, self.snapshots, self.schema = Mappings(asking), Snapshots(asking), Schema(asking)

    def __repr__(self) -> str:
        return f"<holdfast at {self._asking.url}>"

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give back the connections."""
        self._asking.close()
