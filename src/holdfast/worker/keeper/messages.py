"""The messages between a keeper and its executors, as lines of JSON over a socket pair. Used by: both sides.

The keeper sends `work` with the configuration, then `figures` and `stop`. The executor sends `ready`, `figures` and `ended`, or
`cannot_start` or `no_database` with the error. If the channel is closed, the other process is gone. The configuration has the
database's address: it is not in the arguments of the process, because every user of the machine can read those.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from datetime import timedelta
from typing import Any, Literal

from holdfast.jobs.model import WorkerId
from holdfast.worker.options import WorkerOptions

Mode = Literal["serve", "drain", "once"]
Message = dict[str, Any]
STOP: Message = {"type": "stop"}
FIGURES: Message = {"type": "figures"}


@dataclass(frozen=True, slots=True)
class ExecutorConfig:
    """What an executor runs, and how."""

    url: str
    modules: tuple[str, ...]
    kinds: tuple[str, ...] = ()  # of those that the modules register; empty: all
    mode: Mode = "serve"
    options: WorkerOptions = field(default_factory=WorkerOptions)
    logs: dict[str, Any] | None = None  # the keeper's log configuration
    traces: str | None = None
    crash_at: str | None = None
    worker_id: WorkerId | None = None  # chosen by the keeper, new for every executor

    def to_message(self) -> Message:
        return {"type": "work", **asdict(self), "options": _options_to_json(self.options)}

    @classmethod
    def from_message(cls, message: Message) -> ExecutorConfig:
        given: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in message.items() if name != "type"
        }
        return cls(**given | {"options": _options_from_json(message["options"])})


SPANS = frozenset(one.name for one in fields(WorkerOptions) if "timedelta" in str(one.type))


def _options_to_json(options: WorkerOptions) -> dict[str, Any]:
    plain = asdict(options)
    return plain | {name: plain[name].total_seconds() for name in SPANS if plain[name] is not None}


def _options_from_json(given: dict[str, Any]) -> WorkerOptions:
    spans = {name: timedelta(seconds=given[name]) for name in SPANS if given[name] is not None}
    return WorkerOptions(**given | spans | {"queues": tuple(given["queues"])})


class MessageChannel:
    """One end of the channel between a keeper and an executor."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.is_closed = False  # the other side is gone
        self._received = b""  # the beginning of the next message
        self._sending = threading.Lock()

    def send(self, message: Message) -> None:
        """Send a message. Does nothing if the other side is gone."""
        try:
            with self._sending:  # an executor sends from two threads
                self.end.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return

    def receive(self) -> Iterator[Message]:
        """Messages until the other side is gone; on a non-blocking socket, those that have arrived."""
        while True:
            try:
                data = self.end.recv(65536)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.is_closed = True
                return
            self._received += data
            *lines, self._received = self._received.split(b"\n")
            for line in lines:
                yield json.loads(line)

    def close(self) -> None:
        self.end.close()
