"""The web console: pages on the same plane as the API, rendered on the server. Needs the extra `console`.

    app.mount("/jobs", holdfast.console(url, auth=known))

This package is also the public function `holdfast.console`: calling it makes a console for another application, see
`apps/embedded_console.py`. A package and a function cannot have one name, so the package is callable.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *given: Any, **options: Any) -> Any:
        """A console to mount in another application."""
        return import_module("holdfast.apps.embedded_console").console(*given, **options)


sys.modules[__name__].__class__ = _Callable
