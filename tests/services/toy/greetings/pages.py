"""The console page: all greetings, with a button for each."""

from holdfast.console.actions import Action
from holdfast.console.view import Shown, View

ACTIONS = (
    Action(
        name="greeting.create",
        label="Greet again",
        policy="greetings.create",
        path="/api/greetings",
        says="{name} is greeted again.",
        target="greeting/{name}",
        back="greetings",
        reason="none",
    ),
)


async def show(view: View) -> Shown:
    """A list of the greetings."""
    rows = await (await view.conn.execute("SELECT name, text FROM holdfast.greetings ORDER BY name")).fetchall()
    return Shown("greetings.html", {"greetings": rows})
