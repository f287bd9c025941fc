"""The block shapes of the Triton attention kernels, by architecture, head dimension and dtype.

Chosen by compiling: no registers spill for head dimensions up to 128 on sm_80 and sm_90, and shared
memory fits. Which is fastest needs a card; `seqdiag attn-bench --inspect` shows what each compiles
to, and a new version of Triton can change it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kernel = Literal["forward", "backward_keys", "backward_queries", "decode"]
KERNELS: tuple[Kernel, ...] = ("forward", "backward_keys", "backward_queries", "decode")


@dataclass(frozen=True, slots=True)
class Tile:
    """Queries and keys of a block, and how a program runs it."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


LARGEST_DIM = 256
_SIZES = (64, 128, 256)

_HALF: dict[str, dict[Kernel, tuple[Tile, Tile, Tile]]] = {
    "sm_80": {
        "forward": (Tile(128, 64, 8, 3), Tile(128, 32, 8, 3), Tile(64, 32, 4, 1)),
        "backward_keys": (Tile(32, 32, 4, 2), Tile(32, 32, 4, 1), Tile(16, 32, 4, 1)),
        "backward_queries": (Tile(128, 64, 8, 2), Tile(64, 64, 8, 2), Tile(32, 16, 4, 1)),
        "decode": (Tile(16, 64, 4, 3), Tile(16, 64, 4, 3), Tile(16, 32, 4, 2)),
    },
    "sm_90": {
        "forward": (Tile(128, 64, 8, 3), Tile(128, 32, 8, 3), Tile(128, 32, 8, 2)),
        "backward_keys": (Tile(32, 128, 8, 2), Tile(16, 128, 8, 2), Tile(16, 64, 8, 1)),
        "backward_queries": (Tile(128, 64, 8, 2), Tile(128, 64, 8, 2), Tile(128, 32, 8, 1)),
        "decode": (Tile(16, 64, 4, 3), Tile(16, 64, 4, 3), Tile(16, 32, 4, 3)),
    },
}
_HALF["sm_100"] = _HALF["sm_90"]
# sm_120 multiplies as sm_80 does, and these tiles fit the 99 KiB of sm_86, sm_89 and sm_120.
_HALF["sm_120"] = _HALF["sm_80"]
# 64 KiB of shared memory.
_HALF["gfx942"] = {
    "forward": (Tile(128, 64, 4, 1), Tile(128, 32, 4, 1), Tile(64, 32, 4, 1)),
    "backward_keys": (Tile(64, 64, 4, 1), Tile(32, 64, 4, 1), Tile(32, 32, 4, 1)),
    "backward_queries": (Tile(64, 64, 4, 1), Tile(64, 32, 4, 1), Tile(32, 32, 4, 1)),
    "decode": (Tile(16, 64, 4, 1), Tile(16, 64, 4, 1), Tile(16, 32, 4, 1)),
}
_SINGLE: dict[Kernel, tuple[Tile, Tile, Tile]] = {
    "forward": (Tile(32, 32, 4, 1), Tile(32, 32, 8, 1), Tile(16, 16, 4, 1)),
    "backward_keys": (Tile(32, 32, 4, 1), Tile(16, 32, 4, 1), Tile(16, 16, 4, 1)),
    "backward_queries": (Tile(32, 32, 4, 1), Tile(16, 16, 4, 1), Tile(16, 16, 4, 1)),
    "decode": (Tile(16, 32, 4, 1), Tile(16, 32, 8, 1), Tile(16, 16, 4, 1)),
}
"""In float32 products are not by tensor cores: full precision costs registers."""
_INTERPRETED = Tile(64, 64, 4, 1)


def tile_for(kernel: Kernel, architecture: str, head_dim: int, itemsize: int) -> Tile:
    """Returns the block shape for the larger head dimension of a problem.

    `architecture` is a target such as `sm_90`, or `interpreter`, where few large blocks are fast.
    """
    if architecture == "interpreter":
        return _INTERPRETED
    size = next(i for i, largest in enumerate(_SIZES) if head_dim <= largest)
    return _SINGLE[kernel][size] if itemsize == 4 else _HALF[architecture][kernel][size]


def architecture_of(capability: tuple[int, int], hip: bool = False) -> str:
    """Returns the table for a card's compute capability."""
    if hip:
        return "gfx942"
    major, minor = capability
    if major == 9:
        return "sm_90"
    if major in (10, 11):
        return "sm_100"
    return "sm_80" if (major, minor) in ((8, 0), (8, 7)) else "sm_120"


def block_dim(head_dim: int) -> int:
    """Returns the power of two that holds a head dimension, at least what a product needs."""
    return max(16, 1 << (head_dim - 1).bit_length())


def split_count(programs: int, keys: int, block_n: int, processors: int) -> int:
    """Returns into how many splits decoding cuts `keys`, so that its programs fill a card.

    The smallest count whose waves are filled at least 85 % as well as the best; a split has four
    blocks of keys at least, and there are 128 splits at most (FlashAttention's rule).
    """
    most = max(1, min(128, keys // (4 * block_n)))
    if programs >= 0.8 * processors:
        return 1
    filled = []
    for splits in range(1, most + 1):
        waves = programs * splits / processors
        filled.append(waves / -(-programs * splits // processors))
    best = max(filled)
    return 1 + next(i for i, share in enumerate(filled) if share >= 0.85 * best)
