"""What a kernel's hot loop could reach, from counts of its instructions: a model, no measurement.

Cycles of each pipe of one processor for one iteration of a program. With nothing overlapped the
tensor cores and the other arithmetic take turns (`serial`); with everything overlapped the busiest
pipe decides. Clocks, caches, memory and the tail of a grid are not in it.
"""

from __future__ import annotations

from dataclasses import dataclass

_SUSTAINED = 0.8
"""Of the tensor peak: what large matrix products reach before power limits them."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The rates of one processor a clock, and how many there are. Product name for the reader."""

    name: str
    processors: int
    clock_hz: float
    tensor: dict[str, float]
    """Dense 16-bit FLOPs by kind of instruction."""
    fp32_cycles: float
    """For an instruction of a warp."""


MACHINES = {
    "sm_80": Machine("A100", 108, 1.41e9, {"HMMA": 2048}, 0.5),
    "sm_90": Machine("H100 SXM", 132, 1.755e9, {"HGMMA": 4096, "HMMA": 2600}, 0.25),
}
"""CUDA C++ Programming Guide, "Arithmetic Instructions"; mma.sync reaches about 62 % of the peak on
sm_90 (Luo et al. 2024, arXiv 2402.13499)."""


@dataclass(frozen=True, slots=True)
class Loop:
    """The counts of one iteration: instructions a warp, FLOPs of the program."""

    warps: int
    mma_kind: str
    mma_flops: float
    exp: int
    fp32: int
    alu: int
    shared_bytes: int
    instructions: int


def pipe_cycles(target: str, loop: Loop) -> dict[str, float] | None:
    """Returns the cycles of each pipe of a processor for one iteration; None without a model."""
    machine = MACHINES.get(target)
    rate = machine.tensor.get(loop.mma_kind) if machine else None
    if machine is None or rate is None:
        return None
    return {
        "tensor": loop.mma_flops / rate,
        "exp": 2.0 * loop.exp * loop.warps,
        "fp32": machine.fp32_cycles * loop.fp32 * loop.warps,
        "alu": 0.5 * loop.alu * loop.warps,
        "issue": 0.25 * loop.instructions * loop.warps,
        "shared memory": loop.shared_bytes * loop.warps / 128,
    }


def bracket(target: str, cycles: dict[str, float], useful_flops: float) -> tuple[float, float]:
    """Returns FLOP/s of the whole card with nothing and with everything overlapped."""
    machine = MACHINES[target]
    serial = cycles["tensor"] + cycles["exp"] + cycles["fp32"] + cycles["alu"]
    overlapped = max(cycles.values())
    card = machine.processors * machine.clock_hz
    most = _SUSTAINED * max(machine.tensor.values()) * card
    high = min(useful_flops / overlapped * card, most)
    return min(useful_flops / serial * card, high), high
