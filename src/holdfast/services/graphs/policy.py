"""Which roles may do what with graph instances. Pure data."""

from __future__ import annotations

from typing import Final

from holdfast.api.policy import MAKERS, OPERATORS, OWN, READERS, Rule

ACTIONS: Final[dict[str, Rule]] = {
    "instances.read": Rule("read graph instances, their progress, events and limits", READERS),
    "instances.create": Rule("create a graph instance", MAKERS),
    "instances.change": Rule("change, suspend, resume, resize or delete a graph instance", OPERATORS, OWN),
    "instances.query": Rule("query a graph instance, run algorithms on it and read its log", OPERATORS, OWN),
    "instances.bulk": Rule("delete many graph instances by a filter", OPERATORS, needs_reason=True),
    "instances.report": Rule("report as a graph server; the route checks the secret of that one instance", anyone=True),
    "favorites.write": Rule("list, add and remove its own favourites", READERS),
}
