"""Element types of a cache and the bytes of a row. To add one: a line in `CACHE_TYPES`.

Block sizes of the ggml types: the block structures of ggml (`ggml-common.h`). Scales for each token
and head, NVFP4 and fp8_ds_mla: `vllm/v1/kv_cache_interface.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from seqdiag.errors import UsageError

_DS_MLA_GROUP = 128


@dataclass(frozen=True, slots=True)
class CacheType:
    """`block` elements take `block_bytes` bytes; `head_bytes` more for each token and head."""

    block: int
    block_bytes: int
    head_bytes: int = 0
    by_head: bool = False
    """Whether blocks lie within a head rather than within a token's whole row."""
    where: str = ""
    """The only kind of part that the type is for, if there is one."""
    kivi_bits: int = 0
    """Bits of an element in groups with scale and zero point, beside recent tokens in full."""

    @property
    def is_plain(self) -> bool:
        """Whether it is one number an element, without scales."""
        special = self.head_bytes or self.where or self.kivi_bits
        return self.block == 1 and not special


CACHE_TYPES = {
    "float32": CacheType(1, 4),
    "float16": CacheType(1, 2),
    "bfloat16": CacheType(1, 2),
    "float8": CacheType(1, 1),
    "fp8_ds_mla": CacheType(1, 1, where="latent"),
    "int8": CacheType(1, 1, head_bytes=4),
    "nvfp4": CacheType(16, 9, by_head=True),
    "q8_0": CacheType(32, 34),
    "q5_1": CacheType(32, 24),
    "q5_0": CacheType(32, 22),
    "q4_1": CacheType(32, 20),
    "q4_0": CacheType(32, 18),
    "iq4_nl": CacheType(32, 18),
    "kivi-4": CacheType(1, 1, kivi_bits=4),
    "kivi-2": CacheType(1, 1, kivi_bits=2),
}
"""float8 is one byte with a scale for a whole tensor, too small to count."""

ALIASES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "fp8": "float8"}

GGML = ("float32", "float16", "bfloat16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
FLOATS = ("float32", "float16", "bfloat16")


def row_bytes(name: str, heads: int, dim: int, role: str) -> int:
    """Returns the bytes of one token's `heads` x `dim` elements in a cache of type `name`.

    Raises `UsageError` where blocks do not divide the row.
    """
    kind = CACHE_TYPES[name]
    if kind.where == "latent":
        return _ds_mla_bytes(name, heads * dim, role)
    row = dim if kind.by_head else heads * dim
    if row % kind.block:
        raise UsageError(
            f"{name}: a row of {row} elements is no multiple of its block of {kind.block}",
            hint="choose a type without blocks, such as float8",
        )
    return heads * dim // kind.block * kind.block_bytes + heads * kind.head_bytes


def kivi_bytes(
    name: str, heads: int, tokens: int, dim: int, role: str, group: int, residual: int
) -> int:
    """Returns the bytes of a `heads` x `tokens` x `dim` tensor of keys or values in KIVI's form.

    arXiv 2402.02750, algorithm 1: keys are grouped along tokens and quantised when `residual` of
    them have gathered, T mod residual wait in 16 bits; values are grouped along channels and the
    last `residual` tokens stay in 16 bits. A group has a scale and a zero point of 16 bits each.
    Raises `UsageError` where groups do not divide what they run along, and for latents.
    """
    if role not in ("key", "value"):
        raise UsageError(f"{name}: is for keys and values of attention only")
    along, length = ("--kv-residual", residual) if role == "key" else ("a head", dim)
    if length % group:
        raise UsageError(f"{name}: --kv-group {group} does not divide {along} of {length}")
    whole = tokens % residual if role == "key" else min(tokens, residual)
    packed = heads * (tokens - whole) * dim
    bits = CACHE_TYPES[name].kivi_bits
    return packed * bits // 8 + packed // group * 4 + 2 * heads * whole * dim


def _ds_mla_bytes(name: str, elements: int, role: str) -> int:
    """fp8 with a float32 scale for every 128 latent elements; rotary keys stay bfloat16."""
    if role == "latent":
        return elements + 4 * -(-elements // _DS_MLA_GROUP)
    if role == "rope":
        return 2 * elements
    raise UsageError(f"{name}: is for multi-head latent attention only")
