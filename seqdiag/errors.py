"""The errors a user can cause or meet; each carries its exit code."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SeqdiagError(Exception):
    """An error shown as one line `error: MESSAGE` and, where it helps, one line `hint: HINT`."""

    exit_code = 4

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(SeqdiagError):
    """Wrong usage or wrong input: the message names the option, the value and what is accepted."""

    exit_code = 2


class UnavailableError(SeqdiagError):
    """Something asked for explicitly is not there on this machine."""

    exit_code = 3


def is_memory(error: BaseException) -> bool:
    """Returns whether an error says that memory ran out, which PyTorch says in several ways."""
    text = str(error)
    signs = ("allocate memory", "out of memory", "Storage size", "too large", "overflow")
    return isinstance(error, MemoryError) or any(sign in text for sign in signs)


def unknown(option: str, name: str, known: Iterable[str]) -> UsageError:
    """Returns the error for a `name` that is none of `known`, suggesting the nearest."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    nearest = f"did you mean {close[0]}? " if close else ""
    return UsageError(
        f"{option}: unknown name {name!r}",
        hint=f"{nearest}known: {', '.join(names)}",
    )
