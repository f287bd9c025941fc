"""What accelerators can do at most, from their makers' data sheets: dense rates, no sparsity."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Peak:
    """Operations and bytes a second."""

    half_flops: float
    """float16 and bfloat16 products with float32 sums."""
    single_flops: float
    """float32, not TF32."""
    bytes_per_s: float

    def flops(self, dtype: str) -> float | None:
        """Returns the peak for a dtype; float64 is not listed."""
        return {
            "float16": self.half_flops,
            "bfloat16": self.half_flops,
            "float32": self.single_flops,
        }.get(dtype)


_T, _G = 1e12, 1e9
PEAKS = {
    "H200": Peak(989.4 * _T, 67 * _T, 4800 * _G),
    "H100 PCIe": Peak(756 * _T, 51 * _T, 2000 * _G),
    "H100 NVL": Peak(835 * _T, 60 * _T, 3900 * _G),
    "H100 80GB HBM3": Peak(989.4 * _T, 67 * _T, 3350 * _G),
    "A100-SXM4-80GB": Peak(312 * _T, 19.5 * _T, 2039 * _G),
    "A100 80GB PCIe": Peak(312 * _T, 19.5 * _T, 1935 * _G),
    "A100-SXM4-40GB": Peak(312 * _T, 19.5 * _T, 1555 * _G),
    "L40S": Peak(362 * _T, 91.6 * _T, 864 * _G),
    "NVIDIA L4": Peak(121 * _T, 30.3 * _T, 300 * _G),
    "NVIDIA A10G": Peak(70 * _T, 31.2 * _T, 600 * _G),
    "RTX 4090": Peak(165.2 * _T, 82.6 * _T, 1008 * _G),
    "RTX 3090": Peak(71 * _T, 35.6 * _T, 936 * _G),
    "RTX A6000": Peak(154.8 * _T, 38.7 * _T, 768 * _G),
    "Tesla V100": Peak(125 * _T, 15.7 * _T, 900 * _G),
    "MI300X": Peak(1307.4 * _T, 163.4 * _T, 5300 * _G),
}
"""By what the device's name holds."""


def peak_of(device_name: str) -> Peak | None:
    """Returns the peak of a device by its name, None if it is not listed: never a guess."""
    return next((peak for name, peak in PEAKS.items() if name in device_name), None)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one processor of an architecture holds, for occupancy."""

    registers: int
    warps: int
    programs: int
    shared_bytes: int
    """Of a processor."""
    program_bytes: int
    """Shared memory of one program at most."""
    reserved_bytes: int
    """Taken from the shared memory for each program."""


_KIB = 1024
LIMITS = {
    "sm_80": Limits(65536, 64, 32, 164 * _KIB, 163 * _KIB, _KIB),
    "sm_90": Limits(65536, 64, 32, 228 * _KIB, 227 * _KIB, _KIB),
    "sm_100": Limits(65536, 64, 32, 228 * _KIB, 227 * _KIB, _KIB),
    "sm_120": Limits(65536, 48, 24, 100 * _KIB, 99 * _KIB, _KIB),
    "gfx942": Limits(131072, 32, 32, 64 * _KIB, 64 * _KIB, 0),
}
"""CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; AMD CDNA 3 ISA:
four SIMDs of 512 vector registers for each of 64 lanes, 8 waves each."""


def occupancy(target: str, registers: int, warps: int, shared_bytes: int) -> tuple[int, str]:
    """Returns how many programs a processor holds at once and what limits that."""
    limits = LIMITS[target]
    lanes = 64 if target.startswith("gfx") else 32
    per_warp = -(-registers * lanes // 256) * 256
    room = {
        "registers": limits.registers // max(1, per_warp * warps),
        "shared memory": limits.shared_bytes // (shared_bytes + limits.reserved_bytes)
        if shared_bytes + limits.reserved_bytes
        else limits.programs,
        "warps": limits.warps // max(1, warps),
        "programs": limits.programs,
    }
    if shared_bytes > limits.program_bytes:
        return 0, "shared memory"
    least = min(room, key=lambda name: room[name])
    return room[least], least
