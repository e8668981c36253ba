"""The form of an algorithm: its fields, and the request that they make. Pure.

Every value is sent as the user wrote it, if it does not fit its type: the graph server refuses it in its own words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from holdfast.services.graphs.server.algorithms.catalog import Algorithm, Parameter

KEY_HELP: Final = "The primary key of the node; a text that looks like a number in quotes."


@dataclass(frozen=True, slots=True)
class FormField:
    """One field of the form. `name` is also its name in the address, so a filled form can be shared."""

    name: str
    label: str
    help: str
    default: str = ""
    kind: Literal["text", "number", "choice"] = "text"
    choices: tuple[str, ...] = ()
    required: bool = False


def fields_of(algorithm: Algorithm) -> list[FormField]:
    """The fields: the parameters first, then what the run reads and writes."""
    found = [field for name, one in algorithm.parameters.items() for field in _of_parameter(name, one)]
    found += [
        FormField("node_labels", "Node labels", "Only nodes of these labels, with commas between them; empty: all."),
        FormField("edge_types", "Edge types", "Only edges of these types, with commas between them; empty: all."),
    ]
    if algorithm.is_weighted:
        found.append(FormField("weight", "Weight", "A number of the edges that is their weight; empty: each edge counts 1."))
    if algorithm.can_write:
        found.append(FormField("property", "Write to property", "Also write the result to this property of the nodes."))
    return found


def _of_parameter(name: str, one: Parameter) -> list[FormField]:
    label = name.replace("_", " ").capitalize()
    if one.kind == "node":
        needed = name == "source"
        return [
            FormField(f"{name}.label", f"{label}: label", one.purpose, required=needed),
            FormField(f"{name}.key", f"{label}: key", KEY_HELP, required=needed),
        ]
    if one.kind == "bool":
        return [FormField(name, label, one.purpose, "yes" if one.default else "no", "choice", ("yes", "no"))]
    if one.kind == "choice":
        return [FormField(name, label, one.purpose, str(one.default), "choice", one.choices)]
    return [FormField(name, label, one.purpose, f"{one.default:g}" if one.kind == "float" else str(one.default), "number")]


def request_of(algorithm: Algorithm, form: Mapping[str, str]) -> dict[str, Any]:
    """The body for `POST /api/instances/{id}/algorithms/{name}`; empty fields are left out."""
    given = {name: text.strip() for name, text in form.items() if text.strip()}
    body: dict[str, Any] = {name: given[name] for name in ("weight", "property") if name in given}
    for name in ("node_labels", "edge_types"):
        if names := [one.strip() for one in given.get(name, "").split(",") if one.strip()]:
            body[name] = names
    parameters = {}
    for name, one in algorithm.parameters.items():
        value = _node(name, given) if one.kind == "node" else _value(one, given.get(name))
        if value is not None:
            parameters[name] = value
    return {**body, "parameters": parameters} if parameters else body


def _value(one: Parameter, text: str | None) -> Any:
    if text is None or one.kind == "choice":
        return text
    if one.kind == "bool":
        return {"yes": True, "no": False}.get(text, text)
    try:
        return int(text) if one.kind == "int" else float(text)
    except ValueError:
        return text


def _node(name: str, given: Mapping[str, str]) -> dict[str, Any] | None:
    label, key = given.get(f"{name}.label"), given.get(f"{name}.key")
    return None if label is None and key is None else {"label": label or "", "key": key_of(key or "")}


def key_of(text: str) -> int | str:
    """A primary key: a whole number, or a text, which may be in quotes."""
    if text.removeprefix("-").isdecimal() and text.isascii():
        return int(text)
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text
