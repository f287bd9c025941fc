"""Attention forward in Triton, with an online softmax: one program a block of queries.

The keys of a block fall into up to three ranges: those at the start of a window and those at the
diagonal or the end, where visibility is decided pair by pair, and between them those that every
query of the block sees, which need no mask. Dao 2023 (arXiv 2307.08691), algorithm 1; the online
softmax is Milakov and Gimelshein 2018 (arXiv 1805.02867). Exponentials are powers of two with
log2(e) folded into the scale.
"""

import triton
import triton.language as tl

LN2 = tl.constexpr(0.6931471805599453)
SIZES = ("kv_heads", "group", "q_len", "kv_len", "offset", "window")
"""Arguments that change from call to call: a kernel compiled for one value of them serves all."""


@triton.jit
def load_rows(
    base, stride, rows, here, D: tl.constexpr, BLOCK_D: tl.constexpr, MASKED: tl.constexpr
):
    """Returns a tile of `rows`; columns from D on are 0, with MASKED rows not `here` too."""
    columns = tl.arange(0, BLOCK_D)
    at = base + rows[:, None] * stride + columns[None, :]
    if MASKED:
        if BLOCK_D == D:
            return tl.load(at, mask=here[:, None], other=0.0)
        return tl.load(at, mask=here[:, None] & (columns < D)[None, :], other=0.0)
    if BLOCK_D == D:
        return tl.load(at)
    return tl.load(at, mask=(columns < D)[None, :], other=0.0)


@triton.jit
def visible(positions, keys, kv_end, window, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr):
    """Returns which keys each position sees; both are tiles that broadcast to each other."""
    seen = keys < kv_end
    if CAUSAL:
        seen = seen & (keys <= positions)
    if WINDOWED:
        seen = seen & (keys > positions - window)
    return seen


@triton.jit
def key_ranges(
    first, last, kv_start, kv_end, window,
    BLOCK: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr,
):  # fmt: skip
    """Returns the bounds a <= b <= c of the keys in [kv_start, kv_end) that positions first to last
    see, and their end d: masked in [a, b) and [c, d), seen by all in [b, c). a, b and c are whole
    blocks from kv_start; one loop runs over both masked ranges."""
    end = kv_end
    whole_end = kv_end
    if CAUSAL:
        end = tl.minimum(kv_end, tl.maximum(last + 1, kv_start))
        whole_end = tl.minimum(kv_end, tl.maximum(first + 1, kv_start))
    start = kv_start
    whole = kv_start
    if WINDOWED:
        start = kv_start + tl.maximum(first - window + 1 - kv_start, 0) // BLOCK * BLOCK
        whole = kv_start + tl.cdiv(tl.maximum(last - window + 1 - kv_start, 0), BLOCK) * BLOCK
    whole = tl.minimum(whole, kv_start + tl.cdiv(end - kv_start, BLOCK) * BLOCK)
    whole = tl.maximum(whole, start)
    whole_end = tl.maximum(kv_start + (whole_end - kv_start) // BLOCK * BLOCK, whole)
    return start, whole, whole_end, end


@triton.jit
def jumped(step, jump_at, jump, MASKED: tl.constexpr):
    """Returns where a masked loop stands: from `jump_at` on it leaves out `jump` unmasked ones."""
    at = step
    if MASKED:
        at = step + tl.where(step >= jump_at, jump, 0)
    return at


@triton.jit
def attend(
    acc, total, peak, q, k, v, stride_k, stride_v, positions, start, stop, jump_at, jump, kv_end,
    window, scale2,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Returns (acc, total, peak) after keys `start` to `stop` + `jump`.

    `peak` is the largest score so far, `total` the sum of 2^(score - peak), `acc` that of
    2^(score - peak) v; scores carry `scale2` = scale * log2(e).
    """
    lanes = tl.arange(0, BLOCK_N)
    for step in range(start, stop, BLOCK_N):
        at = jumped(step, jump_at, jump, MASKED)
        left = kv_end - at
        far = at.to(tl.int64)
        k_tile = load_rows(k + far * stride_k, stride_k, lanes, lanes < left, D, BLOCK_D, MASKED)
        scores = tl.dot(q, tl.trans(k_tile), input_precision=PRECISION)
        if MASKED:
            keys = (at + lanes)[None, :]
            seen = visible(positions[:, None], keys, kv_end, window, CAUSAL, WINDOWED)
            scores = tl.where(seen, scores * scale2, float("-inf"))
            highest = tl.maximum(peak, tl.max(scores, 1))
            # A row that has seen no key has no peak: any finite one gives 2^-inf = 0.
            level = tl.where(highest == float("-inf"), 0.0, highest)
            weights = tl.exp2(scores - level[:, None])
        else:
            highest = tl.maximum(peak, tl.max(scores, 1) * scale2)
            level = highest
            weights = tl.exp2(scores * scale2 - level[:, None])
        kept = tl.exp2(peak - level)
        total = total * kept + tl.sum(weights, 1)
        acc = acc * kept[:, None]
        v_tile = load_rows(v + far * stride_v, stride_v, lanes, lanes < left, DV, BLOCK_DV, MASKED)
        if MASKED:
            unfit = tl.sum(v_tile.to(tl.float32) * 0.0, 1)
            weights = tl.where(seen, weights + unfit[None, :], 0.0)
            v_tile = tl.where((unfit == 0.0)[:, None], v_tile, 0.0)
        acc = tl.dot(weights.to(v_tile.dtype), v_tile, acc, input_precision=PRECISION)
        peak = highest
    return acc, total, peak


@triton.jit(do_not_specialize=SIZES)
def flash_forward(
    q, k, v, out, lse,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn, stride_ob, stride_oh, stride_om,
    kv_heads, group, q_len, kv_len, offset, window, scale2,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Writes out (B, H, Lq, DV) and lse (B, H, Lq), the natural logarithm of each row's sum.

    Query i stands at position i + offset. The longest blocks of a causal mask come first, and the
    heads that share keys follow one another, so that the cache serves them.
    """
    blocks = tl.cdiv(q_len, BLOCK_M)
    pid = tl.program_id(0)
    member = pid % group
    block = blocks - 1 - pid // group % blocks
    shared = pid // group // blocks
    batch = (shared // kv_heads).to(tl.int64)
    kv_head = (shared % kv_heads).to(tl.int64)
    head = kv_head * group + member
    row = block * BLOCK_M

    lanes = tl.arange(0, BLOCK_M)
    rows_left = q_len - row
    q_base = q + batch * stride_qb + head * stride_qh + row.to(tl.int64) * stride_qm
    q_tile = load_rows(q_base, stride_qm, lanes, lanes < rows_left, D, BLOCK_D, True)
    k_base = k + batch * stride_kb + kv_head * stride_kh
    v_base = v + batch * stride_vb + kv_head * stride_vh

    positions = row + lanes + offset
    last = tl.minimum(row + BLOCK_M, q_len) - 1 + offset
    a, b, c, d = key_ranges(row + offset, last, 0, kv_len, window, BLOCK_N, CAUSAL, WINDOWED)
    acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    acc, total, peak = attend(
        acc, total, peak, q_tile, k_base, v_base, stride_kn, stride_vn, positions,
        b, c, 0, 0, kv_len, window, scale2,
        D, DV, BLOCK_N, BLOCK_D, BLOCK_DV, CAUSAL, WINDOWED, False, PRECISION,
    )  # fmt: skip
    acc, total, peak = attend(
        acc, total, peak, q_tile, k_base, v_base, stride_kn, stride_vn, positions,
        a, d - (c - b), b, c - b, kv_len, window, scale2,
        D, DV, BLOCK_N, BLOCK_D, BLOCK_DV, CAUSAL, WINDOWED, True, PRECISION,
    )  # fmt: skip

    stored = lanes < rows_left
    columns = tl.arange(0, BLOCK_DV)
    result = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    o_base = out + batch * stride_ob + head * stride_oh + row.to(tl.int64) * stride_om
    tl.store(
        o_base + lanes[:, None] * stride_om + columns[None, :],
        result.to(out.dtype.element_ty),
        mask=stored[:, None] & (columns < DV)[None, :],
    )
    lse_at = lse + (batch * kv_heads * group + head) * q_len + row + lanes
    tl.store(lse_at, peak * LN2 + tl.log(total), mask=stored)
