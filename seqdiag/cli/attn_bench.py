"""`seqdiag attn-bench`."""

# Annotations are evaluated here, once: Typer would evaluate them as strings again and again.
from typing import TYPE_CHECKING, Annotated

import typer

from seqdiag.cli.options import choose, command, parse, parse_optional
from seqdiag.units import parse_count, parse_counts, parse_names, parse_seconds

if TYPE_CHECKING:
    from seqdiag.report.result import Diagnosis


def _listing() -> "Diagnosis":
    from seqdiag.diagnostics.listing import attn_bench_listing

    return attn_bench_listing()


def _shape(help: str, *flags: str, metavar: str = "N") -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        *flags, help=help, metavar=metavar, rich_help_panel="Shape"
    )
    return option


def _kernels(help: str, *flags: str, metavar: str | None = None) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        *flags, help=help, metavar=metavar, rich_help_panel="Our Triton kernels"
    )
    return option


@command(_listing)
def attn_bench(
    impl: Annotated[
        str | None,
        typer.Option(help="Implementations, see --list. Default: all.", metavar="LIST"),
    ] = None,
    against: Annotated[
        str, typer.Option(help="What speedup_ratio compares with.", metavar="NAME")
    ] = "naive",
    seq_len: Annotated[
        str | None, _shape("Queries; k = 1024. Default: 1k, decoding 1.", metavar="LIST")
    ] = None,
    kv_len: Annotated[
        str | None, _shape("Keys. Default: as many as queries.", metavar="LIST")
    ] = None,
    ctx: Annotated[
        str | None, _shape("With --mode decode: tokens in the cache.", metavar="LIST")
    ] = None,
    batch: Annotated[str, _shape("Sequences at once.")] = "1",
    tokens: Annotated[
        str | None, _shape("Sets the batch to N / queries, so that lengths compare.")
    ] = None,
    heads: Annotated[str | None, _shape("Query heads. Default: 8.")] = None,
    kv_heads: Annotated[str | None, _shape("Key and value heads. Default: as many.")] = None,
    head_dim: Annotated[str | None, _shape("Of queries and keys. Default: 64.")] = None,
    head_dim_v: Annotated[str | None, _shape("Of values. Default: --head-dim.")] = None,
    preset: Annotated[
        str | None, _shape("Heads of a model in configs/models.", metavar="NAME")
    ] = None,
    passes: Annotated[
        str,
        typer.Option(
            "--pass", help="fwd, bwd (gradients alone), both (as a unit).", metavar="LIST"
        ),
    ] = "fwd",
    mode: Annotated[
        str, typer.Option(help="prefill, or decode: a step on a cache.", metavar="NAME")
    ] = "prefill",
    mask: Annotated[
        str, _shape("full, causal, or window:W for W keys.", metavar="NAME")
    ] = "causal",
    align: Annotated[
        str, _shape("Of a mask, for lengths that differ: bottom-right or top-left.", metavar="NAME")
    ] = "bottom-right",
    dtype: Annotated[
        str | None,
        typer.Option(
            help="float32, float16, bfloat16 or float64. Default: float32, on a GPU bfloat16.",
            metavar="NAME",
        ),
    ] = None,
    device: Annotated[
        str, typer.Option(help="auto, cpu, cuda or cuda:N.", metavar="NAME")
    ] = "auto",
    seed: Annotated[str, typer.Option(help="Of the inputs.", metavar="N")] = "0",
    budget: Annotated[
        str, typer.Option(help="For all timing together: 60s, 2m.", metavar="TIME")
    ] = "3s",
    l2: Annotated[
        str,
        typer.Option(help="On a GPU: cold (wiped before each call), warm, both.", metavar="NAME"),
    ] = "cold",
    check_only: Annotated[bool, typer.Option("--check-only", help="Judge, do not time.")] = False,
    deterministic: Annotated[
        bool,
        typer.Option("--deterministic", help="Ask for repeatable kernels; ten runs must be equal."),
    ] = False,
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate", help="Measure a matrix product and a copy: peak_ratio is of those."
        ),
    ] = False,
    interpret: Annotated[
        bool, _kernels("Run them in Triton's interpreter, for correctness.", "--interpret")
    ] = False,
    inspect: Annotated[
        str | None,
        _kernels(
            "Compile them, no GPU needed, and report: all, or a list of sm_80, sm_90, sm_100, "
            "sm_120, gfx942.",
            metavar="TARGETS",
        ),
    ] = None,
) -> "Diagnosis":
    """Time attention implementations side by side, each after it was proved right.

    An implementation is held against float64 and needle probes on the very shape it is timed on;
    one that is wrong gets no time.
    """
    from seqdiag.diagnostics.attn_bench import AttnBenchSpec
    from seqdiag.diagnostics.attn_bench import attn_bench as diagnose

    return diagnose(
        AttnBenchSpec(
            impl=parse_optional("--impl", parse_names, impl),
            against=against,
            seq_len=parse_optional("--seq-len", parse_counts, seq_len),
            kv_len=parse_optional("--kv-len", parse_counts, kv_len),
            ctx=parse_optional("--ctx", parse_counts, ctx),
            batch=parse("--batch", parse_count, batch),
            tokens=parse_optional("--tokens", parse_count, tokens),
            heads=parse_optional("--heads", parse_count, heads),
            kv_heads=parse_optional("--kv-heads", parse_count, kv_heads),
            head_dim=parse_optional("--head-dim", parse_count, head_dim),
            head_dim_v=parse_optional("--head-dim-v", parse_count, head_dim_v),
            preset=preset,
            passes=tuple(
                choose("--pass", name, ("fwd", "bwd", "both"))
                for name in parse("--pass", parse_names, passes)
            ),
            mode=choose("--mode", mode, ("prefill", "decode")),
            mask=mask,
            align=choose("--align", align, ("bottom-right", "top-left")),
            dtype=dtype,
            device=device,
            seed=parse("--seed", _seed, seed),
            budget=parse("--budget", parse_seconds, budget),
            l2=choose("--l2", l2, ("cold", "warm", "both")),
            check_only=check_only,
            deterministic=deterministic,
            calibrate=calibrate,
            interpret=interpret,
            inspect=parse_optional("--inspect", parse_names, inspect),
        )
    )


def _seed(text: str) -> int:
    return parse_count(text, minimum=0)
