"""The kind of job: write a greeting, in the transaction that completes the job."""

import psycopg

from greetings.service import SERVICE
from greetings.settings import greetings_settings
from holdfast import Context, Done, crashpoint, job
from holdfast.services.registration import declared_kinds
from holdfast.telemetry.metrics import counter

written = counter("greetings_written_total")


@job("greetings.write", public=True)
async def write(ctx: Context, name: str) -> Done:
    """Greet one person."""
    text = f"{greetings_settings().greeting_word}, {name}!"

    async def publish(conn: psycopg.AsyncConnection) -> None:
        crashpoint("greeting.before_write")
        await conn.execute("INSERT INTO holdfast.greetings (name, text) VALUES (%s, %s)", [name, text])

    written.inc()
    return Done(text, publish=publish)


KINDS = declared_kinds(SERVICE, [write])
