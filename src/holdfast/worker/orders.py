"""What a keeper and its executors say to each other, as lines of JSON over a socket pair. Read by: both sides.

To the executor: first its orders, then perhaps `figures` and `stop`. Back to the keeper: `ready`, what it was asked for, then
`ended`; or why it `cannot_start`.
The end of the line is a message too: the other one is gone. The database's address goes this way because everybody on
the machine can read the arguments of a process.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from holdfast.jobs.model import WorkerId

Mode = Literal["serve", "drain", "once"]
Message = dict[str, Any]
STOP: Message = {"say": "stop"}
FIGURES: Message = {"say": "figures"}


@dataclass(frozen=True, slots=True)
class Orders:
    """Everything that an executor needs to know."""

    url: str
    modules: tuple[str, ...]
    kinds: tuple[str, ...] = ()  # of those that the modules register; none named: all
    queues: tuple[str, ...] = ("default",)
    concurrency: int = 10
    mode: Mode = "serve"
    beat: float = 5.0
    poll: float | None = None
    lease: float = 30.0
    grace: float = 25.0
    keep_logs: bool = True
    max_memory: int | None = None  # bytes, of a job in a process of its own whose kind does not say
    presence: bool = False  # of the keeper: its database session stands for its executors
    name: str | None = None
    pod: str | None = None
    git_sha: str | None = None
    logs: dict[str, Any] | None = None  # how the keeper writes its own
    traces: str | None = None
    crash_at: str | None = None
    worker_id: WorkerId | None = None  # chosen by the keeper, new for every executor

    def to_message(self) -> Message:
        return {"say": "work", **asdict(self)}

    @classmethod
    def from_message(cls, message: Message) -> Orders:
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in message.items() if name != "say"
        }
        return cls(**fields)


class Line:
    """One end of the line between a keeper and an executor."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.is_over = False  # the other side is gone
        self._heard = b""
        self._one_at_a_time = threading.Lock()

    def say(self, message: Message) -> None:
        """Send it; the other side may be gone, and then there is nobody to tell."""
        try:
            with self._one_at_a_time:  # an executor speaks from two threads
                self.end.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return

    def hear(self) -> Iterator[Message]:
        """Messages until the other side is gone; on a socket that does not block, until there is nothing more for now."""
        while True:
            try:
                data = self.end.recv(65536)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.is_over = True
                return
            self._heard += data
            *lines, self._heard = self._heard.split(b"\n")
            for line in lines:
                yield json.loads(line)

    def close(self) -> None:
        self.end.close()
