"""Looking up an implementation by name; a module is imported when it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from seqdiag.errors import unknown


@dataclass(frozen=True, slots=True)
class Implementation:
    """One way to compute an op."""

    name: str
    run: Callable[..., Any]
    why_not: Callable[..., str | None]


def load_implementation(
    table: Mapping[str, str], name: str, option: str = "impl"
) -> Implementation:
    """Returns the implementation `name` of a table from name to `module:function`.

    The module may define `why_not_FUNCTION` or `why_not`; without either it runs everything.
    """
    if name not in table:
        raise unknown("--impl", name, table)
    module_name, _, function = table[name].partition(":")
    module = importlib.import_module(module_name)
    why_not = getattr(module, f"why_not_{function}", getattr(module, "why_not", _runs_everything))
    return Implementation(name, getattr(module, function), why_not)


def _runs_everything(problem: object, device: object) -> str | None:
    return None
