"""The classes with the settings of the services, by name of the service, as `module:class`. Filled by: `catalog.py`.

`settings.py` imports them when the settings of the process are read, and not before: pydantic is slow to load.
"""

from __future__ import annotations

from typing import Final

from holdfast.registry import Registry

PARTS: Final = Registry[str]("settings", {})
