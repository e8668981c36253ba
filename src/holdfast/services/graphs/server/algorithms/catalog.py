"""Which algorithms there are, their parameters and their result columns. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from holdfast.services.graphs.server.refusals import invalid, not_found

Kind = Literal["int", "float", "bool", "choice", "node"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of an algorithm. A node is `{"label": …, "key": …}`."""

    kind: Kind
    default: Any
    purpose: str
    least: float = -math.inf
    most: float = math.inf
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Algorithm:
    """An algorithm. `columns` are those of its result after `label` and `key`, with their types; the first can be written."""

    name: str
    purpose: str
    columns: Mapping[str, Literal["INT64", "DOUBLE"]]
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    is_weighted: bool = False
    can_write: bool = True

    def as_json(self) -> dict[str, Any]:
        """For `GET /algorithms`."""
        parameters = {
            name: {
                "type": one.kind,
                "default": one.default,
                "purpose": one.purpose,
                **({"choices": one.choices} if one.choices else {}),
            }
            for name, one in self.parameters.items()
        }
        return {
            "name": self.name,
            "purpose": self.purpose,
            "columns": dict(self.columns),
            "parameters": parameters,
            "is_weighted": self.is_weighted,
            "can_write": self.can_write,
        }


SEED: Final = Parameter("int", 42, "Seed of the random numbers.", least=0, most=2**31)
DIRECTION: Final = ("out", "in", "both")

ALGORITHMS: Final[dict[str, Algorithm]] = {
    one.name: one
    for one in (
        Algorithm(
            "pagerank",
            "Importance by incoming edges; the ranks of all nodes add up to 1.",
            {"rank": "DOUBLE"},
            {
                "damping": Parameter("float", 0.85, "Probability to follow an edge.", least=0, most=1),
                "tolerance": Parameter("float", 1e-8, "Stop when the ranks change by less in total.", least=1e-15, most=1),
                "max_iterations": Parameter("int", 100, "Stop after this many iterations.", least=1, most=10_000),
            },
            is_weighted=True,
        ),
        Algorithm("wcc", "Weakly connected components; 0 is the largest.", {"component": "INT64"}),
        Algorithm("scc", "Strongly connected components; 0 is the largest.", {"component": "INT64"}),
        Algorithm(
            "louvain",
            "Communities by modularity, on the undirected graph; 0 is the largest.",
            {"community": "INT64"},
            {"resolution": Parameter("float", 1.0, "Higher: smaller communities.", least=0, most=1000), "seed": SEED},
            is_weighted=True,
        ),
        Algorithm("k_core", "Core number: the largest k for which a node is in the k-core.", {"core": "INT64"}),
        Algorithm(
            "label_propagation",
            "Communities by majority of neighbours, on the undirected graph; 0 is the largest.",
            {"community": "INT64"},
            {"max_iterations": Parameter("int", 100, "Stop after this many iterations.", least=1, most=10_000), "seed": SEED},
        ),
        Algorithm("triangle_count", "Triangles that a node is part of, on the undirected graph.", {"triangles": "INT64"}),
        Algorithm(
            "degree",
            "Number of edges, or the sum of their weights.",
            {"degree": "DOUBLE"},
            {"direction": Parameter("choice", "both", "Which edges count.", choices=DIRECTION)},
            is_weighted=True,
        ),
        Algorithm(
            "betweenness",
            "Share of shortest paths through a node, estimated from sampled sources.",
            {"betweenness": "DOUBLE"},
            {
                "samples": Parameter("int", 64, "Number of sources; all nodes if it is not lower.", least=1, most=100_000),
                "seed": SEED,
                "directed": Parameter("bool", True, "Follow edges in their direction only."),
            },
        ),
        Algorithm(
            "shortest_path",
            "The shortest path to a node, or the distances to all nodes that can be reached.",
            {"distance": "DOUBLE", "position": "INT64"},
            {
                "source": Parameter("node", None, "Where paths begin."),
                "target": Parameter("node", None, "Where the path ends; without it: all nodes."),
                "directed": Parameter("bool", True, "Follow edges in their direction only."),
            },
            is_weighted=True,
            can_write=False,
        ),
    )
}
ALIASES: Final = {"connected_components": "wcc", "kcore": "k_core", "page_rank": "pagerank", "triangles": "triangle_count"}


def algorithm_named(name: str) -> Algorithm:
    """The algorithm; hyphens count as underscores. `Refusal` if there is none."""
    plain = name.lower().replace("-", "_")
    found = ALGORITHMS.get(ALIASES.get(plain, plain))
    if found is None:
        raise not_found(f"There is no algorithm {name!r}; there are: {', '.join(ALGORITHMS)}.")
    return found


def parameters_of(algorithm: Algorithm, given: Any) -> dict[str, Any]:
    """The parameters of a run, with their defaults. `Refusal` names the first that is wrong."""
    if not isinstance(given, dict):
        raise invalid("`parameters` must be a JSON object")
    unknown = sorted(set(given) - set(algorithm.parameters))
    if unknown:
        known = ", ".join(algorithm.parameters) or "none"
        raise invalid(f"{algorithm.name} has no parameter {unknown[0]!r}; there are: {known}")
    found = {name: _checked(name, one, given.get(name, one.default)) for name, one in algorithm.parameters.items()}
    if algorithm.name == "shortest_path" and found["source"] is None:
        raise invalid('shortest_path needs the parameter "source": {"label": …, "key": …}')
    return found


def _checked(name: str, parameter: Parameter, value: Any) -> Any:
    match parameter.kind:
        case "bool" if isinstance(value, bool):
            return value
        case "choice" if value in parameter.choices:
            return value
        case "node" if value is None or (isinstance(value, dict) and set(value) == {"label", "key"}):
            return value
        case "int" if isinstance(value, int) and not isinstance(value, bool) and parameter.least <= value <= parameter.most:
            return value
        case "float" if _is_number(value) and parameter.least <= value <= parameter.most:
            return float(value)
    raise invalid(f"the parameter {name!r} must be {_expected(parameter)}, not {value!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _expected(parameter: Parameter) -> str:
    match parameter.kind:
        case "bool":
            return "true or false"
        case "choice":
            return f"one of: {', '.join(parameter.choices)}"
        case "node":
            return '{"label": …, "key": …}'
        case _:
            what = "a whole number" if parameter.kind == "int" else "a number"
            return f"{what} from {parameter.least:g} to {parameter.most:g}"
