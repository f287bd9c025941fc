"""`--inspect`: what the compiler makes of the scan kernels, for cards that need not be here."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from seqdiag.diagnostics.ssm_bench.spec import SsmBenchSpec
from seqdiag.errors import UsageError
from seqdiag.measure.aot import TARGETS, Compiled, KernelVariant, compile_ahead
from seqdiag.ops.scan import selective_triton, ssd_triton
from seqdiag.report.schema import Status, column

_SELECTIVE, _SSD = "seqdiag.ops.scan.selective_kernels", "seqdiag.ops.scan.ssd_kernels"
_POINTERS = {"float32": "*fp32", "float16": "*fp16", "bfloat16": "*bf16"}
_IN_DTYPE = frozenset(
    ["u", "delta", "B", "C", "z", "y", "x", "W", "dy", "du", "ddelta", "dz", "dx", "dt", "ddt"]
)
"""The operands and results in the dtype asked for; the others are float32."""
_SHARED_LIMIT = {"sm_80": 163, "sm_90": 227, "sm_100": 227, "sm_120": 99, "gfx942": 64}
"""KiB that a program may take."""
_LEAST_LOOP = 10


@dataclass(frozen=True, slots=True)
class InspectRow:
    """One kernel for one target."""

    kernel: str = column("which kernel", identity=True)
    target: str = column("the architecture that it is compiled for", identity=True)
    dtype: str = column("dtype of operands", identity=True)
    d_state: int = column("numbers of state a channel", identity=True)
    head_dim: int | None = column("channels of a head; ssd only", identity=True)
    chunk: int | None = column("steps in a chunk; ssd only", identity=True)
    n_warps: int | None = column("warps of a program")
    registers: int | None = column("registers of a thread")
    spill_bytes: int | None = column("stack of a thread: what did not fit", unit="bytes")
    shared_bytes: int | None = column("shared memory of a program", unit="bytes")
    mma: str = column("matrix instructions of the hot loop")
    loop_instructions: int | None = column("instructions of an iteration of the hot loop, a warp")
    loop_exps: int | None = column("exponentials among them")
    loop_shuffles: int | None = column("shuffles between lanes among them")
    loop_barriers: int | None = column("barriers among them")
    compile_s: float | None = column("seconds to compile; 0 from the cache", unit="s")
    triton: str = column("version of the compiler")
    ptxas: str = column("version of the assembler")
    status: Status = column("ok, or error")
    note: str = column("what is wrong with it")


@dataclass(frozen=True, slots=True)
class _Shipped:
    name: str
    variant: KernelVariant
    head_dim: int | None = None
    chunk: int | None = None


def targets_of(text: str) -> tuple[str, ...]:
    """Returns the targets of a list, `all` being every one; raises `UsageError` for another."""
    if text == "all":
        return TARGETS
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in TARGETS:
            raise UsageError(
                f"--inspect: {name!r} is not a target",
                hint=f"--inspect all, or some of {', '.join(TARGETS)}",
            )
    return names


def rows(spec: SsmBenchSpec, targets: Sequence[str]) -> Iterator[InspectRow]:
    """Yields each kernel for each target as it is compiled."""
    kernels = shipped(spec)
    jobs = [(kernel, target) for target in targets for kernel in kernels]
    compiled = compile_ahead([(kernel.variant, target) for kernel, target in jobs])
    for (kernel, target), result in zip(jobs, compiled, strict=True):
        yield _row(spec, kernel, target, result)


def count(spec: SsmBenchSpec, targets: Sequence[str]) -> int:
    return len(shipped(spec)) * len(targets)


def shipped(spec: SsmBenchSpec) -> list[_Shipped]:
    """Returns the kernels of the kinds in question as they are launched for its sizes.

    Raises `UsageError` for a dtype or a size that they do not take.
    """
    if spec.dtype not in _POINTERS:
        raise UsageError(f"--dtype: the kernels compute in float32, not {spec.dtype}")
    asked = {name.removesuffix("-interpret") for kind in spec.kinds for name in spec.forms(kind)}
    found = _selective(spec) if "scan-triton" in asked else []
    found += _prefix(spec) if "scan-triton-prefix" in asked else []
    found += _ssd(spec) if "ssd-triton" in asked else []
    if not found:
        raise UsageError(
            "--inspect: nothing that was asked for has kernels: selective and ssd do",
            hint="--kind selective,ssd",
        )
    if spec.d_state > 128 or ("ssd" in spec.kinds and spec.d_model // spec.heads > 128):
        raise UsageError("--inspect: the kernels take up to 128 states and channels of a head")
    return found


def _selective(spec: SsmBenchSpec) -> list[_Shipped]:
    """Every fused part is there; the forward kernel keeps states for a backward pass."""
    n = spec.d_state
    found = []
    for name, backward in (("forward", False), ("ends", False), ("backward", True)):
        tile = selective_triton.tile_of(n, backward)
        constants = {
            "N": n, "BN": tile.states, "BD": tile.channels, "SEGMENT": selective_triton.SEGMENT,
            "UNROLL": selective_triton.UNROLL, "SOFTPLUS": True, "REVERSE": True,
        }  # fmt: skip
        variant = _variant(_SELECTIVE, f"{name}_kernel", constants, tile.warps, spec.dtype, 3)
        found.append(_Shipped(f"selective {name}", variant))
    tile = selective_triton.tile_of(n)
    constants = {"N": n, "BN": tile.states, "BD": tile.channels, "SOFTPLUS": True}
    variant = _variant(_SELECTIVE, "step_kernel", constants, tile.warps, spec.dtype, 3)
    return [*found, _Shipped("selective step", variant)]


def _prefix(spec: SsmBenchSpec) -> list[_Shipped]:
    states = selective_triton.tile_of(spec.d_state).states
    constants = {"N": spec.d_state, "BN": states, **selective_triton.prefix_block(states)}
    variant = _variant(_SELECTIVE, "associative_kernel", constants, 4, spec.dtype, 3)
    return [_Shipped("selective prefix", variant)]


def _ssd(spec: SsmBenchSpec) -> list[_Shipped]:
    n, p = spec.d_state, spec.d_model // spec.heads
    forward = spec.chunk[0] if spec.chunk else ssd_triton.CHUNK
    parts = ssd_triton.channels_of(n, p)
    plans = [("ends", forward, None), ("outputs", forward, parts)]
    if n <= ssd_triton.FUSED_STATES:
        plans.insert(0, ("fused", forward, parts))
    plans += [(name, ssd_triton.BACKWARD_CHUNK, None) for name in ("readers", "writers")]
    found = []
    for name, chunk, channels in plans:
        constants = {**ssd_triton.constants(n, p, chunk, channels), "REVERSE": False}
        warps, stages = constants.pop("num_warps"), constants.pop("num_stages")
        variant = _variant(_SSD, f"{name}_kernel", constants, warps, spec.dtype, stages)
        found.append(_Shipped(f"ssd {name}", variant, p, chunk))
    return found


def _variant(
    module: str, kernel: str, constants: Mapping[str, object], warps: int, dtype: str, stages: int
) -> KernelVariant:
    """Returns what Triton compiles; arguments are read from the kernel's source.

    A width of channels is left unaligned for the selective scan, as its kernels ask.
    """
    names = _arguments(module, kernel)
    signature = {}
    for name in names:
        stem = name.removesuffix("_ptr")
        if name in constants:
            signature[name] = "constexpr"
        elif stem == name:
            signature[name] = "i32"
        else:
            signature[name] = _POINTERS[dtype if stem in _IN_DTYPE else "float32"]
    sizes = {"steps", "heads", "shared", "n_blocks", "chunks", "parts", "size"}
    sizes |= {"width"} if module == _SELECTIVE else set()
    return KernelVariant(
        kernel=f"{module}:{kernel}",
        signature=signature,
        constants={name: value for name, value in constants.items() if name in names},
        num_warps=warps,
        num_stages=stages,
        aligned=tuple(n for n, t in signature.items() if t != "constexpr" and n not in sizes),
    )


def _arguments(module: str, kernel: str) -> list[str]:
    """Returns a kernel's arguments in order, without importing it: that needs the compiler."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    (found,) = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == kernel]
    return [argument.arg for argument in found.args.args]


def _row(spec: SsmBenchSpec, kernel: _Shipped, target: str, result: Compiled) -> InspectRow:
    failed = bool(result.error)
    # What follows a kernel's last instruction is a jump onto itself: no loop.
    loop = result.loop if result.loop and result.loop.instructions >= _LEAST_LOOP else None
    notes = [result.error] if failed else []
    if result.spill_bytes:
        notes.append(f"spills {result.spill_bytes} bytes a thread")
    if result.shared_bytes > _SHARED_LIMIT[target] * 1024:
        notes.append(f"takes more than the {_SHARED_LIMIT[target]} KiB of shared memory")
    return InspectRow(
        kernel=kernel.name,
        target=target,
        dtype=spec.dtype,
        d_state=spec.d_state,
        head_dim=kernel.head_dim,
        chunk=kernel.chunk,
        n_warps=None if failed else result.warps,
        registers=None if failed else result.registers,
        spill_bytes=None if failed else result.spill_bytes,
        shared_bytes=None if failed else result.shared_bytes,
        mma=loop.mma_kind if loop else "",
        loop_instructions=loop.instructions if loop else None,
        loop_exps=loop.exp if loop else None,
        loop_shuffles=loop.shuffles if loop else None,
        loop_barriers=loop.barriers if loop else None,
        compile_s=None if failed else result.compile_s,
        triton=result.triton,
        ptxas=result.ptxas,
        status="error" if failed else "ok",
        note="; ".join(notes),
    )


def conclude(rows: Sequence[InspectRow]) -> list[str]:
    """Says which kernels spill, and that nothing was run."""
    spilling = [f"{r.kernel} on {r.target}" for r in rows if r.spill_bytes]
    found = [f"Registers spill in {', '.join(spilling)}."] if spilling else []
    if not spilling and all(row.status == "ok" for row in rows):
        found.append(f"All {len(rows)} compile, and none spills registers.")
    return [*found, "Compiled, not run: nothing here is a measured speed."]
