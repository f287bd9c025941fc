"""`--list`: what each command knows, and whether it is there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from seqdiag.report.result import Diagnosis
from seqdiag.report.schema import Status, column


@dataclass(frozen=True, slots=True)
class ListRow:
    """One registered thing."""

    kind: str = column("what it is", identity=True)
    name: str = column("how to name it on the command line", identity=True)
    status: Status = column("ok, or unavailable")
    note: str = column("what it is, or what is missing")


def kvcache_listing() -> Diagnosis:
    """Returns the presets, model types, engines and dtypes of `kvcache`."""
    from seqdiag.config import config_dir, config_names, parse_toml
    from seqdiag.predict.kv_cache.engines import ENGINES
    from seqdiag.predict.kv_cache.layout import ITEMSIZE
    from seqdiag.predict.kv_cache.readers import READERS

    rows = [
        ListRow("preset", name, "ok", str(parse_toml("--list", path).get("source", "")))
        for name in config_names("models")
        for path in [config_dir("models") / f"{name}.toml"]
    ]
    rows += [ListRow("model_type", name, "ok", "of a config.json") for name in READERS]
    rows += [ListRow("engine", name, "ok", "what it allocates") for name in ENGINES]
    rows += [ListRow("dtype", n, "ok", f"{size} bytes") for n, size in ITEMSIZE.items()]
    return _listing("kvcache", rows)


def gradflow_listing() -> Diagnosis:
    """Returns the layers and stacks of `gradflow`, and the letters of a pattern."""
    from seqdiag.models.registry import LETTERS
    from seqdiag.models.subjects import architectures

    rows = [ListRow("arch", name, "ok", what) for name, what in architectures().items()]
    rows += [ListRow("pattern letter", letter, "ok", name) for letter, name in LETTERS.items()]
    return _listing("gradflow", rows)


def recall_listing() -> Diagnosis:
    """Returns the memories, tasks and layers of `recall`."""
    from seqdiag.measure.tasks import TASKS
    from seqdiag.models.memories import MEMORIES
    from seqdiag.models.registry import MIXERS
    from seqdiag.models.stack import architecture_names
    from seqdiag.models.tokens import SHORT

    rows = [ListRow("memory", name, "ok", m.description) for name, m in MEMORIES.items()]
    rows += [ListRow("task", name, "ok", "of random tokens") for name in TASKS]
    rows += [ListRow("arch", name, "ok", f"short for {full}") for name, full in SHORT.items()]
    rows += [
        ListRow("arch", name, "ok", f"{entry.letter}: {entry.description}")
        for name, entry in MIXERS.items()
    ]
    rows += [
        ListRow("arch", name, "ok", f"configs/architectures/{name}.toml")
        for name in architecture_names()
    ]
    return _listing("recall", rows)


def _listing(command: str, rows: list[ListRow]) -> Diagnosis:
    def each() -> Iterator[ListRow]:
        yield from rows

    return Diagnosis(
        command=command,
        spec={},
        row_type=ListRow,
        rows=each(),
        total=len(rows),
        conclude=lambda rows: [],
    )
