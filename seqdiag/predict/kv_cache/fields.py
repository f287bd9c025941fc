"""Typed access to a model's config that remembers what was read and what was assumed."""

from __future__ import annotations

from collections.abc import Mapping

from seqdiag.errors import UsageError

_LARGEST = 2**40


class Fields:
    """The fields of one config. Every accessor names the field and the file when it refuses."""

    def __init__(self, data: Mapping[str, object], where: str) -> None:
        self._data = data
        self.where = where
        self.read: dict[str, object] = {}
        self.assumed: dict[str, object] = {}

    def has(self, name: str) -> bool:
        """Returns whether the field is there and not null."""
        return self._data.get(name) is not None

    def absent(self, name: str) -> bool:
        """Returns whether the field is not there at all; null counts as there."""
        return name not in self._data

    def integer(self, name: str, *, default: int | None = None, minimum: int = 1) -> int:
        """Returns a whole number; where it is missing, `default`, noted as assumed."""
        if not self.has(name):
            if default is None:
                raise UsageError(f"{self.where}: the field {name!r} is missing")
            self.assumed[name] = default
            return default
        value = self._data[name]
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not minimum <= value <= _LARGEST
        ):
            raise self._wrong(name, f"a whole number from {minimum} to 2^40")
        self.read[name] = value
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """Returns a boolean; where it is missing, `default`, noted as assumed."""
        if not self.has(name):
            self.assumed[name] = default
            return default
        value = self._data[name]
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        self.read[name] = value
        return value

    def text(self, name: str) -> str | None:
        """Returns a string, or None where it is missing."""
        if not self.has(name):
            return None
        value = self._data[name]
        if not isinstance(value, str):
            raise self._wrong(name, "a string")
        self.read[name] = value
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        """Returns a list of one whole number or more."""
        value = self._data.get(name)
        if (
            not isinstance(value, list)
            or not value
            or not all(type(n) is int and 1 <= n <= _LARGEST for n in value)
        ):
            raise self._wrong(name, "a list of whole numbers of 1 or more")
        self.read[name] = value
        return tuple(value)

    def is_auto(self, name: str) -> bool:
        """Returns whether the field leaves its value to be derived."""
        return self._data.get(name) == "auto"

    def layer_kinds(self, layers: int, known: set[str]) -> list[str] | None:
        """Returns the kind of each layer where the config lists them."""
        name = next((n for n in ("layer_types", "layers_block_type") if self.has(n)), None)
        if name is None:
            return None
        value = self._data[name]
        if not isinstance(value, list) or not all(kind in known for kind in value):
            raise self._wrong(name, f"a list of {', '.join(sorted(known))}")
        if len(value) != layers:
            raise UsageError(
                f"{self.where}: {name} lists {len(value)} layers, num_hidden_layers is {layers}"
            )
        self.read[name] = f"{len(value)} entries"
        return value

    def number(self, name: str, *, default: float) -> float:
        """Returns a number above 0; where it is missing, `default`, noted as assumed."""
        if not self.has(name):
            self.assumed[name] = default
            return default
        value = self._data[name]
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not 0 < value < _LARGEST
        ):
            raise self._wrong(name, "a number above 0")
        self.read[name] = value
        return value

    def inconsistent(self, reason: str) -> UsageError:
        """Returns the error for fields that contradict each other."""
        return UsageError(f"{self.where}: {reason}")

    def _wrong(self, name: str, accepted: str) -> UsageError:
        shown = repr(self._data.get(name))
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        return UsageError(f"{self.where}: {name} = {shown} is not {accepted}")
