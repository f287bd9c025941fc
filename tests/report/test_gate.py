from __future__ import annotations

from dataclasses import dataclass

import pytest

from seqdiag.errors import UsageError
from seqdiag.report.gate import check_expression, judge
from seqdiag.report.schema import column, columns_of, record_of


@dataclass(frozen=True)
class Row:
    name: str = column("who", identity=True)
    steps: int = column("where")
    ratio: float | None = column("how much")
    big_bytes: int = column("more than 64 bits")


COLUMNS = columns_of(Row)
RECORDS = [record_of(row) for row in (Row("a", 1, 0.5, 2**70), Row("b", 2, None, 1))]


@pytest.mark.parametrize(
    ("expression", "rows", "unjudged"),
    [
        ("steps >= 2", [1], 0),
        ("steps > 2", [], 0),
        ("ratio < 1", [0], 1),
        ("ratio < 0.1", [], 1),
        ("ratio < 1 or steps == 2", [0, 1], 0),
        ("ratio < 1 and steps == 9", [], 0),
        ("name == 'b'", [1], 0),
        ("name in ['a', 'b']", [0, 1], 0),
        ("name.str.startswith('a')", [0], 0),
        ("big_bytes > 2**64", [0], 0),
        (" steps == 1 ", [0], 0),
    ],
)
def test_judge(expression: str, rows: list[int], unjudged: int) -> None:
    check_expression(expression, COLUMNS)
    verdict = judge([expression], COLUMNS, RECORDS)
    assert verdict.tripped.get(expression, []) == rows
    assert verdict.unjudged.get(expression, 0) == unjudged
    assert verdict.error is None
    assert verdict.passed == (not rows)


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "steps >",
        "steps = 2",
        "@steps > 1",
        "1 < 2",
        "step > 1",
        "ratio <",
        "import os",
        "(" * 500,
    ],
)
def test_check_refuses_before_anything_is_measured(expression: str) -> None:
    with pytest.raises(UsageError, match="--fail-if"):
        check_expression(expression, COLUMNS)


def test_an_unknown_column_names_the_columns() -> None:
    with pytest.raises(UsageError) as caught:
        check_expression("stepz > 1", COLUMNS)
    assert "did you mean steps?" in caught.value.hint
    assert "big_bytes" in caught.value.hint


@pytest.mark.parametrize(
    "expression", ["steps > 9**9**9", "steps > 2**steps", "steps ** 1000 > 1", "steps.foo > 1"]
)
def test_what_would_hang_or_fail_is_refused_first(expression: str) -> None:
    with pytest.raises(UsageError, match="--fail-if"):
        check_expression(expression, COLUMNS)


@pytest.mark.parametrize("expression", ["steps + 1", "name > 1", "steps"])
def test_what_is_no_verdict_is_an_error(expression: str) -> None:
    with pytest.raises(UsageError, match="cannot be evaluated"):
        check_expression(expression, COLUMNS)
    verdict = judge([expression], COLUMNS, RECORDS)
    assert verdict.error is not None
    assert not verdict.passed


def test_silence_is_not_a_pass() -> None:
    empty = judge(["steps > 1"], COLUMNS, []).error
    assert empty is not None and "empty" in empty.message
    missing = judge(["ratio > 1"], COLUMNS, RECORDS[1:]).error
    assert missing is not None and "lacks a value" in missing.message


def test_every_expression_is_judged() -> None:
    verdict = judge(["steps > 5", "steps > 1", "name == 'a'"], COLUMNS, RECORDS)
    assert verdict.tripped == {"steps > 1": [1], "name == 'a'": [0]}
