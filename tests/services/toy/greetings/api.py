"""The routes of greetings."""

from dataclasses import dataclass

from fastapi import Request
from prometheus_client.core import GaugeMetricFamily

from greetings.settings import GreetingsSettings
from greetings.topics import read
from holdfast.api.acts import Acting, Model
from holdfast.api.envelope import Answer, respond
from holdfast.api.plane import Resources, caller_of, plane_of
from holdfast.api.problems import Problem
from holdfast.api.routes import Routes
from holdfast.jobs.config import value_of

routes = Routes("greetings")
ROUTES = (routes,)


@dataclass
class Greetings(Resources):
    """What the routes keep open."""

    settings: GreetingsSettings

    async def measure(self, conn):
        row = await (await conn.execute("SELECT count(*) FROM holdfast.greetings")).fetchone()
        return [GaugeMetricFamily("greetings", "Greetings in the database.", value=row[0])]


def open_for(settings):
    return Greetings(settings)


class Asked(Model):
    name: str


@routes.add("GET", "/api/greetings", action="greetings.read")
async def list_greetings(request: Request):
    """List all greetings."""
    async with plane_of(request).pool.connection() as conn:
        rows = await (await conn.execute("SELECT name, text FROM holdfast.greetings ORDER BY name")).fetchall()
    return respond([{"name": name, "text": text} for name, text in rows])


@routes.add("POST", "/api/greetings", action="greetings.create", status=201, refuses=["already-greeted"])
async def create_greeting(asked: Asked, act: Acting):
    """Greet a person at once."""

    async def do(conn):
        if len(asked.name) > await value_of(conn, "greetings.longest"):
            raise Problem("invalid-request", "the name is too long")
        text = f"{act.plane.services['greetings'].settings.greeting_word}, {asked.name}!"
        insert = "INSERT INTO holdfast.greetings (name, text) VALUES (%s, %s) ON CONFLICT DO NOTHING RETURNING name"
        if await (await conn.execute(insert, [asked.name, text])).fetchone() is None:
            raise Problem("already-greeted", f"{asked.name} was greeted before")
        return Answer(201, {"name": asked.name, "text": text})

    return await act.run(f"greeting/{asked.name}", do)


@routes.add("GET", "/api/greetings/{name}/events", action="greetings.read", media="text/event-stream")
async def follow_greeting(request: Request, name: str):
    """Follow one greeting."""
    plane = plane_of(request)

    async def begin():
        async with plane.pool.connection() as conn:
            return (await read(conn, [name])).get(name, [])

    return plane.hub.respond(f"greeting:{name}", caller_of(request), begin)
