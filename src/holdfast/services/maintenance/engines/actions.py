"""The actions of table maintenance, their parameters and bounds. Pure data and checks; imports no engine.

`ACTIONS` has them in the order in which a job runs them. `parse_actions` turns a request into actions and reports every
mistake at once. A parameter that is a size or a duration may be a number (bytes, seconds) or a text such as `128MB` or `P7D`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Final, Literal, NamedTuple

from holdfast.errors import UsageError

KiB, MiB, GiB = 1 << 10, 1 << 20, 1 << 30
HOUR, DAY = 3600, 86400
ORPHAN_GUARD_SECONDS: Final = 7 * DAY
YEARS: Final = 20 * 365 * DAY

Type = Literal["integer", "size", "duration", "flag", "text", "choice", "columns"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of an action: its type, default and bounds, and one line of documentation."""

    name: str
    type: Type
    default: Any
    help: str
    low: int | None = None
    high: int | None = None
    choices: tuple[str, ...] = ()


class Problem(NamedTuple):
    """One mistake in a request: where it is (a JSON pointer within the list of actions), and how to fix it."""

    pointer: str
    message: str


class ActionsInvalid(UsageError):
    """The requested actions have mistakes. All of them are listed."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(problem.message for problem in problems))
        self.problems = list(problems)


@dataclass(frozen=True, slots=True)
class Action:
    """An action with checked parameters. The subclasses have the parameters."""

    name: ClassVar[str] = ""
    help: ClassVar[str] = ""
    parameters: ClassVar[tuple[Parameter, ...]] = ()

    def as_json(self) -> dict[str, Any]:
        """The action as `parse_actions` reads it: `{"action": …, parameters}`."""
        given = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}
        return {"action": self.name, **given}


@dataclass(frozen=True, slots=True)
class RewriteDataFiles(Action):
    """Combine small data files of a partition, and apply delete files."""

    name: ClassVar[str] = "rewrite_data_files"
    help: ClassVar[str] = "Combine small data files per partition and apply delete files."
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter(
            "strategy", "choice", "binpack", "binpack keeps the order of rows; sort orders them.", choices=("binpack", "sort")
        ),
        Parameter("sort_by", "columns", (), "Columns to sort by; `-name` is descending. Default: the table's sort order."),
        Parameter("target_file_size", "size", None, "Size of new files. Default: the table's property.", 64 * KiB, 8 * GiB),
        Parameter("min_input_files", "integer", 5, "Leave a partition alone that has fewer small files.", 2, 100_000),
        Parameter("where", "text", None, "Rewrite only files that may have rows that match this filter.", 1, 4000),
        Parameter("delete_file_threshold", "integer", 1, "Also rewrite a file that has this many delete files.", 1, 100_000),
    )
    strategy: str = "binpack"
    sort_by: tuple[str, ...] = ()
    target_file_size: int | None = None
    min_input_files: int = 5
    where: str | None = None
    delete_file_threshold: int = 1


@dataclass(frozen=True, slots=True)
class RewriteManifests(Action):
    """Combine small manifests, with their entries ordered by partition."""

    name: ClassVar[str] = "rewrite_manifests"
    help: ClassVar[str] = "Combine small manifests and order their entries by partition."
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("target_size", "size", 8 * MiB, "Size of new manifests.", 64 * KiB, GiB),
        Parameter("min_input_manifests", "integer", 2, "Do nothing if there are fewer small manifests.", 2, 100_000),
    )
    target_size: int = 8 * MiB
    min_input_manifests: int = 2


@dataclass(frozen=True, slots=True)
class ExpireSnapshots(Action):
    """Remove old snapshots, and delete the files that only they used."""

    name: ClassVar[str] = "expire_snapshots"
    help: ClassVar[str] = "Remove old snapshots and delete the files that only they used. Branches and tags are kept."
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("older_than", "duration", 5 * DAY, "Age from which snapshots expire.", 0, YEARS),
        Parameter("retain_last", "integer", 1, "Newest snapshots of every branch that are kept in any case.", 1, 1_000_000),
    )
    older_than: int = 5 * DAY
    retain_last: int = 1


@dataclass(frozen=True, slots=True)
class RemoveOrphanFiles(Action):
    """Delete files in the table's folder that no snapshot refers to."""

    name: ClassVar[str] = "remove_orphan_files"
    help: ClassVar[str] = "Delete files in the table's folder that no snapshot refers to."
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("older_than", "duration", ORPHAN_GUARD_SECONDS, "Minimum age of a file to be deleted.", 0, YEARS),
        Parameter(
            "force", "flag", False, "Allow an age below 7 days: files of writers that still run may be deleted. Admins only."
        ),
    )
    older_than: int = ORPHAN_GUARD_SECONDS
    force: bool = False


@dataclass(frozen=True, slots=True)
class ComputeStatistics(Action):
    """Compute column statistics, where the engine can."""

    name: ClassVar[str] = "compute_statistics"
    help: ClassVar[str] = "Compute column statistics (distinct values), where the engine supports it."
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("columns", "columns", (), "Columns to analyse. Default: all with a primitive type."),
    )
    columns: tuple[str, ...] = ()


# In the order in which a job runs them: files before manifests, and both before the snapshots that still use the old ones.
ACTIONS: Final[dict[str, type[Action]]] = {
    action.name: action
    for action in (RewriteDataFiles, RewriteManifests, ExpireSnapshots, RemoveOrphanFiles, ComputeStatistics)
}


def in_order(actions: Iterable[Action]) -> list[Action]:
    """The actions in the order in which a job runs them. Pure."""
    order = list(ACTIONS)
    return sorted(actions, key=lambda action: order.index(action.name))


# ---------------------------------------------------------------------------------------------------------------------
# Requests
# ---------------------------------------------------------------------------------------------------------------------


def parse_actions(given: Sequence[str | Mapping[str, Any]]) -> list[Action]:
    """The actions of a request, in the order in which they run; `ActionsInvalid` with every mistake.

    An item is a name (`"rewrite_manifests"`), or a mapping `{"action": name, parameter: value, …}`.
    """
    problems: list[Problem] = []
    actions: list[Action] = []
    if not given:
        problems.append(Problem("", f"no action is given; use one or more of {', '.join(ACTIONS)}"))
    for index, item in enumerate(given):
        action = _parse_one(item, f"/{index}", problems)
        if action is not None:
            actions.append(action)
    names = [action.name for action in actions]
    for twice in sorted({name for name in names if names.count(name) > 1}):
        problems.append(Problem("", f"{twice} is listed twice; list each action once"))
    if problems:
        raise ActionsInvalid(problems)
    return in_order(actions)


def _parse_one(item: str | Mapping[str, Any], pointer: str, problems: list[Problem]) -> Action | None:
    given: object = {"action": item} if isinstance(item, str) else item  # a request may contain anything
    if not isinstance(given, Mapping):
        problems.append(Problem(pointer, f"{item!r} is not an action; use a name or an object with `action`"))
        return None
    action = ACTIONS.get(given.get("action", ""))
    if action is None:
        problems.append(
            Problem(f"{pointer}/action", f"{given.get('action')!r} is not an action; use one of {', '.join(ACTIONS)}")
        )
        return None
    before = len(problems)
    known = {parameter.name: parameter for parameter in action.parameters}
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key == "action":
            continue
        if key not in known:
            allowed = ", ".join(known)
            problems.append(
                Problem(f"{pointer}/{key}", f"{action.name} has no parameter {key!r}; its parameters are {allowed}")
            )
            continue
        try:
            values[key] = checked(known[key], value)
        except ValueError as wrong:
            problems.append(Problem(f"{pointer}/{key}", f"{action.name}.{key}: {wrong}"))
    if len(problems) > before:
        return None
    made = action(**values)
    problems += [Problem(f"{pointer}/{key}", f"{action.name}.{key}: {message}") for key, message in contradictions(made)]
    return made


def contradictions(action: Action) -> Iterable[tuple[str, str]]:
    """Parameters that are valid alone and not together: (parameter, message). Pure."""
    if isinstance(action, RewriteDataFiles) and action.sort_by and action.strategy != "sort":
        yield "sort_by", "is only used by strategy 'sort'; set strategy to 'sort' or leave sort_by out"
    if isinstance(action, RemoveOrphanFiles) and action.older_than < ORPHAN_GUARD_SECONDS and not action.force:
        yield "older_than", "is less than 7 days, so files of writers that still run may be deleted; an admin can set force"


SIZE: Final = re.compile(r"(?P<number>[0-9]{1,15})\s*(?P<unit>[KMG]i?B|B)?")
SIZES: Final = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": KiB, "MiB": MiB, "GiB": GiB}
DURATION: Final = re.compile(
    r"P(?:(?P<weeks>[0-9]{1,6})W)?(?:(?P<days>[0-9]{1,6})D)?"
    r"(?:T(?:(?P<hours>[0-9]{1,6})H)?(?:(?P<minutes>[0-9]{1,8})M)?(?:(?P<seconds>[0-9]{1,9})S)?)?"
)
SHORT: Final = re.compile(r"(?P<number>[0-9]{1,9})\s*(?P<unit>[smhdw])")
SECONDS: Final = {"weeks": 7 * DAY, "days": DAY, "hours": HOUR, "minutes": 60, "seconds": 1}
COLUMN: Final = re.compile(r"-?[^\s,`\"';()-][^`\"';()]{0,199}")


def checked(parameter: Parameter, value: Any) -> Any:
    """The value in the type of the parameter; `ValueError` with the fix. Pure."""
    if value is None:
        if parameter.default is None:
            return None
        raise ValueError("must not be null; leave it out for the default")
    match parameter.type:
        case "integer":
            number = value
        case "size":
            number = size(value)
        case "duration":
            number = duration(value)
        case "flag":
            if not isinstance(value, bool):
                raise ValueError(f"{value!r} must be true or false")
            return value
        case "text":
            return _text(parameter, value)
        case "choice":
            if value not in parameter.choices:
                raise ValueError(f"{value!r} must be one of {', '.join(parameter.choices)}")
            return value
        case "columns":
            return _columns(value)
    if not isinstance(number, int) or isinstance(number, bool):
        raise ValueError(f"{value!r} must be a whole number")
    if not (parameter.low or 0) <= number <= (parameter.high or number):
        raise ValueError(f"{value!r} must be between {parameter.low} and {parameter.high}")
    return number


def size(value: Any) -> int:
    """Bytes of a number or of a text such as `128MB` or `512 MiB`."""
    if isinstance(value, str):
        match = SIZE.fullmatch(value.strip())
        if match is None:
            raise ValueError(f"{value!r} is not a size; use bytes, or a text such as 128MB or 512MiB")
        return int(match["number"]) * SIZES[match["unit"] or "B"]
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{value!r} is not a size; use bytes, or a text such as 128MB or 512MiB")
    return value


def duration(value: Any) -> int:
    """Seconds of a number, or of a text such as `P7D`, `PT12H` or `7d`."""
    if isinstance(value, str):
        text = value.strip()
        short = SHORT.fullmatch(text)
        if short is not None:
            return int(short["number"]) * {"s": 1, "m": 60, "h": HOUR, "d": DAY, "w": 7 * DAY}[short["unit"]]
        match = DURATION.fullmatch(text)
        if match is None or not any(match.groupdict().values()):
            raise ValueError(f"{value!r} is not a duration; use seconds, or a text such as P7D, PT12H or 7d")
        return sum(int(number) * SECONDS[unit] for unit, number in match.groupdict().items() if number)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{value!r} is not a duration; use seconds, or a text such as P7D, PT12H or 7d")
    return value


def _text(parameter: Parameter, value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError(f"{value!r} must be a printable text")
    if not (parameter.low or 0) <= len(value) <= (parameter.high or len(value)):
        raise ValueError(f"must have between {parameter.low} and {parameter.high} characters")
    return value


def _columns(value: Any) -> tuple[str, ...]:
    listed = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    if not isinstance(listed, (list, tuple)) or not all(isinstance(one, str) and COLUMN.fullmatch(one) for one in listed):
        raise ValueError(f"{value!r} must be a list of column names")
    if len(set(listed)) != len(listed):
        raise ValueError(f"{value!r} names a column twice")
    return tuple(listed)


def defaults(action: type[Action]) -> dict[str, Any]:
    """The default parameters of an action. A test compares them with `parameters`."""
    return {field.name: field.default for field in fields(action)}
