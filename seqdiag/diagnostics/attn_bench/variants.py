"""The attention kernels as the compiler gets them: one variant for a tile, shape and dtype."""

from __future__ import annotations

from seqdiag.measure.aot import KernelVariant
from seqdiag.ops.attention.flash import kernel_constants
from seqdiag.ops.attention.tiles import Kernel, Tile

_POINTERS = {"float32": "*fp32", "float16": "*fp16", "bfloat16": "*bf16"}
_MODULE = "seqdiag.ops.attention."
_KERNELS: dict[Kernel, tuple[str, str, str, str]] = {
    "forward": (
        "flash_triton:flash_forward",
        "q k v out lse",
        "qb qh qm kb kh kn vb vh vn ob oh om",
        "scale2",
    ),
    "backward_keys": (
        "flash_backward_triton:flash_backward_keys",
        "q k v d_out lse delta dk dv",
        "qb qh qm kb kh kn vb vh vn gb gh gm",
        "scale scale2",
    ),
    "backward_queries": (
        "flash_backward_triton:flash_backward_queries",
        "q k v d_out lse delta dq",
        "qb qh qm kb kh kn vb vh vn gb gh gm",
        "scale scale2",
    ),
    "decode": (
        "decode_triton:decode_split",
        "q k v out lse",
        "qb qh qm kb kh kn vb vh vn",
        "first_key split_len splits scale2",
    ),
}
"""Function, pointers, strides, and what follows the sizes."""
_SIZES = ("kv_heads", "group", "q_len", "kv_len", "offset", "window")
_ALWAYS_SINGLE = ("lse", "delta")


def variant(
    kernel: Kernel,
    tile: Tile,
    dtype: str,
    head_dim: int,
    v_head_dim: int,
    causal: bool,
    windowed: bool,
) -> KernelVariant:
    """Returns what Triton compiles for a tile; decode writes partial results in float32."""
    function, pointers, strides, rest = _KERNELS[kernel]
    signature = {
        name: "*fp32"
        if name in _ALWAYS_SINGLE or (kernel, name) == ("decode", "out")
        else _POINTERS[dtype]
        for name in pointers.split()
    }
    aligned = [*signature, *(f"stride_{name}" for name in strides.split())]
    signature |= {f"stride_{name}": "i32" for name in strides.split()}
    signature |= dict.fromkeys(_SIZES, "i32")
    signature |= {name: "fp32" if "scale" in name else "i32" for name in rest.split()}
    constants = kernel_constants(tile, head_dim, v_head_dim, causal, windowed)
    signature |= dict.fromkeys(constants, "constexpr")
    return KernelVariant(
        kernel=_MODULE + function,
        signature=signature,
        constants=constants,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        aligned=tuple(aligned),
    )
