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
    """Returns the built-in layers of `gradflow`."""
    from seqdiag.models.subjects import ARCHITECTURES

    return _listing("gradflow", [ListRow("arch", n, "ok", d) for n, d in ARCHITECTURES.items()])


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
