"""Hear from the API's event stream that something has changed: `--watch` shows it at once and not with its next look."""

from __future__ import annotations

import contextlib
import threading
import time

import httpx

SHORTEST = 0.2  # seconds between two looks, however much is going on
AGAIN = 10.0  # seconds until a stream that ended is asked for once more


class Stirring:
    """The console's stream, heard in a thread. Where there is none, nothing is heard, and only time passes."""

    def __init__(self, client: httpx.Client) -> None:
        self._client, self._stirred = client, threading.Event()
        self._begin()

    def wait(self, seconds: float) -> None:
        """Until something has changed, and no longer than so."""
        if not self._listener.is_alive() and time.monotonic() - self._began > AGAIN:
            self._begin()
        time.sleep(min(seconds, SHORTEST))
        self._stirred.wait(max(seconds - SHORTEST, 0))
        self._stirred.clear()

    def _begin(self) -> None:
        self._began = time.monotonic()
        self._listener = threading.Thread(target=self._listen, name="holdfast-stirring", daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        with (
            contextlib.suppress(httpx.HTTPError, httpx.StreamError, RuntimeError),  # the last: the client was closed meanwhile
            self._client.stream("GET", "/api/events", timeout=httpx.Timeout(60, connect=5)) as stream,
        ):
            for line in stream.iter_lines():
                if line.startswith("event:"):
                    self._stirred.set()
