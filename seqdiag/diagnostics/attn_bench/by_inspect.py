"""`--inspect`: what our kernels compile to, for cards that need not be here."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from seqdiag.diagnostics.attn_bench.spec import AttnBenchSpec
from seqdiag.diagnostics.attn_bench.variants import variant
from seqdiag.errors import UsageError, unknown
from seqdiag.measure.aot import TARGETS, Compiled, compile_ahead, require_triton
from seqdiag.ops.attention.tiles import LARGEST_DIM, Kernel, Tile, block_dim, tile_for
from seqdiag.predict.accelerators import LIMITS, occupancy
from seqdiag.predict.pipes import MACHINES, Loop, bracket, pipe_cycles
from seqdiag.report.result import Diagnosis
from seqdiag.report.schema import Status, column

_ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4}
_PRODUCTS: dict[Kernel, tuple[int, int]] = {
    "forward": (1, 1),
    "decode": (1, 1),
    "backward_keys": (2, 2),
    "backward_queries": (2, 1),
}
"""Products over head_dim and over head_dim_v in one iteration of the hot loop."""
_WIDE = ("128", "dwordx4", "UTMALDG")


@dataclass(frozen=True, slots=True)
class InspectRow:
    """One kernel compiled for one target."""

    kernel: str = column("which of ours", identity=True)
    target: str = column("architecture", identity=True)
    dtype: str = column("of inputs", identity=True)
    head_dim: int = column("of queries and keys", identity=True)
    head_dim_v: int = column("of values", identity=True)
    mask: str = column("full, causal or window", identity=True)
    block_m: int = column("queries of a block")
    block_n: int = column("keys of a block")
    num_warps: int = column("asked for")
    warps: int | None = column("a program has; more where the compiler specialised some")
    num_stages: int = column("of the load pipeline")
    registers: int | None = column("a thread; on AMD vector and accumulation registers")
    spill_bytes: int | None = column("stack a thread, for what did not fit registers", unit="B")
    loop_spills: int | None = column("spills stored or loaded in the hot loop")
    shared_bytes: int | None = column("a program", unit="B")
    shared_limit_bytes: int = column("a program may have", unit="B")
    programs: int | None = column("at once on one processor")
    limited_by: str = column("what limits the programs")
    mma_kind: str = column("matrix instruction of the hot loop")
    mma_flops: int | None = column("issued by an iteration")
    mma_ratio: float | None = column("issued / useful FLOPs, 1 is best")
    instructions: int | None = column("of the hot loop, a warp")
    exp: int | None = column("exponentials there")
    fp32: int | None = column("float32 additions and products there")
    alu: int | None = column("other arithmetic there")
    copies: str = column("loads from global memory there")
    shuffles: int | None = column("between lanes there")
    barriers: int | None = column("there")
    flop_per_byte: float | None = column("of an iteration's keys, values or queries")
    bound: str = column("the busiest pipe, by the model")
    model_tflop_per_s_low: float | None = column("nothing overlaps: a model", unit="TFLOP/s")
    model_tflop_per_s_high: float | None = column("all overlaps: a model", unit="TFLOP/s")
    compile_s: float | None = column("0 from the cache", unit="s")
    triton: str = column("version")
    ptxas: str = column("version of the assembler")
    status: Status = column("ok, unsupported if it cannot run, error if it does not compile")
    note: str = column("what is wrong and what to try")


def inspection(spec: AttnBenchSpec) -> Diagnosis:
    """Returns the diagnosis that compiles; raises `UnavailableError` without Triton."""
    require_triton()
    targets = TARGETS if spec.inspect == ("all",) else spec.inspect or ()
    for name in targets:
        if name not in TARGETS:
            raise unknown("--inspect", name, ("all", *TARGETS))
    dtype = spec.dtype or "bfloat16"
    if dtype not in _ITEMSIZE:
        raise UsageError(f"--dtype: our kernels take {', '.join(_ITEMSIZE)}, not {dtype}")
    shape = spec.shapes[0]
    largest = max(shape.head_dim, shape.v_head_dim)
    if largest > LARGEST_DIM:
        raise UsageError(f"--head-dim: our kernels go up to {LARGEST_DIM}, not {largest}")
    kernels = _kernels(spec)
    tiles = [
        (kernel, target, tile_for(kernel, target, largest, _ITEMSIZE[dtype]))
        for kernel in kernels
        for target in targets
    ]
    return Diagnosis(
        command="attn-bench",
        spec=dataclasses.asdict(spec),
        row_type=InspectRow,
        rows=_rows(spec, dtype, tiles),
        total=len(tiles),
        conclude=conclude,
        device="none: compiled ahead of time",
        dtype=dtype,
    )


def _kernels(spec: AttnBenchSpec) -> tuple[Kernel, ...]:
    if spec.mode == "decode":
        return ("decode",)
    forward: tuple[Kernel, ...] = () if spec.passes == ("bwd",) else ("forward",)
    backward: tuple[Kernel, ...] = ("backward_keys", "backward_queries")
    return forward if spec.passes == ("fwd",) else (*forward, *backward)


def _rows(
    spec: AttnBenchSpec, dtype: str, tiles: Sequence[tuple[Kernel, str, Tile]]
) -> Iterator[InspectRow]:
    shape = spec.shapes[0]
    windowed = shape.window is not None
    jobs = [
        (
            variant(kernel, tile, dtype, shape.head_dim, shape.v_head_dim, shape.causal, windowed),
            target,
        )
        for kernel, target, tile in tiles
    ]
    mask = "window" if windowed else spec.mask
    for (kernel, target, tile), compiled in zip(tiles, compile_ahead(jobs), strict=True):
        dims = shape.head_dim, shape.v_head_dim
        yield _row(kernel, target, tile, dtype, dims, mask, compiled)


def _row(
    kernel: Kernel,
    target: str,
    tile: Tile,
    dtype: str,
    dims: tuple[int, int],
    mask: str,
    compiled: Compiled,
) -> InspectRow:
    failed = bool(compiled.error)
    loop = compiled.loop
    useful = useful_flops(kernel, tile, *dims)
    programs, limited_by = (
        (0, "")
        if failed
        else occupancy(target, compiled.registers, compiled.warps, compiled.shared_bytes)
    )
    mma_flops = loop.mma_flops if loop else None
    low, high, bound = _model(target, compiled, useful)
    status, note = _judge(target, tile, compiled, programs, useful)
    rows_loaded = tile.block_m if kernel == "backward_keys" else tile.block_n
    loaded = rows_loaded * sum(dims) * _ITEMSIZE[dtype]
    return InspectRow(
        kernel=kernel,
        target=target,
        dtype=dtype,
        head_dim=dims[0],
        head_dim_v=dims[1],
        mask=mask,
        block_m=tile.block_m,
        block_n=tile.block_n,
        num_warps=tile.num_warps,
        warps=None if failed else compiled.warps,
        num_stages=tile.num_stages,
        registers=None if failed else compiled.registers,
        spill_bytes=None if failed else compiled.spill_bytes,
        loop_spills=loop.spills if loop else None,
        shared_bytes=None if failed else compiled.shared_bytes,
        shared_limit_bytes=LIMITS[target].program_bytes,
        programs=None if failed else programs,
        limited_by=limited_by,
        mma_kind=loop.mma_kind if loop else "",
        mma_flops=mma_flops,
        mma_ratio=mma_flops / useful if mma_flops else None,
        instructions=loop.instructions if loop else None,
        exp=loop.exp if loop else None,
        fp32=loop.fp32 if loop else None,
        alu=loop.alu if loop else None,
        copies=", ".join(f"{n} {name}" for name, n in loop.copies.items()) if loop else "",
        shuffles=loop.shuffles if loop else None,
        barriers=loop.barriers if loop else None,
        flop_per_byte=useful / loaded,
        bound=bound,
        model_tflop_per_s_low=low,
        model_tflop_per_s_high=high,
        compile_s=None if failed else compiled.compile_s,
        triton=compiled.triton,
        ptxas=compiled.ptxas,
        status=status,
        note=note,
    )


def useful_flops(kernel: Kernel, tile: Tile, head_dim: int, v_head_dim: int) -> int:
    """Returns the FLOPs of one iteration as the tile needs them, padded dimensions included."""
    with_head, with_value = _PRODUCTS[kernel]
    dims = with_head * block_dim(head_dim) + with_value * block_dim(v_head_dim)
    return 2 * tile.block_m * tile.block_n * dims


def _model(target: str, compiled: Compiled, useful: int) -> tuple[float | None, float | None, str]:
    loop = compiled.loop
    if loop is None or loop.mma_flops is None:
        return None, None, ""
    cycles = pipe_cycles(
        target,
        Loop(
            warps=compiled.warps,
            mma_kind=loop.mma_kind,
            mma_flops=loop.mma_flops,
            exp=loop.exp,
            fp32=loop.fp32,
            alu=loop.alu,
            shared_bytes=loop.shared_bytes,
            instructions=loop.instructions,
        ),
    )
    if cycles is None:
        return None, None, ""
    low, high = bracket(target, cycles, useful)
    return low / 1e12, high / 1e12, max(cycles, key=lambda pipe: cycles[pipe])


def _judge(
    target: str, tile: Tile, compiled: Compiled, programs: int, useful: int
) -> tuple[Status, str]:
    """Returns the status, and what is wrong with what to try."""
    if compiled.error:
        return "error", compiled.error
    if programs == 0:
        return (
            "unsupported",
            f"does not fit: {compiled.shared_bytes} bytes of shared memory; try fewer stages",
        )
    loop, notes = compiled.loop, []
    if compiled.spill_bytes:
        where = "in the hot loop" if loop and loop.spills else "outside the hot loop"
        fewer = f"try {2 * tile.num_warps} warps" if tile.num_warps < 8 else "try smaller blocks"
        notes.append(f"spills {compiled.spill_bytes} bytes {where}: {fewer}")
    if loop is None or not loop.mma_kind:
        notes.append("no matrix instructions: float32 products are exact, on the plain pipes")
    elif loop.mma_flops and loop.mma_flops > 1.05 * useful:
        notes.append(f"issues {loop.mma_flops / useful:.2f} x the products needed: fewer warps")
    if loop and any(not _is_wide(name) for name in loop.copies):
        notes.append("some loads of the hot loop are narrower than 16 bytes")
    return "ok", "; ".join(notes)


def _is_wide(opcode: str) -> bool:
    # Rows of log-sum-exp are single floats: scalar loads beside the tiles are no fault.
    return any(sign in opcode for sign in _WIDE) or opcode in ("LDG.E", "LDGSTS.E")


def conclude(rows: Sequence[InspectRow]) -> list[str]:
    """Says what spills or does not fit, and that the model measured nothing."""
    bad = [row for row in rows if row.status != "ok" or row.spill_bytes]
    findings = [f"{row.kernel} on {row.target}: {row.note}." for row in bad]
    if not bad and rows:
        findings.append("Everything compiles, fits, and keeps its values in registers.")
    if any(row.model_tflop_per_s_high for row in rows):
        cards = ", ".join(f"{target} as {machine.name}" for target, machine in MACHINES.items())
        findings.append(
            f"TFLOP/s are a bracket from counting instructions ({cards}), not a measurement."
        )
    return findings
