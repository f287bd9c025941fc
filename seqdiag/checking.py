"""Checking the options of a question that comes from Python, where nothing was parsed."""

from __future__ import annotations

import builtins
import math
import sys
import types
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from seqdiag.errors import UsageError
from seqdiag.units import MAX_COUNT


def check_types(spec: Any, zero: Collection[str] = ()) -> None:
    """Raises `UsageError` if a field of the dataclass `spec` is not what its annotation says.

    Whole numbers are 1 or more, and 0 or more where `zero` names the field; floats are finite; a
    tuple is not empty unless that is its default.
    """
    hints = get_type_hints(
        type(spec), localns=_Unimported(vars(sys.modules[type(spec).__module__]))
    )
    for field in fields(spec):
        value = getattr(spec, field.name)
        if value == field.default and type(value) is type(field.default):
            continue
        wanted = _wanted(value, hints[field.name], 0 if field.name in zero else 1)
        if wanted:
            name = field.name.rstrip("_").replace("_", "-")
            raise UsageError(f"--{name}: {value!r:.60} is not {wanted}")


class _Unimported(dict[str, Any]):
    """Names that only a type checker imports stand for anything: they may need torch."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        super().__init__()
        self._known = known

    def __missing__(self, name: str) -> Any:
        if name in self._known or hasattr(builtins, name):
            raise KeyError(name)
        return object


def _wanted(value: object, hint: Any, minimum: int) -> str:
    """Returns what `value` should have been, empty if it is that."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if any(not _wanted(value, argument, minimum) for argument in arguments):
            return ""
        return " or ".join(_wanted(value, a, minimum) for a in arguments if a is not type(None))
    if hint is type(None):
        return "" if value is None else "nothing"
    if origin is Literal:
        return "" if value in arguments else f"one of {', '.join(map(str, arguments))}"
    if origin is tuple:
        whole = isinstance(value, tuple) and bool(value)
        if whole and all(not _wanted(item, arguments[0], minimum) for item in value):  # type: ignore[attr-defined]
            return ""
        return f"a list, each {_wanted(None, arguments[0], minimum)}"
    if hint is int:
        fits = type(value) is int and minimum <= value <= MAX_COUNT
        return "" if fits else f"a whole number from {minimum} to {MAX_COUNT}"
    if hint is float:
        fits = type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]
        return "" if fits else "a number"
    return "" if isinstance(value, hint) else {str: "text", bool: "True or False"}[hint]
