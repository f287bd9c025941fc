"""The metadata of a GGUF file, mapped into memory: no tensor is read.

Format: `docs/gguf.md` of ggml, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from seqdiag.errors import UsageError

_MAGIC = b"GGUF"
_SCALARS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q",
    12: "<d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9
_MOST_PAIRS = 2**16
_MOST_STRINGS = 2**21
_LONGEST_KEPT = 2**16
"""Longer arrays are token lists and the like: stepped over."""
_LONGEST_STRING = 2**24


def read_header(option: str, path: Path) -> dict[str, object]:
    """Returns the metadata of the GGUF file `path`; arrays of strings and long ones are left out.

    Raises `UsageError` for what is no GGUF, for another version, and for lengths beyond the file.
    """
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            return _Cursor(data, f"{option}: {path}").header()
    except ValueError:
        raise UsageError(f"{option}: {path} is empty") from None
    except OSError as error:
        raise UsageError(f"{option}: {path}: {error.strerror}") from None


class _Cursor:
    """A position in the file; every step is checked against its end."""

    def __init__(self, data: mmap.mmap, where: str) -> None:
        self._data, self._where, self._at, self._end = data, where, 0, len(data)

    def header(self) -> dict[str, object]:
        if self._data[:4] != _MAGIC:
            raise UsageError(f"{self._where} is not GGUF: it begins with {self._data[:4]!r}")
        self._step(4)
        version = self._scalar("<I")
        if version not in (2, 3):
            raise UsageError(f"{self._where}: GGUF version {version} is not 2 or 3")
        self._step(8)  # the number of tensors
        pairs = self._count("<Q", 13, _MOST_PAIRS, "metadata pairs")
        found: dict[str, object] = {}
        for _ in range(pairs):
            key = self._string()
            value = self._value(self._count("<I", 0, 12, "kinds"))
            if value is not None:
                found[key] = value
        return found

    def _value(self, kind: int) -> object:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._scalar(_SCALARS[kind])
        inner = self._count("<I", 0, 12, "kinds")
        if inner == _ARRAY:
            raise UsageError(f"{self._where}: arrays of arrays are not supported")
        if inner == _STRING:
            self._skip_strings(self._count("<Q", 8, _MOST_STRINGS, "strings"))
            return None
        form = _SCALARS[inner]
        size = struct.calcsize(form)
        count = self._count("<Q", size, self._end, "array entries")
        if count > _LONGEST_KEPT:
            self._step(count * size)
            return None
        start = self._step(count * size)
        return list(struct.unpack_from(f"<{count}{form[1]}", self._data, start))

    def _skip_strings(self, count: int) -> None:
        unpack, data, at, end = struct.Struct("<Q").unpack_from, self._data, self._at, self._end
        for _ in range(count):
            if at + 8 > end:
                raise self._truncated(8)
            at += 8 + unpack(data, at)[0]
        if at > end:
            raise self._truncated(at - end)
        self._at = at

    def _string(self) -> str:
        length = self._count("<Q", 1, _LONGEST_STRING, "bytes of a string")
        start = self._step(length)
        return self._data[start : start + length].decode("utf-8", "replace")

    def _scalar(self, form: str) -> int | float | bool:
        start = self._step(struct.calcsize(form))
        value: int | float | bool = struct.unpack_from(form, self._data, start)[0]
        return value

    def _count(self, form: str, size: int, most: int, what: str) -> int:
        """Returns a count that the rest of the file can hold at `size` bytes each."""
        value = int(self._scalar(form))
        if value > most or value * size > self._end - self._at:
            raise UsageError(f"{self._where}: claims {value} {what}, more than it can hold")
        return value

    def _step(self, size: int) -> int:
        """Moves on by `size` bytes; returns where it was."""
        if size > self._end - self._at:
            raise self._truncated(size)
        self._at += size
        return self._at - size

    def _truncated(self, size: int) -> UsageError:
        return UsageError(f"{self._where} is truncated: {size} more bytes at {self._at}")
