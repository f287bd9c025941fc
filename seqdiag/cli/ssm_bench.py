"""`seqdiag ssm-bench`."""

# Annotations are evaluated here, once: Typer would evaluate them as strings again and again.
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqdiag.cli.options import choose, command, parse, parse_optional
from seqdiag.units import parse_count, parse_counts, parse_names, parse_seconds

if TYPE_CHECKING:
    from seqdiag.report.result import Diagnosis


def _listing() -> "Diagnosis":
    from seqdiag.diagnostics.listing import ssm_bench_listing

    return ssm_bench_listing()


def _panel(panel: str) -> Any:
    def option(help: str, *flags: str, metavar: str | None = "N") -> typer.models.OptionInfo:
        made: typer.models.OptionInfo = typer.Option(
            *flags, help=help, metavar=metavar, rich_help_panel=panel
        )
        return made

    return option


_size, _step, _how = _panel("Sizes"), _panel("Steps and streams"), _panel("How to measure")


@command(_listing)
def ssm_bench(
    kind: Annotated[
        str | None,
        typer.Option(
            help="lti, selective (Mamba), ssd (Mamba-2), linear-rnn. Default: the first three.",
            metavar="LIST",
        ),
    ] = None,
    impl: Annotated[
        str | None,
        typer.Option(help="Forms, see --list. Default: all that compute a kind.", metavar="LIST"),
    ] = None,
    mode: Annotated[
        str,
        typer.Option(
            help="scan (a whole sequence), step (one token after many), stream (hours of tokens).",
            metavar="NAME",
        ),
    ] = "scan",
    pass_: Annotated[str, typer.Option("--pass", help="fwd, bwd, both.", metavar="LIST")] = "fwd",
    against: Annotated[
        str,
        typer.Option(
            help="What stands beside the scans: attention; for scan also rnn, lstm, gru; or none.",
            metavar="LIST",
        ),
    ] = "attention,lstm",
    seq_len: Annotated[str, _size("Steps; k = 1024.", metavar="LIST")] = "256,1k",
    batch: Annotated[str, _size("Sequences at once.")] = "1",
    d_model: Annotated[str, _size("Channels.")] = "128",
    d_state: Annotated[str, _size("Numbers of state a channel.")] = "16",
    heads: Annotated[str, _size("Heads of ssd and of attention.")] = "4",
    chunk: Annotated[
        str | None, _size("Steps in a chunk. Default: each form's own choice.", metavar="LIST")
    ] = None,
    dtype: Annotated[
        str | None,
        _size(
            "float32, float64, float16 or bfloat16. Default: float32, with --inspect bfloat16.",
            metavar="NAME",
        ),
    ] = None,
    position: Annotated[
        str, _step("For step: how many tokens went before.", metavar="LIST")
    ] = "1,1k,32k,1M",
    hours: Annotated[str, _step("For stream: how long.")] = "8",
    rate: Annotated[str, _step("For stream: tokens a second.")] = "50",
    device: Annotated[str, _how("auto, cpu, cuda or cuda:N.", metavar="NAME")] = "auto",
    dist: Annotated[
        str,
        _how("Inputs: stable, as models start, or raw: A > 0 and no softplus.", metavar="NAME"),
    ] = "stable",
    budget: Annotated[
        str, _how("Time to spend on timing, such as 3s or 2m.", metavar="TIME")
    ] = "2s",
    check_only: Annotated[
        bool, _how("Check every form, time none.", "--check-only", metavar=None)
    ] = False,
    inspect: Annotated[
        str,
        _how(
            "Compile the Triton kernels for these targets and show what came out: all, or some of "
            "sm_80,sm_90,sm_100,sm_120,gfx942. Needs no GPU; runs nothing.",
            metavar="TARGETS",
        ),
    ] = "",
    interpret: Annotated[
        bool,
        _how(
            "Also check the Triton kernels on the CPU: slow, never timed.",
            "--interpret",
            metavar=None,
        ),
    ] = False,
    threads: Annotated[str | None, _how("CPU threads. Default: PyTorch's.")] = None,
    seed: Annotated[str, _how("Of inputs and weights.")] = "0",
) -> "Diagnosis":
    """State space scans side by side: one function in every form, its cost, and attention."""
    from seqdiag.diagnostics.ssm_bench import SsmBenchSpec
    from seqdiag.diagnostics.ssm_bench import ssm_bench as diagnose

    kinds: Any = parse_optional("--kind", parse_names, kind)
    passes: Any = parse("--pass", parse_names, pass_)
    return diagnose(
        SsmBenchSpec(
            kind=kinds,
            impl=parse_optional("--impl", parse_names, impl),
            seq_len=parse("--seq-len", parse_counts, seq_len),
            batch=parse("--batch", parse_count, batch),
            d_model=parse("--d-model", parse_count, d_model),
            d_state=parse("--d-state", parse_count, d_state),
            heads=parse("--heads", parse_count, heads),
            chunk=parse_optional("--chunk", parse_counts, chunk),
            pass_=passes,
            mode=choose("--mode", mode, ("scan", "step", "stream")),
            against=() if against == "none" else parse("--against", parse_names, against),
            position=parse("--position", parse_counts, position),
            hours=parse("--hours", parse_count, hours),
            rate=parse("--rate", parse_count, rate),
            dtype=dtype or ("bfloat16" if inspect else "float32"),
            device=device,
            dist=choose("--dist", dist, ("stable", "raw")),
            budget_s=parse("--budget", parse_seconds, budget),
            check_only=check_only,
            inspect=inspect,
            interpret=interpret,
            threads=parse_optional("--threads", parse_count, threads),
            seed=parse("--seed", _seed, seed),
        )
    )


def _seed(text: str) -> int:
    return parse_count(text, minimum=0)
