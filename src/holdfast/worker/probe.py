"""`/health`, `/ready` and `/metrics` of a worker: a small HTTP server in a thread.

Started by: the keeper, the remote worker, the scheduler.

In a thread of its own, so that no handler can keep it from answering. It has nothing to hide and nothing to change, asks for
no credentials, and listens on this machine alone unless told otherwise.
"""

from __future__ import annotations

import json
import socket
import socketserver
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from prometheus_client import CONTENT_TYPE_LATEST

from holdfast.errors import UsageError
from holdfast.telemetry.log import log

LOOPBACK = "127.0.0.1"
SLOWEST_CLIENT = 5.0  # seconds between two bytes of a request
MOST_AT_ONCE = 16  # requests; a probe and two Prometheus servers need three

Facts = Mapping[str, Any]


class Subject(Protocol):
    """Whose state is asked for. Every question may come from any thread."""

    def health(self) -> Facts:
        """How the process is; with `problem` set, a sentence that says why it should be started again."""
        ...

    def ready(self) -> Facts:
        """Whether it can do its work; with `problem` set, why not."""
        ...

    def metrics(self) -> bytes:
        """In Prometheus's text format."""
        ...


def parse_address(said: str) -> tuple[str, int]:
    """`HOST:PORT`, `:PORT` or `PORT`; without a host only this machine. Pure."""
    host, _, port = said.strip().rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise UsageError(f"--http is HOST:PORT or PORT, not {said!r}")
    return host.strip("[]") or LOOPBACK, int(port)


class Probe:
    """The server, listening from the start and answering until it is closed."""

    def __init__(self, address: str, subject: Subject) -> None:
        host, port = parse_address(address)
        try:
            self._server = _Server(host, port, subject)
        except OSError as error:
            raise UsageError(f"cannot listen on {host}:{port} ({error.strerror}); give another port with --http") from None
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="holdfast-probe", daemon=True)
        self._thread.start()
        log.info("probe_listening", url=f"http://{f'[{host}]' if ':' in host else host}:{self.port}")

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a client that reads slowly must not hold up the end of the process

    def __init__(self, host: str, port: int, subject: Subject) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.subject = subject
        self._room = threading.BoundedSemaphore(MOST_AT_ONCE)
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer's asks a name server who we are, and may wait for it

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread of its own, as long as there are not too many."""
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect before the whole answer is sent."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = SLOWEST_CLIENT
    server_version, sys_version = "holdfast", ""

    def do_GET(self) -> None:
        """One of three pages."""
        subject = self.server.subject
        match self.path.split("?")[0].rstrip("/"):
            case "/health" | "/api/health":
                self._say(subject.health())
            case "/ready" | "/api/ready":
                self._say(subject.ready())
            case "/metrics":
                self._send(200, CONTENT_TYPE_LATEST, subject.metrics())
            case _:
                self._say({"problem": "this process has /health, /ready and /metrics, and nothing else"}, 404, "Not found")

    do_HEAD = do_GET  # noqa: N815 - so the library wants it

    def _say(self, facts: Facts, status: int = 503, title: str = "Not ready") -> None:
        if (problem := facts.get("problem")) is None:
            self._send(200, "application/json", json.dumps({"data": dict(facts)}).encode())
            return
        code = title.upper().replace(" ", "_")
        about = {"type": f"/problems/{code.lower().replace('_', '-')}", "title": title, "status": status, "code": code}
        rest = {name: value for name, value in facts.items() if name != "problem"}
        self._send(status, "application/problem+json", json.dumps({**about, "detail": problem, **rest}).encode())

    def _send(self, status: int, media: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", media)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        if status == 503:
            self.send_header("Retry-After", "5")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """A probe every few seconds is no news."""
