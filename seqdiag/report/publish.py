"""Runs a diagnosis and shows it: the one place where rows meet formats, files, gates and codes."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from seqdiag.errors import UsageError
from seqdiag.report.document import Document, Verdict, Writer
from seqdiag.report.formats import format_of, load_format
from seqdiag.report.schema import Record, columns_of, record_of
from seqdiag.report.sink import OutputFile, Screen

if TYPE_CHECKING:
    from seqdiag.report.baseline import Baseline
    from seqdiag.report.result import Diagnosis

OK, GATE_TRIPPED, INTERRUPTED = 0, 1, 130
_NAMED_ROWS = 5


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """How a result is to be shown: the same for every command."""

    format: str = "table"
    output: tuple[Path, ...] = ()
    force: bool = False
    plot: Path | None = None
    fail_if: tuple[str, ...] = ()
    baseline: Path | None = None
    cross_device: bool = False
    quiet: bool = False


def publish(diagnosis: Diagnosis, options: OutputOptions, argv: list[str]) -> int:
    """Measures, writes every output asked for, judges the gates; returns the exit code.

    Everything that can be refused is refused before anything is measured.
    """
    run = _Run(diagnosis, options, argv)
    with run.files():
        try:
            run.measure()
        except KeyboardInterrupt:
            run.partial = True
        return run.finish()


class _Run:
    """One run of a diagnosis from the first check to the exit code."""

    def __init__(self, diagnosis: Diagnosis, options: OutputOptions, argv: list[str]) -> None:
        self._diagnosis = diagnosis
        self._options = options
        self._argv = argv
        self._columns = columns_of(diagnosis.row_type)
        self._baseline = self._load_baseline()
        if self._baseline is not None:
            self._columns += self._baseline.columns
        if options.fail_if:
            from seqdiag.report.gate import check_expression

            for expression in options.fail_if:
                check_expression(expression, self._columns)
        if options.plot is not None:
            from seqdiag.report.plot import check_plot

            check_plot(options.plot, diagnosis.plot)
        self._formats = [load_format(format_of(p, options.format)) for p in options.output]
        self._screen = cast(TextIO, Screen(sys.stdout))
        self._writer = load_format(options.format)(self._screen)
        self._rows: list[Any] = []
        self._records: list[Record] = []
        self._began = False
        self._files: list[OutputFile] = []
        self._plot: OutputFile | None = None
        self._details: OutputFile | None = None
        self.partial = False

    def _load_baseline(self) -> Baseline | None:
        if self._options.baseline is None:
            return None
        from seqdiag.report.baseline import load_baseline

        diagnosis = self._diagnosis
        machine = {"device": diagnosis.device, "dtype": diagnosis.dtype}
        return load_baseline(
            self._options.baseline,
            diagnosis.command,
            self._columns,
            machine,
            self._options.cross_device,
        )

    @contextlib.contextmanager
    def files(self) -> Iterator[None]:
        """Holds the output files open for the run; whatever was not committed leaves no trace."""
        try:
            for path in self._options.output:
                self._files.append(self._reserve("--output", path))
            if self._options.plot is not None:
                self._plot = self._reserve("--plot", self._options.plot)
            details = self._diagnosis.details
            if details is not None and details.path is not None:
                self._details = self._reserve(details.option, details.path)
            yield
        finally:
            for file in (*self._files, self._plot, self._details):
                if file is not None:
                    file.discard()

    def _reserve(self, option: str, path: Path) -> OutputFile:
        """Opens a file that no other output of this run goes to."""
        taken = [file for file in (*self._files, self._plot) if file is not None]
        if any(file.is_same(path) for file in taken):
            raise UsageError(
                f"{option}: {path} is named twice; each output needs a file of its own"
            )
        return OutputFile(option, path, self._options.force)

    def measure(self) -> None:
        """Takes the rows as they come, shows progress and streams them to the screen."""
        from seqdiag.report.progress import tracked

        quiet = self._options.quiet
        diagnosis = self._diagnosis
        for row in tracked(
            diagnosis.rows, diagnosis.total, diagnosis.command, quiet, diagnosis.live
        ):
            record = record_of(row)
            if self._baseline is not None:
                record = self._baseline.join(record)
            self._begin()
            self._rows.append(row)
            self._records.append(record)
            self._writer.row(record)

    def finish(self) -> int:
        """Judges, writes files and then the screen, reports on stderr; returns the exit code."""
        document = self._document()
        self._write_files(document)
        self._begin()
        quiet = self._options.quiet and self._writer.shows_findings
        shown = [] if quiet else document.findings
        self._writer.end(dataclasses.replace(document, findings=shown))
        self._screen.flush()
        if not self._options.quiet:
            if not self._writer.shows_findings:
                _say(*document.findings)
            if self._baseline is not None and self._baseline.missing:
                _say(f"--baseline: {self._baseline.missing} rows have no counterpart in it")
        if self.partial:
            _say(f"interrupted after {len(self._records)} of {self._diagnosis.total} rows")
            return INTERRUPTED
        if self._baseline is not None and self._records and not self._baseline.matched:
            raise UsageError(
                f"--baseline: {self._baseline.path} has none of the rows of this result"
            )
        self._report_gates(document.verdict)
        return OK if document.verdict.passed else GATE_TRIPPED

    def _begin(self) -> None:
        if not self._began:
            self._writer.begin(self._columns)
            self._began = True

    def _document(self) -> Document:
        diagnosis = self._diagnosis
        headline = diagnosis.headline
        return Document(
            command=diagnosis.command,
            argv=self._argv,
            spec=diagnosis.spec,
            environment=self._environment,
            columns=self._columns,
            records=self._records,
            headline=[headline(row) for row in self._rows] if headline else None,
            findings=[] if self.partial else diagnosis.conclude(self._rows),
            verdict=self._judge(),
            partial=self.partial,
        )

    def _judge(self) -> Verdict:
        verdict = Verdict()
        if self.partial:
            return verdict
        if self._options.fail_if:
            from seqdiag.report.gate import judge

            verdict = judge(self._options.fail_if, self._columns, self._records)
        if self._diagnosis.unmet is not None:
            verdict.unmet = self._diagnosis.unmet(self._rows)
        return verdict

    def _environment(self) -> dict[str, Any]:
        from seqdiag.report.environment import environment

        diagnosis = self._diagnosis
        return environment(diagnosis.device, diagnosis.dtype, diagnosis.seed)

    def _report_gates(self, verdict: Verdict) -> None:
        _say(*verdict.unmet)
        identity = [column.name for column in self._columns if column.identity]
        for expression, indices in verdict.tripped.items():
            _say(f"fail-if: {expression!r} holds for {len(indices)} of {len(self._records)} rows:")
            for index in indices[:_NAMED_ROWS]:
                record = self._records[index]
                names = [n for n in self._columns if n.name in identity or n.name in expression]
                _say("  " + ", ".join(f"{c.name}={record[c.name]}" for c in names))
            if len(indices) > _NAMED_ROWS:
                _say(f"  and {len(indices) - _NAMED_ROWS} more")
        for expression, count in verdict.unjudged.items():
            _say(f"fail-if: {expression!r} could not judge {count} rows that lack a value")
        if verdict.error is not None:
            raise verdict.error

    def _write_files(self, document: Document) -> None:
        for file, writer_type in zip(self._files, self._formats, strict=True):
            with file.open() as stream:
                _write_all(writer_type(stream), document)
            if not self.partial:
                file.commit()
            elif self._records:
                _say(f"finished rows kept in {file.keep_partial()}")
        if self.partial:
            return
        if self._details is not None:
            self._write_details(self._details)
        plot = self._diagnosis.plot
        if self._plot is not None and plot is not None:
            from seqdiag.report.plot import draw

            drawn = self._detail_records() if self._diagnosis.details else self._records
            draw(self._plot.temporary, self._plot.path.suffix[1:].lower(), plot, drawn)
            self._plot.commit()

    def _detail_records(self) -> list[Record]:
        details = self._diagnosis.details
        return [] if details is None else [record_of(row) for row in details.rows()]

    def _write_details(self, file: OutputFile) -> None:
        details = self._diagnosis.details
        assert details is not None
        with file.open() as stream:
            writer = load_format("csv")(stream)
            writer.begin(columns_of(details.row_type))
            for record in self._detail_records():
                writer.row(record)
        file.commit()


def _write_all(writer: Writer, document: Document) -> None:
    writer.begin(document.columns)
    for record in document.records:
        writer.row(record)
    writer.end(document)


def _say(*lines: str) -> None:
    for line in lines:
        with contextlib.suppress(OSError, AttributeError):  # a closed or full stderr
            sys.stderr.write(f"{line}\n")
