"""Reading counts, lists and sizes as users write them; showing them as people read them.

Counts and sizes are binary: k = 1024, M = 1024^2, G = 1024^3. Parsers raise `ValueError` with a
message that names the text and what would be accepted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import TypeVar

_SCALES = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
_COUNT = re.compile(r"(\d+(?:\.\d+)?)([kmgt]?)", re.IGNORECASE | re.ASCII)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b)?", re.IGNORECASE | re.ASCII)
_COUNT_FORM = "a whole number such as 4096 or 128k (k = 1024)"
_LIST_FORM = "numbers and ranges such as 1k,8k,128k or 512:8192:x2 or 10:50:10"
_LONGEST_LIST = 10_000

MAX_COUNT = 2**40
"""The largest count accepted anywhere: keeps every product of sizes far from a typo's 10^30."""

T = TypeVar("T")


def parse_count(text: str, *, minimum: int = 1) -> int:
    """Returns the whole number in `text`: `4096`, `128k`, `1.5M`."""
    match = _COUNT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not {_COUNT_FORM}")
    value = Decimal(match[1]) * _SCALES[match[2].lower()]
    if value != value.to_integral_value():
        raise ValueError(f"{text!r} is not {_COUNT_FORM}")
    if not minimum <= value <= MAX_COUNT:
        raise ValueError(f"{text!r} is out of range: from {minimum} to {MAX_COUNT}")
    return int(value)


def parse_counts(text: str, *, minimum: int = 1) -> tuple[int, ...]:
    """Returns the numbers of a list with ranges, in the order given, each once.

    `a:b:xN` multiplies by N and `a:b:N` adds N, from a up to and including b.
    """
    return tuple(dict.fromkeys(parse_series(text, minimum=minimum)))


def parse_series(text: str, *, minimum: int = 1) -> tuple[int, ...]:
    """Returns the numbers of a list with ranges, in the order given, repetitions included."""
    values: list[int] = []
    for item in text.split(","):
        values += (
            _parse_range(item, minimum) if ":" in item else [parse_count(item, minimum=minimum)]
        )
        if len(values) > _LONGEST_LIST:
            raise ValueError(f"{text!r} is more than {_LONGEST_LIST} numbers")
    return tuple(values)


def _parse_range(item: str, minimum: int) -> list[int]:
    parts = item.split(":")
    if len(parts) != 3 or not all(part.strip() for part in parts):
        raise ValueError(f"{item!r} is not a range START:STOP:STEP; accepted are {_LIST_FORM}")
    start = parse_count(parts[0], minimum=minimum)
    stop = parse_count(parts[1], minimum=minimum)
    multiply = parts[2].strip().lower().startswith("x")
    step = parse_count(parts[2].strip().lstrip("xX"), minimum=2 if multiply else 1)
    if stop < start:
        raise ValueError(f"{item!r} stops below its start; accepted are {_LIST_FORM}")
    if multiply and start == 0:
        raise ValueError(f"{item!r} multiplies zero; start at 1 or more")
    values = [start]
    while (following := values[-1] * step if multiply else values[-1] + step) <= stop:
        values.append(following)
        if len(values) > _LONGEST_LIST:
            raise ValueError(f"{item!r} is more than {_LONGEST_LIST} numbers")
    return values


def parse_float(text: str) -> float:
    """Returns the finite number in `text`."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is not a finite number")
    return value


def parse_names(text: str) -> tuple[str, ...]:
    """Returns the names of a comma-separated list, each once."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if not all(names):
        raise ValueError(f"{text!r} holds an empty name; accepted is a list such as a,b,c")
    return names


def parse_floats(text: str) -> tuple[float, ...]:
    """Returns the numbers of a comma-separated list, each once."""
    return tuple(dict.fromkeys(map(parse_float, text.split(","))))


def parse_size(text: str) -> int:
    """Returns the bytes in `text`: `80GiB`, `16GB`, `512M`, `4096`.

    GB is 10^9 bytes, as vendors and file sizes have it; GiB and a bare G are 2^30.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size such as 80GiB, 16GB or 4096")
    prefix, decimal = match[2].lower(), (match[3] or "").lower() == "b"
    scale = 1000 ** " kmgt".index(prefix or " ") if decimal else _SCALES[prefix]
    return int(Decimal(match[1]) * scale)


def parse_seconds(text: str) -> float:
    """Returns the seconds in `text`: `60s`, `500ms`, `2m`, `4`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?", text.strip(), re.ASCII)
    if match is None:
        raise ValueError(f"{text!r} is not a time such as 60s, 500ms or 2m")
    return float(match[1]) * {"ms": 1e-3, "s": 1, "m": 60, "h": 3600}[match[2] or "s"]


_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtp]?)b/s", re.IGNORECASE)


def parse_rate(text: str) -> float:
    """Returns the bytes a second in `text`: `3.35TB/s`. Prefixes are decimal, as vendors' are."""
    match = _RATE.fullmatch(text.strip())
    if match is None or not float(match[1]):
        raise ValueError(f"{text!r} is not a rate above 0 such as 3.35TB/s or 900GB/s")
    return float(match[1]) * 10.0 ** (3 * " kmgtp".index(match[2].lower() or " "))


def parse_share(text: str) -> float:
    """Returns the share in `text`, from 0% to below 100%: `10%`."""
    match = re.fullmatch(r"(\d{1,2}(?:\.\d+)?)\s*%", text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a share from 0% to below 100%, such as 10%")
    return float(match[1]) / 100


def optional(parse: Callable[[str], T], text: str | None) -> T | None:
    """Returns `parse(text)`, or None where nothing was given."""
    return None if text is None else parse(text)


def format_bytes(count: float) -> str:
    """Returns `count` bytes with three significant digits or more: `512 B`, `16.0 GiB`."""
    size = float(count)
    if abs(size) < 1024:
        return f"{count:g} B"
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"):
        size /= 1024
        if abs(size) < 1024:
            return f"{size:.1f} {unit}" if abs(size) < 1000 else f"{size:.0f} {unit}"
    return f"{count:.3g} B"


def format_tokens(count: int) -> str:
    """Returns a token count in its shortest exact form: `128k`, `1M`, `1000`."""
    for suffix in ("g", "m", "k"):
        scale = _SCALES[suffix]
        if count >= scale and count % scale == 0:
            return f"{count // scale}{'k' if suffix == 'k' else suffix.upper()}"
    return str(count)
