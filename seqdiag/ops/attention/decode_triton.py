"""Attention of few new queries over a long cache, in Triton: the keys are split among programs.

One query block per head would leave most of a GPU idle, so a program takes one split of the keys
and all queries of the heads that share them, which stand as rows of one matrix: each key is read
once. A second kernel joins the splits in a fixed order. "Flash-decoding" (Dao et al. 2023).
"""

import triton
import triton.language as tl

from seqdiag.ops.attention.flash_triton import LN2, SIZES, attend, jumped, key_ranges


@triton.jit(do_not_specialize=[*SIZES, "first_key", "split_len", "splits"])
def decode_split(
    q, k, v, out, lse,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn,
    kv_heads, group, q_len, kv_len, offset, window, first_key, split_len, splits, scale2,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Writes out (splits, B, H, Lq, DV), normalised within its split, and lse (splits, B, H, Lq).

    Split s holds the keys first_key + s * split_len and following.
    """
    rows = group * q_len
    blocks = tl.cdiv(rows, BLOCK_M)
    pid = tl.program_id(0)
    split = pid % splits
    block = pid // splits % blocks
    shared = pid // splits // blocks
    batch = (shared // kv_heads).to(tl.int64)
    kv_head = (shared % kv_heads).to(tl.int64)
    row = block * BLOCK_M + tl.arange(0, BLOCK_M)
    head = kv_head * group + row // q_len
    query = row % q_len
    columns = tl.arange(0, BLOCK_D)
    q_rows = q + batch * stride_qb + head * stride_qh + query * stride_qm
    loaded = (row < rows)[:, None] & (columns < D)[None, :]
    q_tile = tl.load(q_rows[:, None] + columns[None, :], mask=loaded, other=0.0)
    k_base = k + batch * stride_kb + kv_head * stride_kh
    v_base = v + batch * stride_vb + kv_head * stride_vh

    start = first_key + split * split_len
    end = tl.maximum(tl.minimum(start + split_len, kv_len), start)
    positions = query + offset
    a, b, c, d = key_ranges(
        offset, offset + q_len - 1, start, end, window, BLOCK_N, CAUSAL, WINDOWED
    )
    acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    acc, total, peak = attend(
        acc, total, peak, q_tile, k_base, v_base, stride_kn, stride_vn, positions,
        b, c, 0, 0, end, window, scale2,
        D, DV, BLOCK_N, BLOCK_D, BLOCK_DV, CAUSAL, WINDOWED, False, PRECISION,
    )  # fmt: skip
    acc, total, peak = attend(
        acc, total, peak, q_tile, k_base, v_base, stride_kn, stride_vn, positions,
        a, d - (c - b), b, c - b, end, window, scale2,
        D, DV, BLOCK_N, BLOCK_D, BLOCK_DV, CAUSAL, WINDOWED, True, PRECISION,
    )  # fmt: skip

    heads = kv_heads * group
    batches = tl.num_programs(0) // (splits * blocks * kv_heads)
    at = ((split.to(tl.int64) * batches + batch) * heads + head) * q_len + query
    v_columns = tl.arange(0, BLOCK_DV)
    result = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(
        out + at[:, None] * DV + v_columns[None, :],
        result.to(out.dtype.element_ty),
        mask=(row < rows)[:, None] & (v_columns < DV)[None, :],
    )
    tl.store(lse + at, peak * LN2 + tl.log(total), mask=row < rows)


@triton.jit(do_not_specialize=["rows", "splits"])
def decode_combine(
    parts, part_lse, out, lse, rows, splits,
    DV: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """Writes out (rows, DV) and lse (rows) from parts (splits, rows, DV), split 0 first."""
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK_S)
    levels = tl.load(
        part_lse + lanes.to(tl.int64) * rows + row, mask=lanes < splits, other=float("-inf")
    )
    highest = tl.max(levels, 0)
    highest = tl.where(highest == float("-inf"), 0.0, highest)
    total = tl.sum(tl.exp(levels - highest), 0)
    columns = tl.arange(0, BLOCK_DV)
    acc = tl.zeros([BLOCK_DV], tl.float32)
    for split in range(splits):
        at = jumped(split, 0, 0, False).to(tl.int64) * rows + row
        weight = tl.exp(tl.load(part_lse + at) - highest)
        part = tl.load(parts + at * DV + columns, mask=columns < DV, other=0.0)
        acc += weight * part
    acc = acc / tl.where(total == 0.0, 1.0, total)
    tl.store(out + row * DV + columns, acc.to(out.dtype.element_ty), mask=columns < DV)
    tl.store(lse + row, highest + tl.log(total))
