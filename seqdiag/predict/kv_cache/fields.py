"""Typed access to a model's config that remembers what was read and what was assumed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from seqdiag.errors import UsageError

_LARGEST = 2**40
_MOST_LAYERS = 100_000


class Fields:
    """The fields of one config. Every accessor names the field and the file when it refuses."""

    def __init__(
        self,
        data: Mapping[str, object],
        where: str,
        enc_len: int | None = None,
        class_defaults: Mapping[str, object] | None = None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        """`names` says how the model class spells fields, `class_defaults` what it assumes."""
        self._data = data
        self.where = where
        self.enc_len = enc_len
        """Encoder tokens that the user asks for."""
        self.class_defaults = class_defaults or {}
        self.names = names or {}
        self.read: dict[str, object] = {}
        self.assumed: dict[str, object] = {}
        self.conflicts: dict[str, str] = {}
        """Fields given in two spellings that differ, and which won."""

    def has(self, name: str) -> bool:
        """Returns whether the field is there and not null."""
        return self._get(name) is not None

    def given(self, *names: str) -> str | None:
        """Returns the first of `names` that is there and not null."""
        return next((name for name in names if self.has(name)), None)

    def either(self, *names: str) -> str | None:
        """Returns the first of `names` with a value, all spellings of one field.

        Another that differs is remembered as a conflict, with the one that won.
        """
        won = self.given(*names)
        for other in names:
            if won is not None and self.has(other) and self._get(other) != self._get(won):
                self.conflicts[won] = _conflict(won, self._get(won), other, self._get(other))
        return won

    def absent(self, name: str) -> bool:
        """Returns whether the field is not there at all; null counts as there."""
        return name not in self._data and self.names.get(name, name) not in self._data

    def known(self, name: str) -> bool:
        """Returns whether the field has a value, of the config or of the model class."""
        return self.has(name) or (self.absent(name) and name in self.class_defaults)

    def peek(self, names: Iterable[str]) -> object:
        """Returns the first of the fields that has a value, without counting it as read."""
        for name in names:
            value = self._get(name)
            if value is None and self.absent(name):
                value = self.class_defaults.get(name)
            if value is not None:
                return value
        return None

    def raw(self, name: str) -> object:
        """Returns the field as it stands, for readers of unusual shapes."""
        if self.has(name):
            value = self._get(name)
            self.read[name] = value if not isinstance(value, list | dict) else f"{len(value)} items"
        return self._get(name)

    def _get(self, name: str) -> object:
        """Returns the field; the model class's own spelling wins over the common one."""
        own = self.names.get(name, name)
        if own not in self._data:
            return self._data.get(name)
        value = self._data[own]
        if own != name and name in self._data and self._data[name] != value:
            self.conflicts[own] = _conflict(own, value, name, self._data[name])
        return value

    def _default(self, name: str, default: object) -> object:
        """Returns what an absent field is: the reader's default, else the model class's."""
        if default is None and self.absent(name):
            default = self.class_defaults.get(name)
        if default is None:
            raise UsageError(f"{self.where}: the field {name!r} is missing")
        self.assumed[name] = default
        return default

    def integer(self, name: str, *, default: int | None = None, minimum: int = 1) -> int:
        """Returns a whole number; where it is missing, `default`, noted as assumed."""
        value = self._get(name)
        if value is None:
            value = self._default(name, default)
        else:
            self.read[name] = value
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not minimum <= value <= _LARGEST
        ):
            raise self._wrong(name, f"a whole number from {minimum} to 2^40")
        return value

    def layers(self, name: str) -> int:
        """Returns a number of layers."""
        return self.within_layers(name, self.integer(name))

    def within_layers(self, what: str, layers: int) -> int:
        """Returns `layers`; refuses more than any model has, before they are built."""
        if not 1 <= layers <= _MOST_LAYERS:
            raise self.inconsistent(f"{what} = {layers} is not from 1 to {_MOST_LAYERS}")
        return layers

    def flag(self, name: str, *, default: bool) -> bool:
        """Returns a boolean; where it is missing, `default`, noted as assumed."""
        if not self.has(name):
            value = self.class_defaults.get(name, default) if self.absent(name) else default
            self.assumed[name] = value
            return bool(value)
        value = self._get(name)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        self.read[name] = value
        return value

    def text(self, name: str) -> str | None:
        """Returns a string, or None where it is missing."""
        if not self.has(name):
            return None
        value = self._get(name)
        if not isinstance(value, str):
            raise self._wrong(name, "a string")
        self.read[name] = value
        return value

    def integers(self, name: str, *, minimum: int = 1) -> tuple[int, ...]:
        """Returns a list of one whole number or more, each at least `minimum`."""
        value = self._get(name)
        if (
            not isinstance(value, list)
            or not value
            or not all(type(n) is int and minimum <= n <= _LARGEST for n in value)
        ):
            raise self._wrong(name, f"a list of whole numbers of {minimum} or more")
        self.read[name] = value
        return tuple(value)

    def is_auto(self, name: str) -> bool:
        """Returns whether the field leaves its value to be derived."""
        return self._get(name) == "auto"

    def layer_kinds(self, layers: int, known: Mapping[str, str]) -> list[str] | None:
        """Returns the kind of each layer, as `known` translates it, where the config lists them."""
        name = self.either("layer_types", "layers_block_type")
        if name is None:
            return None
        value = self._get(name)
        if not isinstance(value, list) or not all(
            isinstance(kind, str) and kind in known for kind in value
        ):
            raise self._wrong(name, f"a list of {', '.join(sorted(known))}")
        if len(value) != layers:
            raise UsageError(
                f"{self.where}: {name} lists {len(value)} layers, num_hidden_layers is {layers}"
            )
        self.read[name] = f"{len(value)} entries"
        return [known[kind] for kind in value]

    def number(self, name: str, *, default: float) -> float:
        """Returns a number above 0; where it is missing, `default`, noted as assumed."""
        if not self.has(name):
            self.assumed[name] = default
            return default
        value = self._get(name)
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
        shown = repr(self._get(name))
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        return UsageError(f"{self.where}: {name} = {shown} is not {accepted}")


def _conflict(won: str, value: object, other: str, lost: object) -> str:
    def shown(value: object) -> str:
        return f"{len(value)} items" if isinstance(value, list | dict) else f"{value!s:.40}"

    return f"{won} = {shown(value)} wins over {other} = {shown(lost)}"
