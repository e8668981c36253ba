"""A proxy before an open-source Trino that translates Starburst's UNLOAD into a CTAS of Hive, as document 002's `trino-proxy`.

Everything else passes unchanged. Trino builds its addresses from the Host header, which is passed on, so that a client stays
with the proxy.
"""

from __future__ import annotations

import re
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from uuid import uuid4

UNLOAD = re.compile(
    r"SELECT \* FROM TABLE\(system\.unload\(\s*input => TABLE\(\n(?P<sql>.*)\n\),\s*"
    r"location => '(?P<location>(?:[^']|'')*)',\s*format => 'PARQUET'\)\)",
    re.S,
)


def translated(statement: str, schema: str) -> str:
    """The statement as plain Trino understands it. Pure but for the name of the table."""
    found = UNLOAD.fullmatch(statement.strip())
    if found is None:
        return statement
    table = f'{schema}."unload_{uuid4().hex}"'
    return f"CREATE TABLE {table} WITH (format = 'PARQUET', external_location = '{found['location']}') AS\n{found['sql']}"


class UnloadProxy:
    """Listens on loopback until it is closed; `translations` has what it rewrote."""

    def __init__(self, target: str, schema: str) -> None:
        self.translations: list[str] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.command == "POST" and self.path == "/v1/statement":
                    sent = translated(body.decode(), schema)
                    if sent != body.decode():
                        proxy.translations.append(sent)
                    body = sent.encode()
                skipped = {"content-length", "connection", "accept-encoding"}
                headers = {name: value for name, value in self.headers.items() if name.lower() not in skipped}
                request = urllib.request.Request(target + self.path, body or None, headers, method=self.command)
                try:
                    with urllib.request.urlopen(request, timeout=120) as reply:
                        status, given, content = reply.status, reply.headers, reply.read()
                except urllib.error.HTTPError as refused:
                    status, given, content = refused.code, refused.headers, refused.read()
                self.send_response(status)
                for name, value in given.items():
                    if name.lower() not in {"content-length", "transfer-encoding", "connection", "date", "server"}:
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_DELETE = do_HEAD = handle_one  # noqa: N815 - names of the base class

            def log_message(self, format: str, *args: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
