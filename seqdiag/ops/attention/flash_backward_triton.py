"""Attention backward in Triton: two kernels and no atomics, so that a result repeats bit by bit.

One program of the first holds a block of keys and runs over the queries that see it, of every head
that shares the keys; one of the second holds a block of queries and runs over their keys. Scores
are computed again from the log-sum-exp of the forward pass: Dao 2023 (arXiv 2307.08691),
algorithm 2. The first computes scores transposed, so no accumulator is transposed.
"""

import triton
import triton.language as tl

from seqdiag.ops.attention.flash_triton import SIZES, jumped, key_ranges, load_rows, visible

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=["heads", "q_len"])
def row_products(
    out, d_out, delta, stride_ob, stride_oh, stride_om, stride_gb, stride_gh, stride_gm,
    heads, q_len, DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """Writes delta (B, H, Lq) = sum over dv of out * d_out, for the softmax's gradient."""
    blocks = tl.cdiv(q_len, BLOCK_M)
    pid = tl.program_id(0)
    row = pid % blocks * BLOCK_M
    head = (pid // blocks % heads).to(tl.int64)
    batch = (pid // blocks // heads).to(tl.int64)
    lanes = tl.arange(0, BLOCK_M)
    left = q_len - row
    far = row.to(tl.int64)
    o_base = out + batch * stride_ob + head * stride_oh + far * stride_om
    g_base = d_out + batch * stride_gb + head * stride_gh + far * stride_gm
    o_tile = load_rows(o_base, stride_om, lanes, lanes < left, DV, BLOCK_DV, True).to(tl.float32)
    g_tile = load_rows(g_base, stride_gm, lanes, lanes < left, DV, BLOCK_DV, True).to(tl.float32)
    at = delta + (batch * heads + head) * q_len + row + lanes
    tl.store(at, tl.sum(o_tile * g_tile, 1), mask=lanes < left)


@triton.jit
def from_queries(
    dk, dv, k_tile, v_tile, q, d_out, lse, delta, stride_qm, stride_gm, keys, start, stop, jump_at,
    jump, q_len, kv_len, offset, window, scale2,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Returns (dk, dv) of a block of keys after queries `start` to `stop` + `jump` of one head."""
    lanes = tl.arange(0, BLOCK_M)
    for step in range(start, stop, BLOCK_M):
        at = jumped(step, jump_at, jump, MASKED)
        far = at.to(tl.int64)
        left = q_len - at
        fit = lanes
        if MASKED:
            level = tl.load(lse + far + lanes, mask=lanes < left, other=float("inf"))
            taken = tl.load(delta + far + lanes, mask=lanes < left, other=0.0)
            # 0 * NaN is NaN: a query that is not finite, and so its lse or delta, must not reach
            # a key that it cannot see. Such rows are not loaded: what they give is NaN anyway.
            fit = tl.where((level - level == 0.0) & (taken - taken == 0.0), lanes, left)
        else:
            level = tl.load(lse + far + lanes)
            taken = tl.load(delta + far + lanes)
        q_tile = load_rows(q + far * stride_qm, stride_qm, lanes, fit < left, D, BLOCK_D, MASKED)
        g_tile = load_rows(
            d_out + far * stride_gm, stride_gm, lanes, fit < left, DV, BLOCK_DV, MASKED
        )
        # A query without keys has lse -inf and no weights.
        level = tl.where(level == float("-inf"), float("inf"), level * LOG2E)
        scores = tl.dot(k_tile, tl.trans(q_tile), input_precision=PRECISION)
        weights = tl.exp2(scores * scale2 - level[None, :])
        d_weights = tl.dot(v_tile, tl.trans(g_tile), input_precision=PRECISION)
        d_scores = weights * (d_weights - taken[None, :])
        if MASKED:
            positions = (at + lanes + offset)[None, :]
            seen = visible(positions, keys[:, None], kv_len, window, CAUSAL, WINDOWED)
            seen = seen & (lanes < left)[None, :]
            weights = tl.where(seen, weights + (taken - taken)[None, :], 0.0)
            d_scores = tl.where(seen, d_scores, 0.0)
        dv = tl.dot(weights.to(g_tile.dtype), g_tile, dv, input_precision=PRECISION)
        dk = tl.dot(d_scores.to(q_tile.dtype), q_tile, dk, input_precision=PRECISION)
    return dk, dv


@triton.jit
def query_ranges(
    first, last, q_len, offset, window,
    BLOCK: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr,
):  # fmt: skip
    """Returns the bounds a <= b <= c of the queries that see keys first to last, and their end d:
    some of the keys in [a, b) and [c, d), every one in [b, c). a, b, c are multiples of BLOCK."""
    start = 0
    whole = 0
    if CAUSAL:
        start = tl.minimum(tl.maximum(first - offset, 0), q_len) // BLOCK * BLOCK
        whole = tl.cdiv(tl.maximum(last - offset, 0), BLOCK) * BLOCK
    end = q_len
    whole_end = q_len
    if WINDOWED:
        end = tl.minimum(q_len, tl.maximum(last + window - offset, 0))
        whole_end = tl.minimum(q_len, tl.maximum(first + window - offset, 0))
    end = tl.maximum(end, start)
    whole = tl.maximum(tl.minimum(whole, tl.cdiv(end, BLOCK) * BLOCK), start)
    whole_end = tl.maximum(whole_end // BLOCK * BLOCK, whole)
    return start, whole, whole_end, end


@triton.jit(do_not_specialize=SIZES)
def flash_backward_keys(
    q, k, v, d_out, lse, delta, dk, dv,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn, stride_gb, stride_gh, stride_gm,
    kv_heads, group, q_len, kv_len, offset, window, scale, scale2,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Writes dk (B, Hkv, Lk, D) and dv (B, Hkv, Lk, DV), both contiguous."""
    blocks = tl.cdiv(kv_len, BLOCK_N)
    pid = tl.program_id(0)
    row = pid % blocks * BLOCK_N
    shared = pid // blocks
    batch = (shared // kv_heads).to(tl.int64)
    kv_head = (shared % kv_heads).to(tl.int64)
    far = row.to(tl.int64)
    lanes = tl.arange(0, BLOCK_N)
    left = kv_len - row
    k_base = k + batch * stride_kb + kv_head * stride_kh + far * stride_kn
    v_base = v + batch * stride_vb + kv_head * stride_vh + far * stride_vn
    k_tile = load_rows(k_base, stride_kn, lanes, lanes < left, D, BLOCK_D, True)
    v_tile = load_rows(v_base, stride_vn, lanes, lanes < left, DV, BLOCK_DV, True)
    keys = row + lanes
    last = tl.minimum(row + BLOCK_N, kv_len) - 1
    a, b, c, d = query_ranges(row, last, q_len, offset, window, BLOCK_M, CAUSAL, WINDOWED)
    dk_tile = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv_tile = tl.zeros([BLOCK_N, BLOCK_DV], tl.float32)
    for member in range(group):
        head = kv_head * group + member
        q_base = q + batch * stride_qb + head * stride_qh
        g_base = d_out + batch * stride_gb + head * stride_gh
        flat = (batch * kv_heads * group + head) * q_len
        dk_tile, dv_tile = from_queries(
            dk_tile, dv_tile, k_tile, v_tile, q_base, g_base, lse + flat, delta + flat,
            stride_qm, stride_gm, keys,
            b, c, 0, 0, q_len, kv_len, offset, window, scale2,
            D, DV, BLOCK_M, BLOCK_D, BLOCK_DV, CAUSAL, WINDOWED, False, PRECISION,
        )  # fmt: skip
        dk_tile, dv_tile = from_queries(
            dk_tile, dv_tile, k_tile, v_tile, q_base, g_base, lse + flat, delta + flat,
            stride_qm, stride_gm, keys,
            a, d - (c - b), b, c - b, q_len, kv_len, offset, window, scale2,
            D, DV, BLOCK_M, BLOCK_D, BLOCK_DV, CAUSAL, WINDOWED, True, PRECISION,
        )  # fmt: skip
    stored = (lanes < left)[:, None]
    of_head = (batch * kv_heads + kv_head) * kv_len + row
    columns = tl.arange(0, BLOCK_D)
    tl.store(
        dk + of_head * D + lanes[:, None] * D + columns[None, :],
        (dk_tile * scale).to(dk.dtype.element_ty),
        mask=stored & (columns < D)[None, :],
    )
    v_columns = tl.arange(0, BLOCK_DV)
    tl.store(
        dv + of_head * DV + lanes[:, None] * DV + v_columns[None, :],
        dv_tile.to(dv.dtype.element_ty),
        mask=stored & (v_columns < DV)[None, :],
    )


@triton.jit
def from_keys(
    dq, q_tile, g_tile, level, taken, k, v, stride_k, stride_v, positions, start, stop, jump_at,
    jump, kv_len, window, scale2,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Returns dq of a block of queries after keys `start` to `stop` + `jump`."""
    lanes = tl.arange(0, BLOCK_N)
    for step in range(start, stop, BLOCK_N):
        at = jumped(step, jump_at, jump, MASKED)
        far = at.to(tl.int64)
        left = kv_len - at
        k_tile = load_rows(k + far * stride_k, stride_k, lanes, lanes < left, D, BLOCK_D, MASKED)
        v_tile = load_rows(v + far * stride_v, stride_v, lanes, lanes < left, DV, BLOCK_DV, MASKED)
        scores = tl.dot(q_tile, tl.trans(k_tile), input_precision=PRECISION)
        weights = tl.exp2(scores * scale2 - level[:, None])
        d_weights = tl.dot(g_tile, tl.trans(v_tile), input_precision=PRECISION)
        d_scores = weights * (d_weights - taken[:, None])
        if MASKED:
            keys = (at + lanes)[None, :]
            seen = visible(positions[:, None], keys, kv_len, window, CAUSAL, WINDOWED)
            d_scores = tl.where(seen, d_scores, 0.0)
            # A key that is not finite makes d_scores NaN for those who see it, and for them only.
            k_tile = tl.where(k_tile.to(tl.float32) * 0.0 == 0.0, k_tile, 0.0)
        dq = tl.dot(d_scores.to(k_tile.dtype), k_tile, dq, input_precision=PRECISION)
    return dq


@triton.jit(do_not_specialize=SIZES)
def flash_backward_queries(
    q, k, v, d_out, lse, delta, dq,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn, stride_gb, stride_gh, stride_gm,
    kv_heads, group, q_len, kv_len, offset, window, scale, scale2,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Writes dq (B, H, Lq, D), contiguous."""
    blocks = tl.cdiv(q_len, BLOCK_M)
    pid = tl.program_id(0)
    member = pid % group
    block = blocks - 1 - pid // group % blocks
    shared = pid // group // blocks
    batch = (shared // kv_heads).to(tl.int64)
    kv_head = (shared % kv_heads).to(tl.int64)
    head = kv_head * group + member
    row = block * BLOCK_M
    far = row.to(tl.int64)
    lanes = tl.arange(0, BLOCK_M)
    left = q_len - row
    q_base = q + batch * stride_qb + head * stride_qh + far * stride_qm
    g_base = d_out + batch * stride_gb + head * stride_gh + far * stride_gm
    q_tile = load_rows(q_base, stride_qm, lanes, lanes < left, D, BLOCK_D, True)
    g_tile = load_rows(g_base, stride_gm, lanes, lanes < left, DV, BLOCK_DV, True)
    flat = (batch * kv_heads * group + head) * q_len + row + lanes
    level = tl.load(lse + flat, mask=lanes < left, other=float("inf"))
    level = tl.where(level == float("-inf"), float("inf"), level * LOG2E)
    taken = tl.load(delta + flat, mask=lanes < left, other=0.0)
    k_base = k + batch * stride_kb + kv_head * stride_kh
    v_base = v + batch * stride_vb + kv_head * stride_vh
    positions = row + lanes + offset
    last = tl.minimum(row + BLOCK_M, q_len) - 1 + offset
    a, b, c, d = key_ranges(row + offset, last, 0, kv_len, window, BLOCK_N, CAUSAL, WINDOWED)
    dq_tile = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    dq_tile = from_keys(
        dq_tile, q_tile, g_tile, level, taken, k_base, v_base, stride_kn, stride_vn, positions,
        b, c, 0, 0, kv_len, window, scale2,
        D, DV, BLOCK_N, BLOCK_D, BLOCK_DV, CAUSAL, WINDOWED, False, PRECISION,
    )  # fmt: skip
    dq_tile = from_keys(
        dq_tile, q_tile, g_tile, level, taken, k_base, v_base, stride_kn, stride_vn, positions,
        a, d - (c - b), b, c - b, kv_len, window, scale2,
        D, DV, BLOCK_N, BLOCK_D, BLOCK_DV, CAUSAL, WINDOWED, True, PRECISION,
    )  # fmt: skip
    columns = tl.arange(0, BLOCK_D)
    at = dq + ((batch * kv_heads * group + head) * q_len + row) * D
    tl.store(
        at + lanes[:, None] * D + columns[None, :],
        (dq_tile * scale).to(dq.dtype.element_ty),
        mask=(lanes < left)[:, None] & (columns < D)[None, :],
    )
