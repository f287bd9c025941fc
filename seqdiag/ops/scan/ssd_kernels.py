"""The state space dual form in Triton: matrix products inside chunks, a state between them.

With s the cumulative log decay of a chunk, in powers of two, M_ij = 2^(s_i - s_j) for j <= i and
S the state before the chunk, for each head:

    y_i = sum_j (C_i . B_j) M_ij dt_j x_j + 2^(s_i) C_i S
    S'  = 2^(s_Q) S + sum_j 2^(s_Q - s_j) dt_j B_j x_j^T

The difference is masked before it is exponentiated: the masked half would overflow. s is summed in
float64 and split into two float32 numbers, so the difference of two long sums keeps its digits.
Matrix products take inputs in the dtype of x and accumulate in float32; states are float32, stored
as (..., N, P). A step past the end has dt = 0, so it neither decays nor writes.

Two schedules: `fused_kernel` walks over the chunks of a head with the state in registers, and
`ends_kernel`, `join_kernel`, `outputs_kernel` work on all chunks at once around a sequential pass
over states. The adjoint of the state runs through the first two in reverse. Transposed products are
computed as such, never by transposing an accumulator. No atomics: sums over the heads of a group
and over chunks are left to the caller, in a fixed order.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
_LEAST = tl.constexpr(-1e30)


@triton.jit
def _decays(dt_at, dt_t, A, begin, steps, Q: tl.constexpr):
    """Returns dt (Q,), s as high and low parts (Q,), and the parts of s at the end."""
    t = begin + tl.arange(0, Q)
    dt = tl.load(dt_at + tl.cast(t, tl.int64) * dt_t, mask=t < steps, other=0.0).to(tl.float32)
    rates = (dt * (A * LOG2_E)).to(tl.float64)
    s = tl.maximum(tl.cumsum(rates, axis=0), _LEAST)
    high = s.to(tl.float32)
    low = (s - high.to(tl.float64)).to(tl.float32)
    end = tl.maximum(tl.sum(rates, axis=0), _LEAST)
    end_high = end.to(tl.float32)
    end_low = (end - end_high.to(tl.float64)).to(tl.float32)
    return dt, high, low, end_high, end_low


@triton.jit
def _rows(at, stride, begin, steps, columns, n_columns, Q: tl.constexpr):
    """Loads (Q, columns) of a tensor whose rows are steps."""
    t = begin + tl.arange(0, Q)
    held = (t < steps)[:, None] & (columns < n_columns)[None, :]
    return tl.load(at + tl.cast(t, tl.int64)[:, None] * stride + columns[None, :], held, other=0.0)


@triton.jit
def _columns(at, stride, begin, steps, rows, n_rows, Q: tl.constexpr):
    """Loads the same, transposed: (rows, Q)."""
    t = begin + tl.arange(0, Q)
    held = (rows < n_rows)[:, None] & (t < steps)[None, :]
    return tl.load(at + tl.cast(t, tl.int64)[None, :] * stride + rows[:, None], held, other=0.0)


@triton.jit
def _mask(high_i, low_i, high_j, low_j, reached):
    """Returns 2^(s_i - s_j) where `reached`, else 0."""
    difference = (high_i - high_j) + (low_i - low_j)
    return tl.exp2(tl.where(reached, difference, float("-inf")))


@triton.jit
def _outputs(x, B_t, C, dt, high, low, state, Q: tl.constexpr):
    """Returns y (Q, P) of a chunk from x (Q, P), B transposed (N, Q), C (Q, N), S (N, P)."""
    i = tl.arange(0, Q)
    scores = tl.dot(C, B_t, input_precision="ieee")
    M = _mask(high[:, None], low[:, None], high[None, :], low[None, :], i[:, None] >= i[None, :])
    weights = (scores * M * dt[None, :]).to(x.dtype)
    carried = tl.dot(C, state.to(C.dtype), input_precision="ieee")
    return tl.dot(weights, x, input_precision="ieee") + tl.exp2(high + low)[:, None] * carried


@triton.jit
def fused_kernel(
    x_ptr, dt_ptr, A_ptr, B_ptr, C_ptr, h0_ptr, y_ptr, last_ptr,
    steps, heads, shared, width, x_b, x_t, dt_b, dt_t, B_b, B_t, B_g, C_b, C_t, C_g,
    N: tl.constexpr, BN: tl.constexpr, BP: tl.constexpr, Q: tl.constexpr,
):  # fmt: skip
    """Writes y and the last state; a program walks over the chunks of one head."""
    b = (tl.program_id(0) // heads).to(tl.int64)
    head = (tl.program_id(0) % heads).to(tl.int64)
    p = tl.program_id(1) * BP + tl.arange(0, BP)
    n = tl.arange(0, BN)
    held = (n < N)[:, None] & (p < width)[None, :]
    tile = tl.cast(tl.program_id(0), tl.int64) * N * width + n[:, None] * width + p[None, :]
    group = head // shared
    x_at = x_ptr + b * x_b + head * width
    dt_at = dt_ptr + b * dt_b + head
    B_at = B_ptr + b * B_b + group * B_g
    C_at = C_ptr + b * C_b + group * C_g
    A = tl.load(A_ptr + head).to(tl.float32)
    state = tl.load(h0_ptr + tile, mask=held, other=0.0)
    for begin in range(0, steps, Q):
        dt, high, low, end_high, end_low = _decays(dt_at, dt_t, A, begin, steps, Q)
        x = _rows(x_at, x_t, begin, steps, p, width, Q)
        B = _columns(B_at, B_t, begin, steps, n, N, Q)
        C = _rows(C_at, C_t, begin, steps, n, N, Q)
        y = _outputs(x, B, C, dt, high, low, state, Q)
        t = begin + tl.arange(0, Q)
        out = y_ptr + ((b * steps + t)[:, None] * heads + head) * width + p[None, :]
        there = (t < steps)[:, None] & (p < width)[None, :]
        tl.store(out, y.to(y_ptr.dtype.element_ty), mask=there)
        written = dt * tl.exp2((end_high - high) + (end_low - low))
        weighted = (B * written[None, :]).to(x.dtype)
        state = tl.exp2(end_high + end_low) * state + tl.dot(weighted, x, input_precision="ieee")
    tl.store(last_ptr + tile, state, mask=held)


@triton.jit
def ends_kernel(
    x_ptr, dt_ptr, A_ptr, W_ptr, ends_ptr, totals_ptr,
    steps, heads, shared, width, x_b, x_t, dt_b, dt_t, W_b, W_t, W_g,
    N: tl.constexpr, BN: tl.constexpr, BP: tl.constexpr, Q: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """Writes what each chunk adds to the state (N, P), and its log2 decay.

    Forward: sum_j 2^(s_Q - s_j) dt_j B_j x_j^T. In reverse, with x the gradient of y and W = C:
    sum_i 2^(s_i) C_i dy_i^T, what the chunk adds to the adjoint of the state before it.
    """
    b = (tl.program_id(0) // heads).to(tl.int64)
    head = (tl.program_id(0) % heads).to(tl.int64)
    chunk = tl.program_id(1)
    where = tl.cast(tl.program_id(0), tl.int64) * tl.num_programs(1) + chunk
    p, n = tl.arange(0, BP), tl.arange(0, BN)
    begin = chunk * Q
    A = tl.load(A_ptr + head).to(tl.float32)
    dt, high, low, end_high, end_low = _decays(dt_ptr + b * dt_b + head, dt_t, A, begin, steps, Q)
    weight = tl.exp2(high + low)
    if not REVERSE:
        weight = dt * tl.exp2((end_high - high) + (end_low - low))
    x = _rows(x_ptr + b * x_b + head * width, x_t, begin, steps, p, width, Q)
    W = _columns(W_ptr + b * W_b + (head // shared) * W_g, W_t, begin, steps, n, N, Q)
    end = tl.dot((W * weight[None, :]).to(x.dtype), x, input_precision="ieee")
    held = (n < N)[:, None] & (p < width)[None, :]
    tl.store(ends_ptr + where * N * width + n[:, None] * width + p[None, :], end, mask=held)
    tl.store(totals_ptr + where, end_high + end_low)


@triton.jit
def join_kernel(
    boundary_ptr, ends_ptr, totals_ptr, out_ptr, final_ptr, chunks, size,
    BLOCK: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """Writes the state that enters each chunk, from its side of time, and the one after all."""
    row = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    held = i < size
    h = tl.load(boundary_ptr + row * size + i, mask=held, other=0.0)
    for k in range(chunks):
        where = row * chunks + k
        if REVERSE:
            where = row * chunks + chunks - 1 - k
        tl.store(out_ptr + where * size + i, h, mask=held)
        end = tl.load(ends_ptr + where * size + i, mask=held, other=0.0)
        h = tl.exp2(tl.load(totals_ptr + where)) * h + end
    tl.store(final_ptr + row * size + i, h, mask=held)


@triton.jit
def outputs_kernel(
    x_ptr, dt_ptr, A_ptr, B_ptr, C_ptr, starts_ptr, y_ptr,
    steps, heads, shared, width, x_b, x_t, dt_b, dt_t, B_b, B_t, B_g, C_b, C_t, C_g,
    N: tl.constexpr, BN: tl.constexpr, BP: tl.constexpr, Q: tl.constexpr,
):  # fmt: skip
    """Writes y of every chunk from the state before it."""
    b = (tl.program_id(0) // heads).to(tl.int64)
    head = (tl.program_id(0) % heads).to(tl.int64)
    chunk = tl.program_id(1)
    where = tl.cast(tl.program_id(0), tl.int64) * tl.num_programs(1) + chunk
    p = tl.program_id(2) * BP + tl.arange(0, BP)
    n = tl.arange(0, BN)
    begin = chunk * Q
    group = head // shared
    held = (n < N)[:, None] & (p < width)[None, :]
    tile = where * N * width + n[:, None] * width + p[None, :]
    state = tl.load(starts_ptr + tile, mask=held, other=0.0)
    A = tl.load(A_ptr + head).to(tl.float32)
    dt, high, low, _, _ = _decays(dt_ptr + b * dt_b + head, dt_t, A, begin, steps, Q)
    x = _rows(x_ptr + b * x_b + head * width, x_t, begin, steps, p, width, Q)
    B = _columns(B_ptr + b * B_b + group * B_g, B_t, begin, steps, n, N, Q)
    C = _rows(C_ptr + b * C_b + group * C_g, C_t, begin, steps, n, N, Q)
    y = _outputs(x, B, C, dt, high, low, state, Q)
    t = begin + tl.arange(0, Q)
    out = y_ptr + ((b * steps + t)[:, None] * heads + head) * width + p[None, :]
    there = (t < steps)[:, None] & (p < width)[None, :]
    tl.store(out, y.to(y_ptr.dtype.element_ty), mask=there)


@triton.jit
def readers_kernel(
    x_ptr, dt_ptr, A_ptr, B_ptr, C_ptr, starts_ptr, dy_ptr, dC_ptr, read_ptr,
    steps, heads, shared, width,
    x_b, x_t, dt_b, dt_t, B_b, B_t, B_g, C_b, C_t, C_g, dy_b, dy_t,
    N: tl.constexpr, BN: tl.constexpr, BP: tl.constexpr, Q: tl.constexpr,
):  # fmt: skip
    """Writes dC by head, and dy_i . y_i of every step: what reading adds to the log decay."""
    b = (tl.program_id(0) // heads).to(tl.int64)
    head = (tl.program_id(0) % heads).to(tl.int64)
    chunk = tl.program_id(1)
    where = tl.cast(tl.program_id(0), tl.int64) * tl.num_programs(1) + chunk
    p, n, i = tl.arange(0, BP), tl.arange(0, BN), tl.arange(0, Q)
    begin = chunk * Q
    group = head // shared
    A = tl.load(A_ptr + head).to(tl.float32)
    dt, high, low, _, _ = _decays(dt_ptr + b * dt_b + head, dt_t, A, begin, steps, Q)
    B_at, C_at = B_ptr + b * B_b + group * B_g, C_ptr + b * C_b + group * C_g
    dy = _rows(dy_ptr + b * dy_b + head * width, dy_t, begin, steps, p, width, Q)
    x = _columns(x_ptr + b * x_b + head * width, x_t, begin, steps, p, width, Q)
    reached = i[:, None] >= i[None, :]
    M = _mask(high[:, None], low[:, None], high[None, :], low[None, :], reached)
    d_scores = tl.dot(dy, x, input_precision="ieee") * M * dt[None, :]
    C = _rows(C_at, C_t, begin, steps, n, N, Q)
    B_T = _columns(B_at, B_t, begin, steps, n, N, Q)
    read = tl.sum(d_scores * tl.dot(C, B_T, input_precision="ieee"), axis=1)
    held = (p < width)[:, None] & (n < N)[None, :]
    tile = where * N * width + n[None, :] * width + p[:, None]
    state = tl.load(starts_ptr + tile, mask=held, other=0.0).to(dy.dtype)  # (P, N)
    dC = tl.exp2(high + low)[:, None] * tl.dot(dy, state, input_precision="ieee")
    read += tl.sum(C * dC, axis=1)
    B = _rows(B_at, B_t, begin, steps, n, N, Q)
    dC += tl.dot(d_scores.to(B.dtype), B, input_precision="ieee")
    t = begin + i
    line = (b * steps + t) * heads + head
    there = (t < steps)[:, None] & (n < N)[None, :]
    tl.store(dC_ptr + line[:, None] * N + n[None, :], dC, mask=there)
    tl.store(read_ptr + line, read, mask=t < steps)


@triton.jit
def writers_kernel(
    x_ptr, dt_ptr, A_ptr, B_ptr, C_ptr, starts_ptr, dy_ptr, carries_ptr, read_ptr,
    dx_ptr, ddt_ptr, dA_ptr, dB_ptr,
    steps, heads, shared, width,
    x_b, x_t, dt_b, dt_t, B_b, B_t, B_g, C_b, C_t, C_g, dy_b, dy_t,
    N: tl.constexpr, BN: tl.constexpr, BP: tl.constexpr, Q: tl.constexpr,
):  # fmt: skip
    """Writes dx, ddt, dB by head and dA by chunk; `carries_ptr` is the adjoint after each chunk.

    The gradient of a step's log decay is a sum over itself and later steps: of dy_i . y_i, less
    dt_j x_j . d(dt_j x_j), and what leaves through the state.
    """
    b = (tl.program_id(0) // heads).to(tl.int64)
    head = (tl.program_id(0) % heads).to(tl.int64)
    chunk = tl.program_id(1)
    where = tl.cast(tl.program_id(0), tl.int64) * tl.num_programs(1) + chunk
    p, n, i = tl.arange(0, BP), tl.arange(0, BN), tl.arange(0, Q)
    begin = chunk * Q
    t = begin + i
    group = head // shared
    held = (n < N)[:, None] & (p < width)[None, :]
    tile = where * N * width + n[:, None] * width + p[None, :]
    carry = tl.load(carries_ptr + tile, mask=held, other=0.0)
    state = tl.load(starts_ptr + tile, mask=held, other=0.0)
    kept = tl.sum(tl.sum(state * carry, axis=1), axis=0)
    A = tl.load(A_ptr + head).to(tl.float32)
    dt, high, low, end_high, end_low = _decays(dt_ptr + b * dt_b + head, dt_t, A, begin, steps, Q)
    kept *= tl.exp2(end_high + end_low)
    to_end = tl.exp2((end_high - high) + (end_low - low))
    x_at, dy_at = x_ptr + b * x_b + head * width, dy_ptr + b * dy_b + head * width
    B_at, C_at = B_ptr + b * B_b + group * B_g, C_ptr + b * C_b + group * C_g

    B = _rows(B_at, B_t, begin, steps, n, N, Q)
    C_T = _columns(C_at, C_t, begin, steps, n, N, Q)
    reached = i[None, :] >= i[:, None]
    M = _mask(high[None, :], low[None, :], high[:, None], low[:, None], reached)  # (j, i)
    scores = tl.dot(B, C_T, input_precision="ieee") * M
    dy = _rows(dy_at, dy_t, begin, steps, p, width, Q)
    d_written = to_end[:, None] * tl.dot(B, carry.to(B.dtype), input_precision="ieee")
    d_written += tl.dot(scores.to(dy.dtype), dy, input_precision="ieee")
    x = _rows(x_at, x_t, begin, steps, p, width, Q)
    line = (b * steps + t) * heads + head
    cells = (t < steps)[:, None] & (p < width)[None, :]
    dx = (d_written * dt[:, None]).to(dx_ptr.dtype.element_ty)
    tl.store(dx_ptr + line[:, None] * width + p[None, :], dx, mask=cells)
    ddt = tl.sum(d_written * x, axis=1)

    dy_T = _columns(dy_at, dy_t, begin, steps, p, width, Q)
    pairs = tl.dot(x, dy_T, input_precision="ieee") * dt[:, None]
    written = tl.sum(scores * pairs, axis=1)
    carry_T = tl.load(
        carries_ptr + where * N * width + n[None, :] * width + p[:, None],
        mask=(p < width)[:, None] & (n < N)[None, :],
        other=0.0,
    ).to(x.dtype)
    dB = (dt * to_end)[:, None] * tl.dot(x, carry_T, input_precision="ieee")
    leaves = tl.sum(B * dB, axis=1)
    C = _rows(C_at, C_t, begin, steps, n, N, Q)
    dB += tl.dot((pairs * M).to(C.dtype), C, input_precision="ieee")
    there = (t < steps)[:, None] & (n < N)[None, :]
    tl.store(dB_ptr + line[:, None] * N + n[None, :], dB, mask=there)

    d_s = tl.load(read_ptr + line, mask=t < steps, other=0.0) - written - leaves
    d_rate = tl.sum(d_s, axis=0) - tl.cumsum(d_s, axis=0) + d_s + tl.sum(leaves, axis=0) + kept
    ddt += A * d_rate
    tl.store(ddt_ptr + line, ddt.to(ddt_ptr.dtype.element_ty), mask=t < steps)
    tl.store(dA_ptr + where, tl.sum(dt * d_rate, axis=0))
