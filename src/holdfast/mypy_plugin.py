"""Teach mypy that `kind.enqueue(...)` takes the options of `Options` beside the function's own arguments.

    [tool.mypy]
    plugins = ["holdfast.mypy_plugin"]

Python's type language cannot say "these parameters, and a few keywords more"; this says it. Without the plugin, and in other
type checkers, `kind.using(tx=session).enqueue(...)` is checked as it stands.
"""

from __future__ import annotations

from collections.abc import Callable

from mypy.nodes import ARG_NAMED_OPT
from mypy.plugin import MethodSigContext, Plugin
from mypy.types import CallableType, FunctionLike, TypedDictType

METHODS = {f"holdfast.worker.kinds.Job.{name}" for name in ("enqueue", "enqueue_sync")}


class HoldfastPlugin(Plugin):
    def get_method_signature_hook(self, fullname: str) -> Callable[[MethodSigContext], FunctionLike] | None:
        return self._with_options if fullname in METHODS else None

    def _with_options(self, context: MethodSigContext) -> FunctionLike:
        signature = context.default_signature
        found = self.lookup_fully_qualified("holdfast.worker.kinds.Options")
        options = getattr(found.node if found else None, "typeddict_type", None)
        if not isinstance(signature, CallableType) or not isinstance(options, TypedDictType):
            return signature
        items = options.items
        return signature.copy_modified(
            arg_types=[*signature.arg_types, *items.values()],
            arg_kinds=[*signature.arg_kinds, *([ARG_NAMED_OPT] * len(items))],
            arg_names=[*signature.arg_names, *items],
        )


def plugin(version: str) -> type[Plugin]:
    return HoldfastPlugin
