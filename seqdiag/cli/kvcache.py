"""`seqdiag kvcache`."""

# Annotations are evaluated here, once: Typer would evaluate them as strings again and again.
from typing import TYPE_CHECKING, Annotated

import typer

from seqdiag.cli.options import command, parse, parse_optional
from seqdiag.units import parse_count, parse_counts, parse_names, parse_size

if TYPE_CHECKING:
    from seqdiag.report.result import Diagnosis


def _listing() -> "Diagnosis":
    from seqdiag.diagnostics.listing import kvcache_listing

    return kvcache_listing()


def _own(help: str, metavar: str = "N") -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        help=help, metavar=metavar, rich_help_panel="A model of your own"
    )
    return option


@command(_listing)
def kvcache(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL",
            help="A preset (see --list), a config.json, its folder, or a TOML spec. "
            "None: gqa-32l and mamba-32l.",
        ),
    ] = None,
    ctx: Annotated[
        str, typer.Option(help="Contexts in tokens; k = 1024.", metavar="LIST")
    ] = "1k,8k,32k,128k,1M",
    batch: Annotated[str, typer.Option(help="Sequences held at once.", metavar="N")] = "1",
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Of keys and values: float32, float16, bfloat16 or float8. Default: the model's.",
            metavar="NAME",
        ),
    ] = None,
    state_dtype: Annotated[
        str | None,
        typer.Option(
            help="Of recurrent states. Default: the spec's, float32 for a config.json.",
            metavar="NAME",
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="Who allocates; ideal is the bare need.", metavar="LIST")
    ] = "ideal",
    against: Annotated[
        str | None,
        typer.Option(
            help="Give the context at which each MODEL reaches this one's bytes. "
            "Default: mamba-32l if it is one of them.",
            metavar="MODEL",
        ),
    ] = None,
    per_layer: Annotated[bool, typer.Option("--per-layer", help="A row per layer.")] = False,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Show the formula with the numbers and the fields read."),
    ] = False,
    measure: Annotated[
        bool, typer.Option("--measure", help="Allocate the tensors and count (needs torch).")
    ] = False,
    device: Annotated[
        str,
        typer.Option(help="Where --measure allocates: auto, cpu, cuda, cuda:N.", metavar="NAME"),
    ] = "auto",
    limit: Annotated[
        str | None,
        typer.Option(
            help="Most that --measure allocates. Default: 2GiB on the CPU.", metavar="SIZE"
        ),
    ] = None,
    layers: Annotated[str | None, _own("Layers.")] = None,
    kv_heads: Annotated[str | None, _own("Key/value heads.")] = None,
    head_dim: Annotated[str | None, _own("Dimension of a key head.")] = None,
    v_head_dim: Annotated[
        str | None, _own("Dimension of a value head. Default: --head-dim.")
    ] = None,
    window: Annotated[str | None, _own("Sliding window of every layer, in tokens.")] = None,
) -> "Diagnosis":
    """Bytes a model keeps between decode steps: KV cache against a fixed recurrent state."""
    from seqdiag.diagnostics.kvcache import KvcacheSpec
    from seqdiag.diagnostics.kvcache import kvcache as diagnose

    return diagnose(
        KvcacheSpec(
            models=tuple(models or ()),
            ctx=parse("--ctx", parse_counts, ctx),
            batch=parse("--batch", parse_count, batch),
            engine=parse("--engine", parse_names, engine),
            dtype=dtype,
            state_dtype=state_dtype,
            layers=parse_optional("--layers", parse_count, layers),
            kv_heads=parse_optional("--kv-heads", parse_count, kv_heads),
            head_dim=parse_optional("--head-dim", parse_count, head_dim),
            v_head_dim=parse_optional("--v-head-dim", parse_count, v_head_dim),
            window=parse_optional("--window", parse_count, window),
            against=against,
            per_layer=per_layer,
            explain=explain,
            measure=measure,
            device=device,
            limit=parse_optional("--limit", parse_size, limit),
        )
    )
