"""Read a data model from a YAML or JSON file, and the CO2 example that is part of the distribution."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from holdfast.errors import UsageError
from holdfast.extras import loaded

EXAMPLE: Final = Path(__file__).parent / "examples" / "co2.yaml"


def read_model(file: str | Path) -> dict[str, Any]:
    """The model in a file, as JSON values; the server checks it."""
    yaml = loaded("yaml", extra="client")
    try:
        found = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{file} is neither YAML nor JSON: {str(error).splitlines()[0]}") from None
    if not isinstance(found, dict) or "modules" not in found:
        raise UsageError(f"{file} must have a `name` and a list of `modules`")
    return found
