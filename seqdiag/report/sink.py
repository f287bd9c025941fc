"""Where output goes: a screen that may be a closed pipe, and files written whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from seqdiag.errors import UsageError


class Screen:
    """Standard output that goes quiet when the reader has gone, as in `seqdiag ... | head -1`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._quiet():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._quiet():
            self._stream.flush()

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            silence(self._stream)


def silence(stream: TextIO) -> None:
    """Points `stream` at nothing, so that neither we nor the interpreter's exit write again."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, stream.fileno())
    os.close(devnull)


class OutputFile:
    """A file that appears whole under its name, or not at all.

    It is written under a temporary name beside the target, so a failed run leaves an older file
    as it was; `keep_partial` leaves the finished rows of an interrupted run in `NAME.partial`.
    """

    def __init__(self, option: str, path: Path, force: bool) -> None:
        self.path = path
        if str(path) == "-":
            raise UsageError(f"{option}: stdout has the result already; give a file name")
        try:
            self._real = path.resolve()  # a symbolic link stays, the file behind it is replaced
            self._mode = self._real.stat().st_mode & 0o777 if self._real.is_file() else None
        except (OSError, RuntimeError) as error:
            raise UsageError(f"{option}: cannot write {path}: {error}") from None
        if self._mode is not None and not os.access(self._real, os.W_OK):
            raise UsageError(f"{option}: {path} is write-protected")
        # A device such as /dev/null or /dev/stdout is written to, not replaced.
        self._special = path.exists() and not path.is_file() and not path.is_dir()
        if path.is_dir():
            raise UsageError(f"{option}: {path} is a folder")
        if not path.parent.is_dir():
            raise UsageError(f"{option}: {path}: the folder {path.parent} does not exist")
        if path.exists() and not self._special and not force:
            raise UsageError(f"{option}: {path} exists", hint="--force replaces it")
        import tempfile

        try:
            if self._special:
                self.temporary = path
            else:
                handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=self._real.parent)
                os.close(handle)
                self.temporary = Path(name)
        except OSError as error:
            raise UsageError(f"{option}: cannot write {path}: {error.strerror}") from None

    def is_same(self, path: Path) -> bool:
        """Whether `path` is this very file; a device takes any number of outputs."""
        return not self._special and path.resolve() == self._real

    def open(self) -> TextIO:
        """Returns the stream to write text to."""
        return self.temporary.open("w", encoding="utf-8", newline="")

    def commit(self) -> None:
        """Puts the finished file under its name."""
        if not self._special:
            self._publish(self._real)

    def keep_partial(self) -> Path:
        """Keeps what an interrupted run has finished; returns where."""
        if self._special:
            return self.path
        target = self._real.with_name(f"{self._real.name}.partial")
        count = 1
        while target.exists():
            count += 1
            target = self._real.with_name(f"{self._real.name}.partial{count}")
        self._publish(target)
        return target

    def discard(self) -> None:
        """Leaves no trace."""
        if not self._special:
            self.temporary.unlink(missing_ok=True)

    def _publish(self, target: Path) -> None:
        umask = os.umask(0)
        os.umask(umask)
        # mkstemp makes it private; a new result is not, and an old one stays what it was.
        self.temporary.chmod(0o666 & ~umask if self._mode is None else self._mode)
        self.temporary.replace(target)
