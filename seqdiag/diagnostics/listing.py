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
    from seqdiag.predict.kv_cache.cache_types import CACHE_TYPES
    from seqdiag.predict.kv_cache.engines import ENGINES
    from seqdiag.predict.kv_cache.readers.table import READERS

    rows = [
        ListRow("preset", name, "ok", str(parse_toml("--list", path).get("source", "")))
        for name in config_names("models")
        for path in [config_dir("models") / f"{name}.toml"]
    ]
    rows += [ListRow("model_type", name, "ok", "of a config.json") for name in READERS]
    rows += [ListRow("engine", name, "ok", e.conventions) for name, e in ENGINES.items()]
    rows += [
        ListRow(
            "dtype",
            name,
            "ok",
            f"{kind.kivi_bits} bits an element, in groups, and recent tokens in 16"
            if kind.kivi_bits
            else f"{kind.block_bytes} bytes for {kind.block} elements",
        )
        for name, kind in CACHE_TYPES.items()
    ]
    return _listing("kvcache", rows)


def gradflow_listing() -> Diagnosis:
    """Returns the layers and stacks of `gradflow`, and the letters of a pattern."""
    from seqdiag.models.registry import LETTERS
    from seqdiag.models.subjects import architectures

    rows = [ListRow("arch", name, "ok", what) for name, what in architectures().items()]
    rows += [ListRow("pattern letter", letter, "ok", name) for letter, name in LETTERS.items()]
    return _listing("gradflow", rows)


def attn_bench_listing() -> Diagnosis:
    """Returns the implementations of attention, whether they run here, and why not."""
    import torch

    from seqdiag.ops.attention import IMPLEMENTATIONS, AttentionProblem
    from seqdiag.ops.registry import load_implementation

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    plain = AttentionProblem(1, 2, 2, 64, 64, 64, 64, dtype, True, None)
    rows = []
    for name in IMPLEMENTATIONS:
        reason = load_implementation(IMPLEMENTATIONS, name).why_not(plain, device)
        rows.append(ListRow("impl", name, "unavailable" if reason else "ok", reason or ""))
    return _listing("attn-bench", rows)


def ssm_bench_listing() -> Diagnosis:
    """Returns the kinds and forms of `ssm-bench`, and whether each form can run here."""
    import torch

    from seqdiag.diagnostics.ssm_bench import forms
    from seqdiag.ops.scan import ScanProblem

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows = []
    for name, form in forms.FORMS.items():
        computes = f"{form.description}; computes {', '.join(form.kinds)}"
        problem = ScanProblem(1, 64, torch.float32, form.kinds[0] == "lti")
        refused = forms.why_not(name, form.kinds[0], problem, device, 1)
        if name in forms.INTERPRETED:
            refused = None if _has("triton") else ("unavailable", "triton is not installed")
        status: Status = "ok" if refused is None else "unavailable"
        rows.append(ListRow("impl", name, status, computes if refused is None else refused[1]))
    for kind in forms.TABLES:
        own = [name for name, form in forms.FORMS.items() if kind in form.kinds]
        rows.append(ListRow("kind", kind, "ok", f"forms: {', '.join(own)}"))
    return _listing("ssm-bench", rows)


def _has(package: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(package) is not None


def receptive_field_listing() -> Diagnosis:
    """Returns the layers, stacks and encoders of `receptive-field`."""
    from seqdiag.config import config_dir, parse_toml
    from seqdiag.models.encoder import encoder_names
    from seqdiag.models.registry import LETTERS
    from seqdiag.models.subjects import LINEAR, architectures

    known = {name: what for name, what in architectures().items() if name != LINEAR}
    rows = [ListRow("arch", name, "ok", what) for name, what in known.items()]
    rows += [
        ListRow("encoder", name, "ok", str(parse_toml("--list", path).get("description", "")))
        for name in encoder_names()
        for path in [config_dir("architectures") / f"{name}.toml"]
    ]
    rows += [ListRow("pattern letter", letter, "ok", name) for letter, name in LETTERS.items()]
    return _listing("receptive-field", rows)


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
