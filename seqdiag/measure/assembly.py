"""Reading a compiled kernel's assembly: its hot loop, and what is issued there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

_LABEL = re.compile(r"^\s*(\.L\w+):")
_SASS = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.x]*)\s*([^;]*);")
_GCN = re.compile(r"^\s+([vs]_\w+|ds_\w+|global_\w+|buffer_\w+|scratch_\w+)\s*(.*)$")
_TARGET = re.compile(r"\.L\w+")

_HGMMA = re.compile(r"[HQIB]GMMA\.(\d+)x(\d+)x(\d+)")
_HMMA = re.compile(r"HMMA\.(\d{4,5})")
_MFMA = re.compile(r"v_mfma_f32_(\d+)x(\d+)x(\d+)")
_HMMA_SIZES = {"1688": (16, 8, 8), "16816": (16, 8, 16), "1684": (16, 8, 4)}
_WARPS_OF_A_GROUP = 4

_FP32 = ("FADD", "FMUL", "FFMA", "FADD2", "FMUL2", "FFMA2")
_ALU = (
    "FMNMX", "FMNMX3", "FSEL", "FSETP", "F2FP", "F2F", "I2F", "F2I", "IADD3", "IMAD", "LOP3",
    "SHF", "LEA", "ISETP", "SEL", "PRMT", "VIADD", "MOV", "PLOP3", "HADD2", "HMUL2", "HFMA2",
)  # fmt: skip
_SHARED_BYTES = {"": 4, "32": 4, "64": 8, "128": 16}


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of assembly."""

    opcode: str
    operands: str


@dataclass(frozen=True, slots=True)
class LoopCounts:
    """What one iteration of the hot loop issues: counts a warp, FLOPs of the whole program."""

    instructions: int
    mma_kind: str
    """HGMMA, HMMA, UTCHMMA, MFMA, or empty."""
    mma_flops: int | None
    """None where the opcode does not tell the size (tensor-memory MMA of sm_100)."""
    exp: int
    fp32: int
    alu: int
    shared_bytes: int
    """Through the load-store path, a warp; not what the tensor cores read themselves."""
    copies: dict[str, int]
    """Loads from global memory by opcode."""
    shuffles: int
    barriers: int
    spills: int
    """Loads and stores of spilled registers."""


def hot_loop(text: str, warps: int) -> LoopCounts | None:
    """Returns what the innermost loop with the most tensor work issues; None without a loop.

    Without tensor work it is the longest.

    `text` is what nvdisasm prints, or AMD GCN assembly; `warps` those of the program.
    """
    lines, labels = _parse(text)
    loops = []
    for at, line in enumerate(lines):
        target = _TARGET.search(line.operands) if _is_branch(line.opcode) else None
        start = labels.get(target[0], at + 1) if target else at + 1
        if start <= at:
            loops.append((start, at))
    innermost = [
        (a, b)
        for a, b in loops
        if not any((a, b) != (c, d) and a <= c and d <= b for c, d in loops)
    ]
    bodies = [lines[a : b + 1] for a, b in innermost]
    if not bodies:
        return None
    return max((_count(body, warps) for body in bodies), key=_weight)


def _weight(counts: LoopCounts) -> tuple[int, int, int]:
    # Of loops with the same products the shorter is the hot one: the other handles edges.
    tensor = bool(counts.mma_kind)
    return tensor, counts.mma_flops or 0, -counts.instructions if tensor else counts.instructions


def _parse(text: str) -> tuple[list[Instruction], dict[str, int]]:
    """Returns the instructions, and at which one each label stands."""
    lines: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(lines)
        elif found := _SASS.search(line) or _GCN.match(line):
            lines.append(Instruction(found[1], found[2]))
    return lines, labels


def _is_branch(opcode: str) -> bool:
    return opcode.startswith(("BRA", "s_cbranch", "s_branch"))


def _count(body: Sequence[Instruction], warps: int) -> LoopCounts:
    stems = Counter(line.opcode.split(".")[0] for line in body)
    kind, flops = _mma(body, warps)
    return LoopCounts(
        instructions=len(body),
        mma_kind=kind,
        mma_flops=flops,
        exp=sum(line.opcode.startswith(("MUFU.EX2", "v_exp_f32")) for line in body),
        fp32=sum(stems[name] for name in _FP32)
        + sum(line.opcode.startswith(("v_add_f32", "v_mul_f32", "v_fma", "v_pk")) for line in body),
        alu=sum(stems[name] for name in _ALU),
        shared_bytes=sum(_shared_bytes(line) for line in body),
        copies=dict(
            Counter(
                line.opcode
                for line in body
                if line.opcode.startswith(
                    ("LDG.", "LDGSTS", "UTMALDG", "global_load", "buffer_load")
                )
            )
        ),
        shuffles=stems["SHFL"] + sum("_dpp" in x.opcode or "permute" in x.opcode for x in body),
        barriers=stems["BAR"] + stems["SYNCS"] + stems["s_barrier"],
        spills=stems["LDL"] + stems["STL"] + sum(x.opcode.startswith("scratch_") for x in body),
    )


def _shared_bytes(line: Instruction) -> int:
    parts = line.opcode.split(".")
    if parts[0] == "LDSM":  # matrices of 8 x 8 halves: 128 bytes each
        return 128 * int(parts[-1]) if parts[-1].isdigit() else 128
    if parts[0] in ("LDS", "STS") and "RZ, [RZ]" not in line.operands:
        width = next((p for p in parts[1:] if p in _SHARED_BYTES), "")
        return 32 * _SHARED_BYTES[width]
    return 0


def _mma(body: Sequence[Instruction], warps: int) -> tuple[str, int | None]:
    flops, kind = 0, ""
    for line in body:
        if found := _HGMMA.match(line.opcode):
            m, n, k = map(int, found.groups())
            kind, flops = "HGMMA", flops + 2 * m * n * k * warps // _WARPS_OF_A_GROUP
        elif found := _HMMA.match(line.opcode):
            m, n, k = _HMMA_SIZES.get(found[1], (0, 0, 0))
            kind, flops = "HMMA", flops + 2 * m * n * k * warps
        elif found := _MFMA.match(line.opcode):
            m, n, k = map(int, found.groups())
            kind, flops = "MFMA", flops + 2 * m * n * k * warps
        elif line.opcode.startswith(("UTCHMMA", "UTCQMMA")):
            return "UTCHMMA", None
    return kind, flops
