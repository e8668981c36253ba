"""Adds the service `greetings` to the catalog, uses each of its parts, and prints what came of it as JSON.

A separate program, because the tables of a process are filled once. Started by: `test_toy_service.py`, with a database.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import sys
from importlib import import_module
from typing import Any

from greetings import SERVICE
from proof_of_laziness import loaded

from holdfast import catalog

catalog.SERVICES = (*catalog.SERVICES, SERVICE)  # the one line of catalog.py
LOADED = loaded()
httpx2, uvicorn = import_module("httpx2"), import_module("uvicorn")


def main(url: str) -> dict[str, Any]:
    from greetings.settings import greetings_settings

    from holdfast.crashpoints import POINTS
    from holdfast.database.migrate import migrate
    from holdfast.settings import settings
    from holdfast.telemetry.names import EVENTS, METRICS

    found: dict[str, Any] = {"loaded": LOADED, "revision": migrate(url).current}
    found["names"] = ["greeting_written" in EVENTS, "greetings_written_total" in METRICS, "greeting.before_write" in POINTS]
    found["settings"] = [settings().greeting_word, greetings_settings() is settings(), settings().snapshots_to]  # type: ignore[attr-defined]
    found |= asyncio.run(served(url))
    found["greeting"] = json.loads(printed_by("greetings", "list", "--json"))
    found["help"] = "Greetings: list them." in printed_by("--help")
    found["doctor"] = [finding.check for check in catalog.checks() for finding in check(settings())]
    return found


def printed_by(*arguments: str) -> str:
    """What the command line prints."""
    from holdfast.cli import main as command_line

    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        command_line(arguments)
    return out.getvalue()


async def served(url: str) -> dict[str, Any]:
    from greetings.kinds import KINDS

    from holdfast.api.app import make_app
    from holdfast.api.auth import create_token
    from holdfast.api.policy import Role
    from holdfast.console.served import ServedConsole
    from holdfast.database.pool import connect, pool
    from holdfast.settings import settings
    from holdfast.worker.loop import Worker

    nouns, services = catalog.nouns(), catalog.resources(settings())
    console = ServedConsole(catalog.console_parts())
    app = make_app(pool(url), nouns=nouns, services=services, topics=catalog.topics(), console=console)
    conn = await connect(url)
    _, token = await create_token(conn, "ada", Role.ADMIN, by="test")
    headers = {"Authorization": f"Bearer {token}"}
    transport = httpx2.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://toy", headers=headers) as client,
    ):
        found: dict[str, Any] = {}
        found["created"] = (await client.post("/api/greetings", json={"name": "Ada"})).json()["data"]
        found["problem"] = (await client.post("/api/greetings", json={"name": "Ada"})).json()
        found["config"] = (await client.get("/api/config/greetings.longest")).json()["data"]["default"]
        enqueued = await client.post("/api/jobs", json={"kind": "greetings.write", "payload": {"name": "Bob"}})
        await Worker(url, KINDS).run(until_empty=True)
        found["job"] = (await client.get(f"/api/jobs/{enqueued.json()['data']['id']}")).json()["data"]["state"]
        found["followed"] = (await (await conn.execute("SELECT state FROM holdfast.greeting_ends")).fetchall())[0][0]
        found["reserved"] = (await client.post("/api/jobs", json={"kind": "greetings.other", "payload": {}})).json()["code"]
        found["stream"] = (await client.get("/api/greetings/Bob/events")).text
        found["page"] = (await client.get("/console/greetings")).text
        found["metric"] = "greetings 2.0" in (await client.get("/metrics")).text
        found["client"] = await over_http(app, token)
    found["loops"] = [loop.name for loop in catalog.loops(settings()) if loop.name.startswith("greet")]
    await conn.close()
    return found


async def over_http(app: Any, token: str) -> list[str]:
    """The names of all greetings, by the client's namespace and a real port."""
    from holdfast.client import connect

    server = uvicorn.Server(uvicorn.Config(app, "127.0.0.1", 0, lifespan="off", log_level="error"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]

    def names() -> list[str]:
        with connect(f"http://127.0.0.1:{port}", token) as hf:
            return [one["name"] for one in hf.greetings.list()]

    found = await asyncio.to_thread(names)
    server.should_exit = True
    await serving
    return found


if __name__ == "__main__":
    json.dump(main(sys.argv[1]), sys.stdout)
