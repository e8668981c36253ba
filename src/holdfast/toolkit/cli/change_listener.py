"""Listen to the API's event stream, so that `--watch` shows a change at once and not with its next poll."""

from __future__ import annotations

import contextlib
import threading
import time

import httpx2

SHORTEST = 0.2  # seconds between two refreshes, however much changes
RECONNECT = 10.0  # seconds until a stream that ended is opened again


class ChangeListener:
    """Reads the event stream in a thread. If there is no stream, `wait` only waits."""

    def __init__(self, client: httpx2.Client) -> None:
        self._client, self._changed = client, threading.Event()
        self._start()

    def wait(self, seconds: float) -> None:
        """Return when something has changed, at the latest after this time."""
        if not self._thread.is_alive() and time.monotonic() - self._started > RECONNECT:
            self._start()
        time.sleep(min(seconds, SHORTEST))
        self._changed.wait(max(seconds - SHORTEST, 0))
        self._changed.clear()

    def _start(self) -> None:
        self._started = time.monotonic()
        self._thread = threading.Thread(target=self._listen, name="holdfast-change-listener", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        with (
            contextlib.suppress(httpx2.HTTPError, httpx2.StreamError, RuntimeError),  # RuntimeError: the client was closed
            self._client.stream("GET", "/api/events", timeout=httpx2.Timeout(60, connect=5)) as stream,
        ):
            for line in stream.iter_lines():
                if line.startswith("event:"):
                    self._changed.set()
