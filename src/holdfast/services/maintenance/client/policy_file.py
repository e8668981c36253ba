"""Read policies from a YAML or JSON file: one policy, or several documents. Used by the client and the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.errors import UsageError
from holdfast.extras import loaded


def read_policies(file: str | Path) -> list[dict[str, Any]]:
    """The policies of a file; the server checks what they say."""
    yaml = loaded("yaml", extra="client")
    try:
        found = [one for one in yaml.safe_load_all(Path(file).read_text()) if one is not None]
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from None
    except yaml.MarkedYAMLError as error:
        at = error.problem_mark or error.context_mark
        place = file if at is None else f"{file}, line {at.line + 1}, column {at.column + 1}"
        raise UsageError(f"{place} is neither YAML nor JSON: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{file} is neither YAML nor JSON: {str(error).splitlines()[0]}") from None
    return checked(found, str(file))


def checked(found: list[Any], what: str) -> list[dict[str, Any]]:
    """Refuse what cannot be sent as a policy. Pure."""
    if not found:
        raise UsageError(f"{what} has no policy; write one with `name`, `match`, `schedule` and `actions`")
    for one in found:
        if not isinstance(one, dict) or not isinstance(one.get("name"), str):
            raise UsageError(f"each policy in {what} must be an object with a `name`")
    names = [one["name"] for one in found]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{what} has two policies with the name {name!r}; give each its own name")
    return found
