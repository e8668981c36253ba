"""The topic of event streams: one greeting by name."""

from holdfast.api.sse import Event


async def read(conn, keys):
    """The greeting of each name. The stream ends with it."""
    found = await conn.execute("SELECT name, text FROM holdfast.greetings WHERE name = ANY(%s)", [list(keys)])
    return {name: [Event("greeting", {"text": text}, id=text, last=True)] for name, text in await found.fetchall()}
