"""One result in every format, against golden files (`make golden` writes them anew)."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from seqdiag.report.document import Document, Verdict
from seqdiag.report.formats import FORMATS, load_format
from seqdiag.report.result import Diagnosis
from seqdiag.report.schema import Status, column, columns_of, record_of

GOLDEN = Path(__file__).parent.parent / "data" / "golden"


@dataclass(frozen=True, slots=True)
class SampleRow:
    name: str = column("who", identity=True)
    ctx_tokens: int = column("where", unit="tokens", identity=True)
    kv_bytes: int = column("how much", unit="B")
    rate_ratio: float | None = column("how fast")
    norm_log10: float | None = column("how small", unit="log10")
    reaches: bool | None = column("whether")
    status: Status = column("ok, or why not")
    note: str = column("why")


ROWS = [
    SampleRow("plain", 1024, 17179869184, 0.1 + 0.2, -18.6061, True, "ok", ""),
    SampleRow("[b, h, t] :smile: | \\", 1000, 2**63, 1e-300, None, False, "skipped", 'a "b", c|d'),
    SampleRow("non-finite", 131072, 0, float("nan"), float("-inf"), None, "nonfinite", "line\nend"),
]


def document(partial: bool = False) -> Document:
    return Document(
        command="sample",
        argv=["sample", "--json"],
        spec={"ctx": [1024], "dtype": None},
        environment=lambda: {"seqdiag": "0.0.0"},
        columns=columns_of(SampleRow),
        records=[record_of(row) for row in ROWS],
        headline=None,
        findings=["What the numbers mean.", "[red]What to try.[/red]"],
        verdict=Verdict(["kv_bytes > 1"], {"kv_bytes > 1": [0, 1]}, {}),
        partial=partial,
    )


def render(name: str) -> str:
    stream = io.StringIO()
    writer = load_format(name)(stream)
    shown = document()
    writer.begin(shown.columns)
    for record in shown.records:
        writer.row(record)
    writer.end(shown)
    return stream.getvalue()


@pytest.mark.parametrize("name", FORMATS)
def test_golden(name: str) -> None:
    path = GOLDEN / f"sample.{name}"
    if os.environ.get("SEQDIAG_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(render(name), encoding="utf-8", newline="")
    assert render(name) == path.read_bytes().decode("utf-8")


@pytest.mark.parametrize("name", FORMATS)
def test_our_own_text_is_ascii(name: str) -> None:
    assert render(name).isascii()


def test_json_is_strict_and_holds_the_envelope() -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    envelope = json.loads(render("json"), parse_constant=refuse)
    assert list(envelope) == [
        "schema_version",
        "command",
        "argv",
        "spec",
        "environment",
        "columns",
        "rows",
        "findings",
        "verdict",
        "partial",
    ]
    assert envelope["rows"][1]["kv_bytes"] == 2**63
    assert envelope["rows"][2]["rate_ratio"] is None
    assert envelope["rows"][0]["rate_ratio"] == 0.1 + 0.2


def test_jsonl_is_one_object_a_row() -> None:
    assert [json.loads(line)["name"] for line in render("jsonl").splitlines()] == [
        row.name for row in ROWS
    ]


def test_frame_keeps_integers_and_missing_values() -> None:
    def rows() -> Iterator[SampleRow]:
        yield from ROWS

    diagnosis = Diagnosis("sample", {}, SampleRow, rows(), len(ROWS), lambda rows: ["done"])
    result = diagnosis.run()
    frame = result.frame()
    assert result.findings == ["done"]
    assert list(frame.columns) == [c.name for c in columns_of(SampleRow)]
    assert frame["kv_bytes"].tolist() == [17179869184, 2**63, 0]
    assert str(frame["ctx_tokens"].dtype) == "Int64"
    assert frame["rate_ratio"].isna().tolist() == [False, False, True]
    assert frame["reaches"].isna().tolist() == [False, False, True]
