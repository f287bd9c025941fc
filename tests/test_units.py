from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdiag.units import (
    format_bytes,
    format_tokens,
    parse_count,
    parse_counts,
    parse_float,
    parse_floats,
    parse_names,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("4096", 4096), ("1k", 1024), ("128K", 131072), ("1M", 2**20), ("1.5k", 1536)],
)
def test_parse_count(text: str, value: int) -> None:
    assert parse_count(text) == value


@pytest.mark.parametrize(
    "text",
    ["0", "-1", "abc", "", " ", "1.5", "1e3", "0.3k", "k", "1kk", "nan", "inf", "1" * 40, "٣"],
)
def test_parse_count_refuses(text: str) -> None:
    with pytest.raises(ValueError, match=r"whole number|out of range"):
        parse_count(text)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1k,8k,32k", (1024, 8192, 32768)),
        ("512:8192:x2", (512, 1024, 2048, 4096, 8192)),
        ("10:50:20", (10, 30, 50)),
        ("10:55:20", (10, 30, 50)),
        ("7:7:1", (7,)),
        ("4,2,4,1:4:1", (4, 2, 1, 3)),
    ],
)
def test_parse_counts(text: str, values: tuple[int, ...]) -> None:
    assert parse_counts(text) == values


@pytest.mark.parametrize(
    "text", ["1k:", "1k:2k", ":", "1,,2", "5:1:1", "1:9:x1", "1:9:0", "1:9:-1", "1:1M:1", "1:2:3:4"]
)
def test_parse_counts_refuses(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        parse_counts(text)


def test_parse_counts_from_zero() -> None:
    assert parse_counts("0:4:2", minimum=0) == (0, 2, 4)
    with pytest.raises(ValueError, match="multiplies zero"):
        parse_counts("0:4:x2", minimum=0)


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "x", ""])
def test_parse_float_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="number"):
        parse_float(text)


def test_parse_lists() -> None:
    assert parse_floats("0.9,1,0.9") == (0.9, 1.0)
    assert parse_names("rnn, lstm,rnn") == ("rnn", "lstm")
    with pytest.raises(ValueError, match="empty name"):
        parse_names("rnn,,lstm")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("80GiB", 80 * 2**30),
        ("2 GiB", 2**31),
        ("512M", 2**29),
        ("4096", 4096),
        ("1kb", 1000),
        ("16GB", 16 * 10**9),
        ("1.5 MB", 1500000),
    ],
)
def test_parse_size(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (8388608, "8.0 MiB"),
        (17179869184, "16.0 GiB"),
        (1023 * 1024, "1023 KiB"),
        (2**81, "2.0 YiB"),
    ],
)
def test_format_bytes(count: int, shown: str) -> None:
    assert format_bytes(count) == shown


@given(st.integers(min_value=1, max_value=2**40))
def test_tokens_read_back(count: int) -> None:
    assert parse_count(format_tokens(count)) == count
