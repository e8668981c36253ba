"""The templates of the console, compiled once per process: each app has its own environment, and would compile them again.

`conftest.py` calls `compile_once`. Compiling takes longer than rendering: half a second for all pages.
"""

from __future__ import annotations

import functools
from types import CodeType

import jinja2
from jinja2.bccache import Bucket

from holdfast.console import app


class Compiled(jinja2.BytecodeCache):
    """Compiled templates by name and file, as long as their text is the same."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], CodeType] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._found.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        if bucket.code is not None:
            self._found[bucket.key, bucket.checksum] = bucket.code


def compile_once() -> None:
    """Let all environments of the console, which have the same options, share what they compile."""
    make, compiled = app.environment, Compiled()

    @functools.wraps(make)
    def environment(*given: object) -> jinja2.Environment:
        made = make(*given)
        made.bytecode_cache = compiled
        return made

    app.environment = environment
