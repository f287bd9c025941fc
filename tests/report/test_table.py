"""What a terminal shows that a pipe does not."""

from __future__ import annotations

import io
from dataclasses import dataclass

import pytest

from seqdiag.report.document import Document, Verdict
from seqdiag.report.schema import column, columns_of, record_of
from seqdiag.report.to_table import READABLE_ROWS, TableWriter


@dataclass(frozen=True)
class Row:
    model: str = column("who", identity=True)
    engine_name: str = column("the same for all", identity=True)
    context_tokens: int = column("where", unit="tokens", identity=True)
    total_number_of_bytes: int = column("how much", unit="B")
    status: str = column("ok")
    note: str = column("why")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def show(rows: list[Row], stream: io.StringIO, headline: list[bool] | None = None) -> str:
    records = [record_of(row) for row in rows]
    document = Document(
        "sample", [], {}, dict, columns_of(Row), records, headline, [], Verdict(), False
    )
    TableWriter(stream).end(document)
    return stream.getvalue()


ROWS = [Row(f"model-{i}", "ideal", 1024 * i, 1024**i, "ok", "z" * 70) for i in range(1, 4)]


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.mark.usefixtures("narrow")
def test_a_pipe_gets_every_column_whole_and_plain() -> None:
    text = show(ROWS, io.StringIO())
    header, *lines = text.splitlines()
    assert header.split() == [c.name for c in columns_of(Row)]
    assert all("z" * 70 in line for line in lines)
    assert "\x1b" not in text
    assert text.isascii()


@pytest.mark.usefixtures("narrow")
def test_a_terminal_folds_but_cuts_nothing() -> None:
    text = show(ROWS, Terminal())
    assert "engine_name ideal" in text, "what is the same throughout stands above the table"
    assert text.count("ideal") == 1
    assert "\x1b[1m" in text
    assert "..." not in text
    assert "…" not in text
    assert text.count("z") == 3 * 70


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_no_colour(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    assert "\x1b" not in show(ROWS, Terminal())


def test_a_long_table_shows_the_headline_rows() -> None:
    rows = [Row(f"m{i}", "ideal", i, i, "ok", "") for i in range(READABLE_ROWS + 1)]
    text = show(rows, io.StringIO(), [i % 10 == 0 for i in range(len(rows))])
    assert "m40" in text
    assert "m11" not in text
    assert "36 more rows in between" in text
    assert "m11" in show(rows[:-1], io.StringIO(), [False] * READABLE_ROWS)


def test_no_rows() -> None:
    assert show([], io.StringIO()).startswith("model")
