"""A graph server that starts quickly, loads nothing and says what a test tells it. Standard library only.

`python graph_double.py FOLDER`: FOLDER/<instance id> may have JSON with `phase`, `error_code`, `error`, `allocate_mb`, `exit`.
"""

from __future__ import annotations

import http.server
import json
import os
import sys
import threading
import time
from pathlib import Path

PLAN = json.loads(Path(os.environ["HOLDFAST_GRAPH_PLAN"]).read_text())
SAYS = Path(sys.argv[1]) / str(PLAN["instance_id"])
held: list[bytes] = []


def said() -> dict[str, object]:
    try:
        found: dict[str, object] = json.loads(SAYS.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return found


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        now = said()
        if self.headers.get("Authorization") != f"Bearer {os.environ['HOLDFAST_GRAPH_SECRET']}":
            self.answer(401, {"error": "unauthorized"})
        elif self.path == "/status":
            share = 1.0 if now.get("phase", "ready") == "ready" else 0.5
            body = {"phase": "ready", "progress": {"share": share, "tables": []}, "rows": {"nodes": 1, "edges": 0}}
            body |= {"start_token": PLAN["start_token"], "instance_id": PLAN["instance_id"], "error_code": None, "error": None}
            self.answer(200, body | now)
        else:
            self.answer(200, {"path": self.path, "instance_id": PLAN["instance_id"]})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.answer(200, {"path": self.path, "body": body.decode(), "instance_id": PLAN["instance_id"]})

    def answer(self, status: int, body: dict[str, object]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


def obey() -> None:
    """Allocate or exit when told so."""
    while True:
        now = said()
        wanted = int(str(now.get("allocate_mb", 0)))
        while sum(map(len, held)) < wanted * 1024 * 1024:
            held.append(b"x" * 1024 * 1024 * 8)
        if "exit" in now:
            os._exit(int(str(now["exit"])))
        time.sleep(0.02)


print("the double listens", flush=True)
threading.Thread(target=obey, daemon=True).start()
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
port = Path(os.environ["HOLDFAST_GRAPH_PORT_FILE"])
port.with_suffix(".new").write_text(str(server.server_port))
port.with_suffix(".new").replace(port)
server.serve_forever(0.05)
