"""The selective scan in Triton: a loop over time with the state in registers.

h_t = exp(delta_t A) h_{t-1} + delta_t B_t u_t,  y_t = (C_t . h_t + D u_t) SiLU(z_t)

A program owns BD channels of one sequence and a span of time. Its state is a tile (N, BD): N lies
on axis 0, so that the sum over N stays within a thread and only B_t and C_t are broadcast. Lanes
beyond N or the width hold A = 0 and inputs 0, so that they stay 0. Addresses are 64-bit, advanced
by a stride a step. `exponent` is A log2 e, transposed to (N, D); states are float32 and stored as
(..., N, D).

Where B D gives too few programs, time is split: `ends_kernel` finds what each span adds to a state
that starts at zero, `join_kernel` carries it across spans, and the main kernel runs every span from
its own start. The backward pass carries the adjoint g_t = C_t dy_t + a_{t+1} g_{t+1} the same way,
in reverse. It reads the states at segment edges that the forward pass kept, computes a segment's
states anew into scratch memory, and walks back over them.

The width counts as unaligned, or the compiler would spread N over lanes as well, at the price of
shuffles and barriers at every step. No atomics: sums over blocks of channels and over spans are
left to the caller, in a fixed order.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _step_size(raw, SOFTPLUS: tl.constexpr):
    """Returns softplus(raw), linear above 20 where the two agree in float32."""
    if SOFTPLUS:
        e = tl.exp2(tl.minimum(raw, 20.0) * LOG2_E)
        w = 1.0 + e
        # log(1 + e) to full precision for small e: what the rounding of w loses, e / (w - 1) gains.
        rounded = tl.where(w == 1.0, 1.0, w - 1.0)
        soft = tl.where(w == 1.0, e, tl.log2(w) * LN_2 * (e / rounded))
        return tl.where(raw > 20.0, raw, soft)
    return raw


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp2(-x * LOG2_E))


@triton.jit(do_not_specialize_on_alignment=["width"])
def forward_kernel(
    u_ptr, delta_ptr, exponent_ptr, B_ptr, C_ptr, D_ptr, z_ptr, bias_ptr,
    starts_ptr, y_ptr, last_ptr, edges_ptr,
    steps, width, n_blocks, span,
    u_b, u_t, delta_b, delta_t, z_b, z_t, B_b, B_t, C_b, C_t,
    N: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, SEGMENT: tl.constexpr,
    UNROLL: tl.constexpr, SOFTPLUS: tl.constexpr,
):  # fmt: skip
    """Writes y, the last state, and the state before each segment where `edges_ptr` is given."""
    b = (tl.program_id(0) // n_blocks).to(tl.int64)
    block = tl.program_id(0) % n_blocks
    part = tl.program_id(1)
    n = tl.arange(0, BN)
    d = block * BD + tl.arange(0, BD)
    in_n, in_d = n < N, d < width
    held = in_n[:, None] & in_d[None, :]
    tile = n[:, None].to(tl.int64) * width + d[None, :]
    size = tl.cast(width, tl.int64) * N

    exponent = tl.load(exponent_ptr + tile, mask=held, other=0.0)
    h = tl.load(starts_ptr + (b * tl.num_programs(1) + part) * size + tile, mask=held, other=0.0)
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + d, mask=in_d, other=0.0).to(tl.float32)
    if D_ptr is not None:
        skip = tl.load(D_ptr + d, mask=in_d, other=0.0).to(tl.float32)

    first = part * span
    end = tl.minimum(first + span, steps)
    at = tl.cast(first, tl.int64)
    u_at = u_ptr + b * u_b + at * u_t
    delta_at = delta_ptr + b * delta_b + at * delta_t
    B_at = B_ptr + b * B_b + at * B_t
    C_at = C_ptr + b * C_b + at * C_t
    y_at = y_ptr + (b * steps + at) * width
    if z_ptr is not None:
        z_at = z_ptr + b * z_b + at * z_t
    n_segments = tl.cdiv(steps, SEGMENT)
    for segment in range(first // SEGMENT, tl.cdiv(end, SEGMENT)):
        if edges_ptr is not None:
            tl.store(edges_ptr + (b * n_segments + segment) * size + tile, h, mask=held)
        stop = tl.minimum(segment * SEGMENT + SEGMENT, end)
        for _ in tl.range(segment * SEGMENT, stop, loop_unroll_factor=UNROLL):
            u = tl.load(u_at + d, mask=in_d, other=0.0).to(tl.float32)
            raw = tl.load(delta_at + d, mask=in_d, other=0.0).to(tl.float32)
            if bias_ptr is not None:
                raw += bias
            delta = _step_size(raw, SOFTPLUS)
            B = tl.load(B_at + n, mask=in_n, other=0.0).to(tl.float32)
            C = tl.load(C_at + n, mask=in_n, other=0.0).to(tl.float32)
            h = tl.exp2(delta[None, :] * exponent) * h + (delta * u)[None, :] * B[:, None]
            y = tl.sum(h * C[:, None], axis=0)
            if D_ptr is not None:
                y += skip * u
            if z_ptr is not None:
                z = tl.load(z_at + d, mask=in_d, other=0.0).to(tl.float32)
                y *= z * _sigmoid(z)
                z_at += z_t
            tl.store(y_at + d, y.to(y_ptr.dtype.element_ty), mask=in_d)
            u_at += u_t
            delta_at += delta_t
            B_at += B_t
            C_at += C_t
            y_at += width
    if part == tl.num_programs(1) - 1:
        tl.store(last_ptr + b * size + tile, h, mask=held)


@triton.jit(do_not_specialize_on_alignment=["width"])
def ends_kernel(
    x_ptr, delta_ptr, exponent_ptr, W_ptr, z_ptr, bias_ptr, ends_ptr, totals_ptr,
    steps, width, n_blocks, span,
    x_b, x_t, delta_b, delta_t, z_b, z_t, W_b, W_t,
    N: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, UNROLL: tl.constexpr,
    SOFTPLUS: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """Writes what each span adds to a state that enters it as zero, and its sum of delta.

    Forward x is u and W is B: h = a_t h + delta_t u_t B_t. In reverse x is dy and W is C:
    g = a_t (g + dy_t C_t), the adjoint that leaves the span towards the past.
    """
    b = (tl.program_id(0) // n_blocks).to(tl.int64)
    block = tl.program_id(0) % n_blocks
    part = tl.program_id(1)
    n = tl.arange(0, BN)
    d = block * BD + tl.arange(0, BD)
    in_n, in_d = n < N, d < width
    held = in_n[:, None] & in_d[None, :]
    tile = n[:, None].to(tl.int64) * width + d[None, :]
    exponent = tl.load(exponent_ptr + tile, mask=held, other=0.0)
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + d, mask=in_d, other=0.0).to(tl.float32)

    first = part * span
    end = tl.minimum(first + span, steps)
    at = tl.cast(first, tl.int64)
    if REVERSE:
        at = tl.cast(end, tl.int64) - 1
    x_at = x_ptr + b * x_b + at * x_t
    delta_at = delta_ptr + b * delta_b + at * delta_t
    W_at = W_ptr + b * W_b + at * W_t
    if z_ptr is not None:
        z_at = z_ptr + b * z_b + at * z_t
    h = tl.zeros([BN, BD], dtype=tl.float32)
    total = tl.zeros([BD], dtype=tl.float32)
    for _ in tl.range(first, end, loop_unroll_factor=UNROLL):
        x = tl.load(x_at + d, mask=in_d, other=0.0).to(tl.float32)
        raw = tl.load(delta_at + d, mask=in_d, other=0.0).to(tl.float32)
        if bias_ptr is not None:
            raw += bias
        delta = _step_size(raw, SOFTPLUS)
        W = tl.load(W_at + n, mask=in_n, other=0.0).to(tl.float32)
        total += delta
        if REVERSE:
            if z_ptr is not None:
                z = tl.load(z_at + d, mask=in_d, other=0.0).to(tl.float32)
                x *= z * _sigmoid(z)
                z_at -= z_t
            h = tl.exp2(delta[None, :] * exponent) * (h + x[None, :] * W[:, None])
            x_at -= x_t
            delta_at -= delta_t
            W_at -= W_t
        else:
            h = tl.exp2(delta[None, :] * exponent) * h + (delta * x)[None, :] * W[:, None]
            x_at += x_t
            delta_at += delta_t
            W_at += W_t
    where = b * tl.num_programs(1) + part
    tl.store(ends_ptr + where * (tl.cast(width, tl.int64) * N) + tile, h, mask=held)
    tl.store(totals_ptr + where * width + d, total, mask=in_d)


@triton.jit
def join_kernel(
    boundary_ptr, ends_ptr, totals_ptr, exponent_ptr, out_ptr, parts, width,
    N: tl.constexpr, BLOCK: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """Writes the state that enters each span: out_{s+1} = exp(A total_s) out_s + ends_s."""
    b = tl.program_id(1).to(tl.int64)
    size = tl.cast(width, tl.int64) * N
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    held = i < size
    exponent = tl.load(exponent_ptr + i, mask=held, other=0.0)
    h = tl.load(boundary_ptr + b * size + i, mask=held, other=0.0)
    for k in range(parts):
        where = b * parts + k
        if REVERSE:
            where = b * parts + parts - 1 - k
        tl.store(out_ptr + where * size + i, h, mask=held)
        total = tl.load(totals_ptr + where * width + i % width, mask=held, other=0.0)
        end = tl.load(ends_ptr + where * size + i, mask=held, other=0.0)
        h = tl.exp2(total * exponent) * h + end


@triton.jit(do_not_specialize_on_alignment=["width"])
def backward_kernel(
    u_ptr, delta_ptr, exponent_ptr, B_ptr, C_ptr, D_ptr, z_ptr, bias_ptr,
    edges_ptr, dy_ptr, carries_ptr, scratch_ptr,
    du_ptr, ddelta_ptr, dz_ptr, dA_ptr, dB_ptr, dC_ptr, dD_ptr, dbias_ptr, dh0_ptr,
    steps, width, n_blocks, span,
    u_b, u_t, delta_b, delta_t, z_b, z_t, B_b, B_t, C_b, C_t, dy_b, dy_t,
    N: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, SEGMENT: tl.constexpr,
    SOFTPLUS: tl.constexpr,
):  # fmt: skip
    """Writes all gradients; dA, dD, dbias by span, dB and dC by block of channels."""
    b = (tl.program_id(0) // n_blocks).to(tl.int64)
    block = tl.program_id(0) % n_blocks
    part = tl.program_id(1)
    parts = tl.num_programs(1)
    n = tl.arange(0, BN)
    d = block * BD + tl.arange(0, BD)
    in_n, in_d = n < N, d < width
    held = in_n[:, None] & in_d[None, :]
    tile = n[:, None].to(tl.int64) * width + d[None, :]
    size = tl.cast(width, tl.int64) * N
    where = b * parts + part
    exponent = tl.load(exponent_ptr + tile, mask=held, other=0.0)
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + d, mask=in_d, other=0.0).to(tl.float32)
        dbias = tl.zeros([BD], dtype=tl.float32)
    if D_ptr is not None:
        skip = tl.load(D_ptr + d, mask=in_d, other=0.0).to(tl.float32)
        dD = tl.zeros([BD], dtype=tl.float32)
    dA = tl.zeros([BN, BD], dtype=tl.float32)
    g = tl.load(carries_ptr + where * size + tile, mask=held, other=0.0)

    first = part * span
    end = tl.minimum(first + span, steps)
    u_base, delta_base = u_ptr + b * u_b, delta_ptr + b * delta_b
    B_base, C_base = B_ptr + b * B_b, C_ptr + b * C_b
    dy_base, out_base = dy_ptr + b * dy_b, b * steps
    kept = scratch_ptr + (tl.program_id(0).to(tl.int64) * parts + part) * (SEGMENT * BN * BD)
    inner = n[:, None] * BD + tl.arange(0, BD)[None, :]
    n_segments = tl.cdiv(steps, SEGMENT)
    last_segment = tl.cdiv(end, SEGMENT) - 1
    for back in range(last_segment + 1 - first // SEGMENT):
        segment = last_segment - back
        begin = segment * SEGMENT
        stop = tl.minimum(begin + SEGMENT, end)
        h = tl.load(edges_ptr + (b * n_segments + segment) * size + tile, mask=held, other=0.0)
        for t in range(begin, stop):
            tl.store(kept + (t - begin) * (BN * BD) + inner, h)
            at = tl.cast(t, tl.int64)
            u = tl.load(u_base + at * u_t + d, mask=in_d, other=0.0).to(tl.float32)
            raw = tl.load(delta_base + at * delta_t + d, mask=in_d, other=0.0).to(tl.float32)
            if bias_ptr is not None:
                raw += bias
            delta = _step_size(raw, SOFTPLUS)
            B = tl.load(B_base + at * B_t + n, mask=in_n, other=0.0).to(tl.float32)
            h = tl.exp2(delta[None, :] * exponent) * h + (delta * u)[None, :] * B[:, None]
        tl.debug_barrier()  # the states are read back by other threads
        for k in range(stop - begin):
            t = stop - 1 - k
            at = tl.cast(t, tl.int64)
            u = tl.load(u_base + at * u_t + d, mask=in_d, other=0.0).to(tl.float32)
            raw = tl.load(delta_base + at * delta_t + d, mask=in_d, other=0.0).to(tl.float32)
            if bias_ptr is not None:
                raw += bias
            delta = _step_size(raw, SOFTPLUS)
            B = tl.load(B_base + at * B_t + n, mask=in_n, other=0.0).to(tl.float32)
            C = tl.load(C_base + at * C_t + n, mask=in_n, other=0.0).to(tl.float32)
            dy = tl.load(dy_base + at * dy_t + d, mask=in_d, other=0.0).to(tl.float32)
            before = tl.load(kept + (t - begin) * (BN * BD) + inner)
            a = tl.exp2(delta[None, :] * exponent)
            written = delta * u
            h = a * before + written[None, :] * B[:, None]
            out = (out_base + at) * width + d
            if z_ptr is not None:
                z = tl.load(z_ptr + b * z_b + at * z_t + d, mask=in_d, other=0.0).to(tl.float32)
                y = tl.sum(h * C[:, None], axis=0)
                if D_ptr is not None:
                    y += skip * u
                gate = _sigmoid(z)
                dz = dy * y * gate * (1.0 + z * (1.0 - gate))
                tl.store(dz_ptr + out, dz.to(dz_ptr.dtype.element_ty), mask=in_d)
                dy *= z * gate
            g += dy[None, :] * C[:, None]
            wide = (block * (tl.num_programs(0) // n_blocks) + b) * steps + at
            tl.store(dC_ptr + wide * N + n, tl.sum(h * dy[None, :], axis=1), mask=in_n)
            tl.store(dB_ptr + wide * N + n, tl.sum(g * written[None, :], axis=1), mask=in_n)
            d_written = tl.sum(g * B[:, None], axis=0)
            g = g * a
            d_log = g * before  # of delta_t A
            dA += d_log * delta[None, :]
            d_delta = tl.sum(d_log * exponent, axis=0) * LN_2 + d_written * u
            if SOFTPLUS:
                d_delta *= tl.where(raw > 20.0, 1.0, _sigmoid(raw))
            du = d_written * delta
            if D_ptr is not None:
                du += dy * skip
                dD += dy * u
            if bias_ptr is not None:
                dbias += d_delta
            tl.store(du_ptr + out, du.to(du_ptr.dtype.element_ty), mask=in_d)
            tl.store(ddelta_ptr + out, d_delta.to(ddelta_ptr.dtype.element_ty), mask=in_d)
        tl.debug_barrier()  # before the next segment's states overwrite these
    tl.store(dA_ptr + where * size + tile, dA, mask=held)
    if D_ptr is not None:
        tl.store(dD_ptr + where * width + d, dD, mask=in_d)
    if bias_ptr is not None:
        tl.store(dbias_ptr + where * width + d, dbias, mask=in_d)
    if part == 0:
        tl.store(dh0_ptr + b * size + tile, g, mask=held)


@triton.jit
def step_kernel(
    u_ptr, delta_ptr, A_ptr, B_ptr, C_ptr, D_ptr, z_ptr, bias_ptr, state_ptr, y_ptr,
    width, u_b, delta_b, z_b, B_b, C_b,
    N: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, SOFTPLUS: tl.constexpr,
):  # fmt: skip
    """Advances the float32 state (B, D, N) by one step, in place, and writes y (B, D)."""
    b = tl.program_id(1).to(tl.int64)
    d = tl.program_id(0) * BD + tl.arange(0, BD)
    n = tl.arange(0, BN)
    in_n, in_d = n < N, d < width
    held = in_d[:, None] & in_n[None, :]
    tile = d[:, None].to(tl.int64) * N + n[None, :]
    states = state_ptr + b * (tl.cast(width, tl.int64) * N) + tile
    A = tl.load(A_ptr + tile, mask=held, other=0.0)
    h = tl.load(states, mask=held, other=0.0)
    u = tl.load(u_ptr + b * u_b + d, mask=in_d, other=0.0).to(tl.float32)
    raw = tl.load(delta_ptr + b * delta_b + d, mask=in_d, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        raw += tl.load(bias_ptr + d, mask=in_d, other=0.0).to(tl.float32)
    delta = _step_size(raw, SOFTPLUS)
    B = tl.load(B_ptr + b * B_b + n, mask=in_n, other=0.0).to(tl.float32)
    C = tl.load(C_ptr + b * C_b + n, mask=in_n, other=0.0).to(tl.float32)
    h = tl.exp2(delta[:, None] * A * LOG2_E) * h + (delta * u)[:, None] * B[None, :]
    y = tl.sum(h * C[None, :], axis=1)
    if D_ptr is not None:
        y += tl.load(D_ptr + d, mask=in_d, other=0.0).to(tl.float32) * u
    if z_ptr is not None:
        z = tl.load(z_ptr + b * z_b + d, mask=in_d, other=0.0).to(tl.float32)
        y *= z * _sigmoid(z)
    tl.store(states, h, mask=held)
    tl.store(y_ptr + b * width + d, y.to(y_ptr.dtype.element_ty), mask=in_d)


@triton.jit
def _compose(a_first, x_first, a_then, x_then):
    """Returns the map h -> a h + x that applies `first` and then `then`."""
    return a_first * a_then, a_then * x_first + x_then


@triton.jit
def associative_kernel(
    u_ptr, delta_ptr, exponent_ptr, B_ptr, C_ptr, starts_ptr, y_ptr, last_ptr,
    steps, width, n_blocks, u_b, u_t, delta_b, delta_t, B_b, B_t, C_b, C_t,
    N: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """Writes y and the last state by a parallel prefix over blocks of BT steps.

    A second algorithm for the same function, to compare: it needs several times the instructions
    of the loop over time. Delta is the step size itself; D, z and the bias are the caller's.
    """
    b = (tl.program_id(0) // n_blocks).to(tl.int64)
    block = tl.program_id(0) % n_blocks
    n = tl.arange(0, BN)
    d = block * BD + tl.arange(0, BD)
    k = tl.arange(0, BT)
    in_n, in_d = n < N, d < width
    held = in_d[:, None] & in_n[None, :]
    tile = n[None, :].to(tl.int64) * width + d[:, None]
    size = tl.cast(width, tl.int64) * N
    exponent = tl.load(exponent_ptr + tile, mask=held, other=0.0)  # (BD, BN)
    h = tl.load(starts_ptr + b * size + tile, mask=held, other=0.0)
    for begin in range(0, steps, BT):
        t = begin + k
        there = t < steps
        at = t[None, :].to(tl.int64)
        cells = in_d[:, None] & there[None, :]
        u = tl.load(u_ptr + b * u_b + at * u_t + d[:, None], mask=cells, other=0.0)
        delta = tl.load(delta_ptr + b * delta_b + at * delta_t + d[:, None], mask=cells, other=0.0)
        u, delta = u.to(tl.float32), delta.to(tl.float32)
        rows = in_n[:, None] & there[None, :]
        B = tl.load(B_ptr + b * B_b + at * B_t + n[:, None], mask=rows, other=0.0).to(tl.float32)
        C = tl.load(C_ptr + b * C_b + at * C_t + n[:, None], mask=rows, other=0.0).to(tl.float32)
        a = tl.exp2(delta[:, None, :] * exponent[:, :, None])  # (BD, BN, BT); 1 past the end
        x = (delta * u)[:, None, :] * B[None, :, :]
        a, x = tl.associative_scan((a, x), 2, _compose)
        states = a * h[:, :, None] + x
        y = tl.sum(states * C[None, :, :], axis=1)
        out = y_ptr + (b * steps + at) * width + d[:, None]
        tl.store(out, y.to(y_ptr.dtype.element_ty), mask=cells)
        h = tl.sum(tl.where(k[None, None, :] == BT - 1, states, 0.0), axis=2)
    tl.store(last_ptr + b * size + tile, h, mask=held)
