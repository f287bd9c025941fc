"""Files, streams and exit codes, with a diagnosis of our own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from seqdiag.errors import UsageError
from seqdiag.report.publish import OutputOptions, publish
from seqdiag.report.result import Diagnosis, PlotSpec
from seqdiag.report.schema import column


@dataclass(frozen=True)
class Row:
    name: str = column("who", identity=True)
    dtype: str = column("in what", identity=True)
    size_bytes: int | None = column("how much", unit="B")


def diagnosis(rows: Callable[[], Iterator[Row]]) -> Diagnosis:
    plot = PlotSpec("size_bytes", "size_bytes", "name", "x", "y", log_x=True, log_y=True)
    return Diagnosis("sample", {"n": 1}, Row, rows(), 3, lambda rows: ["A finding."], plot)


def three() -> Iterator[Row]:
    yield from (Row("a", "f16", 10), Row("b", "f16", 20), Row("c", "f16", None))


def interrupted() -> Iterator[Row]:
    yield Row("a", "f16", 10)
    raise KeyboardInterrupt


def broken() -> Iterator[Row]:
    yield Row("a", "f16", 10)
    raise UsageError("bad")


def show(rows: Callable[[], Iterator[Row]] = three, **options: object) -> int:
    return publish(diagnosis(rows), OutputOptions(**options), ["sample"])  # type: ignore[arg-type]


def test_files_take_their_format_from_the_suffix(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    names = ["r.csv", "r.json", "r.jsonl", "r.md", "r.txt"]
    assert show(output=tuple(tmp_path / name for name in names), format="csv") == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    assert (tmp_path / "r.csv").read_text() == capfd.readouterr().out
    assert json.loads((tmp_path / "r.json").read_text())["spec"] == {"n": 1}
    assert "| a | f16 | 10 |" in (tmp_path / "r.md").read_text()
    assert (tmp_path / "r.txt").read_text().startswith("name")
    assert (tmp_path / "r.csv").stat().st_mode & 0o077 == 0o044


def test_findings_go_to_stderr_where_the_format_is_for_machines(
    capfd: pytest.CaptureFixture[str],
) -> None:
    show(format="csv")
    assert capfd.readouterr().err == "A finding.\n"
    show(format="table")
    table = capfd.readouterr()
    assert table.out.endswith("A finding.\n")
    assert table.err == ""
    for name in ("csv", "table"):
        show(format=name, quiet=True)
        quiet = capfd.readouterr()
        assert "finding" not in quiet.out + quiet.err


def test_an_existing_file_is_kept_without_force(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_text("mine")
    with pytest.raises(UsageError, match="exists") as caught:
        show(output=(path,))
    assert "--force" in caught.value.hint
    assert path.read_text() == "mine"
    assert show(output=(path,), force=True) == 0
    assert path.read_text().startswith("name,")


@pytest.mark.parametrize("rows", [broken, interrupted])
def test_a_failed_run_leaves_the_old_file(
    rows: Callable[[], Iterator[Row]], tmp_path: Path
) -> None:
    path = tmp_path / "r.csv"
    path.write_text("mine")
    if rows is broken:
        with pytest.raises(UsageError):
            show(rows, output=(path,), force=True)
        assert list(tmp_path.iterdir()) == [path]
    else:
        assert show(rows, output=(path,), force=True) == 130
        kept = tmp_path / "r.csv.partial"
        assert kept.read_text() == "name,dtype,size_bytes\na,f16,10\n"
    assert path.read_text() == "mine"


def test_an_interrupted_run_shows_what_it_has(capfd: pytest.CaptureFixture[str]) -> None:
    assert show(interrupted, format="json", fail_if=("size_bytes > 1",)) == 130
    captured = capfd.readouterr()
    envelope = json.loads(captured.out)
    assert envelope["partial"] is True
    assert len(envelope["rows"]) == 1
    assert "interrupted after 1 of 3 rows" in captured.err


def test_partial_results_do_not_replace_each_other(tmp_path: Path) -> None:
    for _ in range(3):
        assert show(interrupted, output=(tmp_path / "r.csv",)) == 130
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["r.csv.partial", "r.csv.partial2", "r.csv.partial3"]


def test_a_replaced_file_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.touch(mode=0o600)
    assert show(output=(path,), force=True) == 0
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", ["missing/r.csv", "r.xlsx", ".", "x" * 300 + ".csv", "loop.csv"])
def test_a_path_that_cannot_be_written_is_refused_first(name: str, tmp_path: Path) -> None:
    def never() -> Iterator[Row]:
        raise AssertionError("measured")
        yield

    loop = tmp_path / "loop.csv"
    loop.symlink_to(loop)
    with pytest.raises(UsageError, match="--output"):
        show(never, output=(tmp_path / name,))
    assert list(tmp_path.iterdir()) == [loop]
    with pytest.raises(UsageError, match="stdout has the result already"):
        show(never, output=(Path("-"),))


def test_a_link_stays_and_what_it_names_is_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "target.csv", tmp_path / "link.csv"
    target.write_text("old")
    link.symlink_to(target)
    assert show(output=(link,), force=True) == 0
    assert link.is_symlink()
    assert target.read_text().startswith("name,")


def test_devices_are_written_to() -> None:
    assert show(output=(Path("/dev/null"),)) == 0


def test_gates(capfd: pytest.CaptureFixture[str]) -> None:
    assert show(fail_if=("size_bytes > 15",)) == 1
    captured = capfd.readouterr()
    assert "holds for 1 of 3 rows" in captured.err
    assert "name=b, dtype=f16, size_bytes=20" in captured.err
    assert "could not judge 1 rows" in captured.err
    assert "b " in captured.out
    assert show(fail_if=("size_bytes > 99",)) == 0
    capfd.readouterr()
    with pytest.raises(UsageError, match="cannot be evaluated"):
        show(fail_if=("name > 3",))
    assert capfd.readouterr().out == "", "what the types forbid is refused before measuring"


def baseline(tmp_path: Path, suffix: str) -> Path:
    path = tmp_path / f"old{suffix}"
    show(output=(path,), format="csv")
    return path


@pytest.mark.parametrize("suffix", [".json", ".csv"])
def test_baseline(suffix: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def now() -> Iterator[Row]:
        yield from (Row("a", "f16", 15), Row("b", "f16", 20), Row("new", "f16", 1))

    path = baseline(tmp_path, suffix)
    capfd.readouterr()
    assert show(now, baseline=path, format="csv", fail_if=("size_bytes_change_ratio > 0.4",)) == 1
    captured = capfd.readouterr()
    assert captured.out.splitlines() == [
        "name,dtype,size_bytes,size_bytes_baseline,size_bytes_change_ratio",
        "a,f16,15,10,0.5",
        "b,f16,20,20,0.0",
        "new,f16,1,,",
    ]
    assert "1 rows have no counterpart" in captured.err


@pytest.mark.parametrize("suffix", [".json", ".csv"])
def test_baseline_of_another_dtype(
    suffix: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def other() -> Iterator[Row]:
        yield Row("a", "f32", 20)

    path = baseline(tmp_path, suffix)
    with pytest.raises(UsageError, match="f16") as caught:
        show(other, baseline=path, format="csv")
    assert "--cross-device" in caught.value.hint
    capfd.readouterr()
    assert show(other, baseline=path, format="csv", cross_device=True) == 0
    assert capfd.readouterr().out.endswith("a,f32,20,10,1.0\n")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("b.json", "{}"),
        ("b.json", "[]"),
        ("b.json", "{"),
        ("b.json", '{"rows": [], "environment": {}, "command": "other"}'),
        ("b.json", '{"rows": [1], "environment": {}, "command": "sample", "schema_version": 1}'),
        ("b.json", '{"rows": [], "environment": {}, "command": "sample", "schema_version": 9}'),
        (
            "b.json",
            '{"rows": [{"name": "a", "dtype": "f16", "size_bytes": "x"}], "environment": {}, '
            '"command": "sample", "schema_version": 1}',
        ),
        (
            "b.json",
            '{"rows": [{"name": "a", "dtype": "f16", "size_bytes": 1e400}], "environment": {}, '
            '"command": "sample", "schema_version": 1}',
        ),
        ("b.csv", "name,dtype,size_bytes\nz,f16,1\n"),
        ("b.csv", "name,dtype,size_bytes\na,f16,1\na,f16,2\n"),
        ("b.csv", "name,dtype,size_bytes\n"),
        ("b.csv", ""),
        ("b.csv", "name,dtype,size_bytes\na,f16," + "1" * 200_000),
        ("b.md", "| name |"),
        ("b.csv", "other,columns\n1,2\n"),
        ("b.csv", "name,dtype,size_bytes\na,f16,lots\n"),
        ("missing.csv", None),
    ],
)
def test_what_is_no_baseline_is_refused(name: str, text: str | None, tmp_path: Path) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match="--baseline"):
        show(baseline=path)


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_plot(suffix: str, magic: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"p{suffix}"
    assert show(plot=path) == 0
    assert path.read_bytes().startswith(magic)
    assert list(tmp_path.iterdir()) == [path]


def test_plot_refuses(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.png or \.svg"):
        show(plot=tmp_path / "p.pdf")
