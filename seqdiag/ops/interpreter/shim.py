"""Mends Triton's interpreter: bfloat16 as a GPU computes it, scans walked along their axis.

A bfloat16 value is held as the float32 it equals. Every result is rounded to nearest even when its
handle is made, so any operation on such handles is right without being wrapped.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

installed = False
_np_dtype = interpreter._get_np_dtype
# Handles check their size from triton 3.6 on.
_fits = getattr(interpreter, "_validate_np_data_size", None)
_make_handle = interpreter.TensorHandle.__init__


def install() -> None:
    """Replaces the faulty parts, once for the process."""
    global installed
    if installed:
        return
    installed = True
    interpreter._get_np_dtype = _get_np_dtype
    if _fits is not None:
        interpreter._validate_np_data_size = _holds
    interpreter.TensorHandle.__init__ = _make_rounded_handle
    builder = interpreter.InterpreterBuilder
    builder.get_bf16 = _get_bf16
    builder.create_masked_load = _masked_load
    builder.create_masked_store = _masked_store
    builder.create_bitcast = _bitcast
    builder.create_fabs = _fabs
    builder.create_fp_to_fp = _with_bf16(builder.create_fp_to_fp)
    builder.cast_impl = _with_bf16(builder.cast_impl)
    interpreter.ScanOps.generic_scan = _scan
    interpreter.GridExecutor.__call__ = _quiet(interpreter.GridExecutor.__call__)


def _quiet(run: Any) -> Any:
    """Returns `run` without numpy's warnings: a GPU takes the logarithm of 0 in silence."""

    def silently(*args: Any, **kwargs: Any) -> Any:
        with np.errstate(all="ignore"):
            return run(*args, **kwargs)

    return silently


def _is_bf16(dtype: Any) -> bool:
    return not isinstance(dtype, tl.pointer_type) and dtype.scalar == tl.bfloat16


def _get_np_dtype(dtype: Any) -> Any:
    return np.dtype(np.float32) if _is_bf16(dtype) else _np_dtype(dtype)


def _holds(data: Any, dtype: Any) -> bool:
    assert _fits is not None
    return _is_bf16(dtype) or bool(_fits(data, dtype))


def _make_rounded_handle(handle: Any, *args: Any, **kwargs: Any) -> None:
    _make_handle(handle, *args, **kwargs)
    if _is_bf16(handle.dtype) and np.issubdtype(handle.data.dtype, np.floating):
        handle.data = from_bits(to_bits(handle.data))


def to_bits(values: Any) -> Any:
    """Returns float values as bfloat16 bit patterns, rounded to nearest even; NaN stays NaN."""
    values = np.asarray(values, dtype=np.float32)
    bits = np.ascontiguousarray(values).view(np.uint32).reshape(values.shape)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype(np.uint16)


def from_bits(bits: Any) -> Any:
    """Returns bfloat16 bit patterns as the float32 values they stand for."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _get_bf16(builder: Any, value: float) -> Any:
    return interpreter.TensorHandle(np.array([value], dtype=np.float32), tl.bfloat16)


def _masked_load(
    builder: Any, ptrs: Any, mask: Any, other: Any, cache: Any, eviction: Any, volatile: Any
) -> Any:
    dtype = ptrs.get_element_ty()
    bf16 = _is_bf16(dtype)
    in_memory = np.dtype(np.uint16) if bf16 else _np_dtype(dtype)
    if other is None:
        fill = np.zeros(ptrs.data.shape, dtype=in_memory)
    else:
        fill = to_bits(other.data) if bf16 else other.data
    found = interpreter._interpreter.load(ptrs.data, mask.data, fill, in_memory)
    return interpreter.TensorHandle(from_bits(found) if bf16 else found, dtype)


def _masked_store(builder: Any, ptrs: Any, value: Any, mask: Any, cache: Any, eviction: Any) -> Any:
    data = to_bits(value.data) if _is_bf16(ptrs.get_element_ty()) else value.data
    return interpreter._interpreter.store(ptrs.data, data, mask.data)


def _bitcast(builder: Any, src: Any, dst_type: Any) -> Any:
    data = to_bits(src.data) if _is_bf16(src.dtype) else src.data
    if _is_bf16(dst_type):
        return interpreter.TensorHandle(from_bits(data.view(np.uint16)), dst_type.scalar)
    return interpreter.TensorHandle(data.view(_np_dtype(dst_type)), dst_type.scalar)


def _fabs(builder: Any, arg: Any) -> Any:
    return interpreter.TensorHandle(np.abs(arg.data), arg.dtype.scalar)


def _with_bf16(stock: Any) -> Any:
    """Returns a cast that converts from and to bfloat16 by value."""

    def cast(builder: Any, src: Any, dst_type: Any, *more: Any) -> Any:
        if _is_bf16(src.dtype) or _is_bf16(dst_type):
            data = src.data.astype(_get_np_dtype(dst_type))
            return interpreter.TensorHandle(data, dst_type.scalar)
        return stock(builder, src, dst_type, *more)

    return cast


def _scan(ops: Any, inputs: Any) -> list[Any]:
    """Returns an inclusive scan: one call of the combine function a step, on whole slices."""
    axis = ops.axis
    data = [x.handle.data for x in inputs]
    outputs = [np.empty(x.shape, x.dtype) for x in data]
    before: tuple[Any, ...] = ()
    for step in range(data[0].shape[axis]):
        at = tuple(
            ops.to_tensor(np.take(x, [step], axis=axis), i.dtype)
            for x, i in zip(data, inputs, strict=True)
        )
        if before:
            combined = ops.combine_fn.fn(*before, *at)
            at = combined if isinstance(combined, tuple) else (combined,)
        for output, value in zip(outputs, at, strict=True):
            index = [slice(None)] * output.ndim
            index[axis] = slice(step, step + 1)
            output[tuple(index)] = value.handle.data
        before = at
    return [ops.to_tensor(x, i.dtype) for x, i in zip(outputs, inputs, strict=True)]
