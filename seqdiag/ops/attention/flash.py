"""The Triton attention kernels behind attention's signature, forward and backward.

`flash` compiles for a GPU, `flash_interpret` runs the same kernels in Triton's interpreter on the
CPU. The kernels are imported on the first call, since Triton then decides which it is.
"""

from __future__ import annotations

import importlib.util
import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from seqdiag.ops import interpreter
from seqdiag.ops.attention import AttentionProblem
from seqdiag.ops.attention.tiles import (
    LARGEST_DIM,
    Kernel,
    Tile,
    architecture_of,
    block_dim,
    split_count,
    tile_for,
)

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
INTERPRETED_LEN = 1024
"""The longest sequence that is interpreted: the cost is quadratic, and high."""
_LARGEST_STRIDE = 2**23
"""Between rows: 256 of them stay within 32 bits, beside a 64-bit base."""


def flash(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, window: int | None, scale: float
) -> Tensor:
    """Returns attention by the Triton kernels; few queries on many keys take the split form."""
    out: Tensor = _Flash.apply(q, k, v, causal, window, scale)  # type: ignore[no-untyped-call]
    return out


flash_interpret = flash


def why_not_flash(problem: AttentionProblem, device: torch.device) -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "needs Triton, which has wheels for Linux only"
    if interpreter.is_enabled():
        return "kernels are interpreted in this process: run it without --interpret"
    if device.type != "cuda":
        return "needs a GPU: --interpret checks it on this machine, --inspect compiles it"
    return _why_not_here(problem)


def why_not_flash_interpret(problem: AttentionProblem, device: torch.device) -> str | None:
    if not interpreter.is_enabled():
        return "runs with --interpret only"
    if device.type != "cpu":
        return "the interpreter runs on the CPU: --device cpu"
    if max(problem.q_len, problem.kv_len) > INTERPRETED_LEN:
        return f"interpreted up to {INTERPRETED_LEN} tokens: minutes beyond"
    return _why_not_here(problem)


def _why_not_here(problem: AttentionProblem) -> str | None:
    if problem.dtype not in DTYPES:
        return "its kernels take float16, bfloat16 or float32"
    if max(problem.head_dim, problem.v_head_dim) > LARGEST_DIM:
        return f"its kernels take head dimensions up to {LARGEST_DIM}"
    return None


class _Flash(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool, window: int | None, scale: float
    ) -> Tensor:
        few = q.shape[2] * (q.shape[1] // k.shape[1]) <= 64 and k.shape[2] > 2 * q.shape[2]
        run = decode_with_lse if few else forward_with_lse
        q, k, v = (_rows_in_a_line(x) for x in (q, k, v))
        out, lse = run(q, k, v, causal=causal, window=window, scale=scale)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.options = causal, window, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        causal, window, scale = ctx.options
        q, k, v, out, lse = ctx.saved_tensors
        grads = backward(q, k, v, out, lse, d_out, causal=causal, window=window, scale=scale)
        return (*grads, None, None, None)


def forward_with_lse(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, window: int | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Returns out (B, H, Lq, Dv) and the natural log-sum-exp (B, H, Lq), -inf without a key."""
    from seqdiag.ops.attention.flash_triton import flash_forward

    batch, heads, q_len, _ = q.shape
    out = q.new_empty(batch, heads, q_len, v.shape[-1])
    lse = q.new_empty(batch, heads, q_len, dtype=torch.float32)
    call = _Call(q, k, v, causal, window, scale)
    tile = call.tile("forward")
    call.launch(
        flash_forward,
        -(-q_len // tile.block_m) * heads * batch,
        tile,
        (q, k, v, out, lse, *_strides(q, k, v, out)),
        (call.scale2,),
    )
    return out, lse


def backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    d_out: Tensor,
    *,
    causal: bool,
    window: int | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns dq, dk, dv, the same bits on every run."""
    from seqdiag.ops.attention import flash_backward_triton as kernels

    batch, heads, q_len, _ = q.shape
    kv_heads, kv_len = k.shape[1:3]
    d_out = _rows_in_a_line(d_out)
    delta = torch.empty_like(lse)
    dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    call = _Call(q, k, v, causal, window, scale)
    rows = 64
    with call.device:
        kernels.row_products[(-(-q_len // rows) * heads * batch,)](
            out, d_out, delta, *_strides(out, d_out), heads, q_len,
            DV=v.shape[-1], BLOCK_M=rows, BLOCK_DV=block_dim(v.shape[-1]), num_warps=4,
        )  # fmt: skip
    strides = _strides(q, k, v, d_out)
    tile = call.tile("backward_keys")
    call.launch(
        kernels.flash_backward_keys,
        -(-kv_len // tile.block_n) * kv_heads * batch,
        tile,
        (q, k, v, d_out, lse, delta, dk, dv, *strides),
        (scale, call.scale2),
    )
    tile = call.tile("backward_queries")
    call.launch(
        kernels.flash_backward_queries,
        -(-q_len // tile.block_m) * heads * batch,
        tile,
        (q, k, v, d_out, lse, delta, dq, *strides),
        (scale, call.scale2),
    )
    return dq, dk, dv


def decode_with_lse(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    window: int | None,
    scale: float,
    splits: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns out and log-sum-exp as `forward_with_lse` does, with the keys cut in `splits`."""
    from seqdiag.ops.attention.decode_triton import decode_combine, decode_split

    batch, heads, q_len, _ = q.shape
    kv_heads, kv_len = k.shape[1:3]
    call = _Call(q, k, v, causal, window, scale)
    tile = call.tile("decode")
    rows = heads // kv_heads * q_len
    # A row's product needs 16 of them; more rows than that share the keys that were read.
    tile = Tile(min(64, block_dim(rows)), tile.block_n, tile.num_warps, tile.num_stages)
    hidden = max(0, kv_len - q_len - window + 1) if window is not None else 0
    first_key = hidden // tile.block_n * tile.block_n
    programs = -(-rows // tile.block_m) * kv_heads * batch
    if splits is None:
        splits = split_count(programs, kv_len - first_key, tile.block_n, call.processors)
    split_len = -(-(kv_len - first_key) // (splits * tile.block_n)) * tile.block_n
    splits = -(-(kv_len - first_key) // split_len)
    shape = (splits, batch, heads, q_len)
    parts_dtype = q.dtype if splits == 1 else torch.float32
    parts = q.new_empty(*shape, v.shape[-1], dtype=parts_dtype)
    part_lse = q.new_empty(shape, dtype=torch.float32)
    call.launch(
        decode_split,
        programs * splits,
        tile,
        (q, k, v, parts, part_lse, *_strides(q, k, v)),
        (first_key, split_len, splits, call.scale2),
    )
    if splits == 1:
        return parts[0], part_lse[0]
    out, lse = q.new_empty(parts.shape[1:]), torch.empty_like(part_lse[0])
    with call.device:
        decode_combine[(batch * heads * q_len,)](
            parts, part_lse, out, lse, batch * heads * q_len, splits,
            DV=v.shape[-1], BLOCK_DV=block_dim(v.shape[-1]), BLOCK_S=block_dim(splits), num_warps=4,
        )  # fmt: skip
    return out, lse


class _Call:
    """What the launches of one call share."""

    def __init__(
        self, q: Tensor, k: Tensor, v: Tensor, causal: bool, window: int | None, scale: float
    ) -> None:
        if scale < 0:
            raise ValueError(f"attention flash-triton: scale {scale} is negative")
        self._q, self._k, self._v = q, k, v
        self._causal, self._window = causal, window
        self.scale2 = scale * math.log2(math.e)
        on_gpu = q.device.type == "cuda"
        # Triton launches on the current device.
        self.device = torch.cuda.device(q.device if on_gpu else -1)
        properties = torch.cuda.get_device_properties(q.device) if on_gpu else None
        self.processors = properties.multi_processor_count if properties else 4
        self._architecture = "interpreter"
        if on_gpu:
            capability = torch.cuda.get_device_capability(q.device)
            self._architecture = architecture_of(capability, hip=torch.version.hip is not None)

    def tile(self, kernel: Kernel) -> Tile:
        largest = max(self._q.shape[-1], self._v.shape[-1])
        return tile_for(kernel, self._architecture, largest, self._q.element_size())

    def launch(
        self,
        kernel: Any,
        programs: int,
        tile: Tile,
        first: tuple[Any, ...],
        last: tuple[Any, ...],
    ) -> None:
        """Runs a kernel whose arguments lie around the sizes that all of them take."""
        q, k, v = self._q, self._k, self._v
        kv_heads, kv_len = k.shape[1:3]
        offset = kv_len - q.shape[2]
        sizes = (kv_heads, q.shape[1] // kv_heads, q.shape[2], kv_len, offset, self._window or 0)
        with self.device:
            kernel[(programs,)](
                *first, *sizes, *last,
                **kernel_constants(
                    tile, q.shape[-1], v.shape[-1], self._causal, self._window is not None
                ),
                num_warps=tile.num_warps, num_stages=tile.num_stages,
            )  # fmt: skip


def kernel_constants(
    tile: Tile, head_dim: int, v_head_dim: int, causal: bool, windowed: bool
) -> dict[str, Any]:
    """Returns the compile-time arguments that the kernels share."""
    return {
        "D": head_dim,
        "DV": v_head_dim,
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_D": block_dim(head_dim),
        "BLOCK_DV": block_dim(v_head_dim),
        "CAUSAL": causal,
        "WINDOWED": windowed,
        # Never TF32 unasked; for 16 bits it says nothing.
        "PRECISION": "ieee",
    }


def _strides(*tensors: Tensor) -> tuple[int, ...]:
    """Returns the strides of batch, head and row of each; columns lie side by side."""
    return tuple(stride for tensor in tensors for stride in tensor.stride()[:3])


def _rows_in_a_line(x: Tensor) -> Tensor:
    fits = x.stride(-1) == 1 and x.stride(2) < _LARGEST_STRIDE
    return x if fits else x.contiguous()
