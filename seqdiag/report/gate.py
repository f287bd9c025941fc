"""`--fail-if`: a pandas `query` expression over the columns, tripped by any row it holds for."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from seqdiag.errors import UsageError, unknown
from seqdiag.report.document import Verdict
from seqdiag.report.schema import Column, Record

_EXAMPLE = "an expression over the columns looks like \"status != 'ok'\" or 'total_bytes > 2**34'"

_SAMPLES: Record = {"str": "a", "int": 1, "float": 0.5, "bool": True}
_MOST_POWER = 128


def check_expression(expression: str, columns: Sequence[Column]) -> None:
    """Raises `UsageError`, before anything is measured, for a syntax error or an unknown column."""
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise UsageError(
            f"--fail-if: {expression!r} is not an expression: {reason}", hint=_EXAMPLE
        ) from None
    known = [column.name for column in columns]
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    names = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and id(n) not in called]
    for name in names:
        if name not in known:
            raise unknown(f"--fail-if: {expression!r}: column", name, known)
    if not names:
        raise UsageError(f"--fail-if: {expression!r} uses no column", hint=_EXAMPLE)
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and not _small(node.right):
            raise UsageError(
                f"--fail-if: {expression!r} takes a power that is not a number up to {_MOST_POWER}"
            )
    sample = {column.name: _SAMPLES[column.type] for column in columns}
    _evaluate(expression, columns, [sample])  # whatever the types forbid is said now


def _small(exponent: ast.expr) -> bool:
    if isinstance(exponent, ast.UnaryOp):
        exponent = exponent.operand
    if not isinstance(exponent, ast.Constant) or not isinstance(exponent.value, int | float):
        return False
    return abs(exponent.value) <= _MOST_POWER


def judge(
    expressions: Sequence[str], columns: Sequence[Column], records: Sequence[Record]
) -> Verdict:
    """Returns the verdict of every expression on the rows.

    A row that lacks a value the answer depends on can't be judged (three-valued logic). Where no
    row can be, that is an error: silence must not read as a pass.
    """
    verdict = Verdict(list(expressions))
    for expression in expressions:
        try:
            holds = _evaluate(expression, columns, records)
        except UsageError as error:
            verdict.error = error
            continue
        if tripped := [index for index, held in enumerate(holds) if held]:
            verdict.tripped[expression] = tripped
        if unjudged := holds.count(None):
            verdict.unjudged[expression] = unjudged
    return verdict


def _evaluate(
    expression: str, columns: Sequence[Column], records: Sequence[Record]
) -> list[bool | None]:
    """Returns for each row whether `expression` holds, None where it can't be judged."""
    from seqdiag.report.frame import evaluate

    if not records:
        raise UsageError(f"--fail-if: {expression!r} has no rows to judge: the result is empty")
    try:
        holds = evaluate(expression.strip(), columns, records)
    except Exception as error:  # pandas raises whatever the operands raise
        reason = " ".join(str(error).split())
        raise UsageError(
            f"--fail-if: {expression!r} cannot be evaluated: {reason}", hint=_EXAMPLE
        ) from None
    if all(held is None for held in holds):
        raise UsageError(
            f"--fail-if: {expression!r} can judge no row: every row lacks a value that it uses"
        )
    return holds
