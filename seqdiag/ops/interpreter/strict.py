"""A strict interpreter: what a GPU would punish, or hide, becomes an error or a wrong answer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from triton.runtime import interpreter

from seqdiag.ops.interpreter import shim

_NOBODY = -1


class KernelError(RuntimeError):
    """A kernel read or wrote where it must not."""


class _Memory:
    """The tensors that a launch may touch, and which program wrote each of their bytes."""

    def __init__(self) -> None:
        self.starts = np.empty(0, dtype=np.uint64)
        self.ends = np.empty(0, dtype=np.uint64)
        self.writers: list[Any] = []
        self.program = 0

    def enter(self, tensors: list[Any]) -> None:
        spans = sorted({_span(tensor) for tensor in tensors if tensor.numel()})
        self.starts = np.array([start for start, _ in spans], dtype=np.uint64)
        self.ends = np.array([end for _, end in spans], dtype=np.uint64)
        self.writers = [np.full(end - start, _NOBODY, dtype=np.int32) for start, end in spans]

    def check(self, what: str, ptrs: Any, mask: Any, itemsize: int) -> None:
        """Raises `KernelError` for an unmasked address outside every tensor."""
        used = ptrs.data[np.broadcast_to(mask.data, ptrs.data.shape)].ravel()
        if used.size == 0:
            return
        inside = np.zeros(used.shape, dtype=bool)
        for start, end in zip(self.starts, self.ends, strict=True):
            inside |= (used >= start) & (used + np.uint64(itemsize) <= end)
        if not inside.all():
            first = int(used[~inside][0])
            nearest = min(
                (first - int(end) for end in self.ends if first >= int(end)), default=None
            )
            where = "before every tensor" if nearest is None else f"{nearest} bytes past a tensor"
            raise KernelError(
                f"program {self.program} {what}s {(~inside).sum()} values outside its arguments, "
                f"the first {where}"
            )

    def claim(self, ptrs: Any, mask: Any) -> None:
        """Raises `KernelError` for an address that another program has written."""
        used = ptrs.data[np.broadcast_to(mask.data, ptrs.data.shape)].ravel()
        for start, end, writers in zip(self.starts, self.ends, self.writers, strict=True):
            at = (used[(used >= start) & (used < end)] - start).astype(np.int64)
            others = writers[at]
            if ((others != _NOBODY) & (others != self.program)).any():
                raise KernelError(
                    f"program {self.program} writes what program {others.max()} wrote"
                )
            writers[at] = self.program


def _span(tensor: Any) -> tuple[int, int]:
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (reach + 1) * tensor.element_size()


@contextlib.contextmanager
def strict(seed: int = 0) -> Iterator[None]:
    """Within it, interpreted kernels are held to the rules of a GPU.

    Raises `KernelError` for an unmasked address outside the argument tensors and for two programs
    that write one address. Masked lanes loaded without `other` are NaN (the largest value of an
    integer). Programs run in an order drawn from `seed`.
    """
    memory = _Memory()
    patches = _patches(memory, np.random.default_rng(seed))
    kept = [(owner, name, getattr(owner, name)) for owner, name, _ in patches]
    for owner, name, replacement in patches:
        setattr(owner, name, replacement)
    try:
        yield
    finally:
        for owner, name, original in kept:
            setattr(owner, name, original)


def _patches(memory: _Memory, random: Any) -> list[tuple[Any, str, Any]]:
    builder, executor = interpreter.InterpreterBuilder, interpreter.GridExecutor
    arguments, grid_dim, grid_idx = (
        executor._init_args_hst,
        builder.set_grid_dim,
        builder.set_grid_idx,
    )
    load, store = builder.create_masked_load, builder.create_masked_store
    order: dict[int, int] = {}

    def init_args(self: Any, args: Any, kwargs: Any) -> Any:
        on_host, named = arguments(self, args, kwargs)
        every = [*on_host, *named.values()]
        memory.enter([x for x in every if hasattr(x, "data_ptr")])
        return on_host, named

    def set_grid_dim(self: Any, *dims: int) -> None:
        grid_dim(self, *dims)
        order.clear()
        order.update(enumerate(random.permutation(int(np.prod(dims))).tolist()))

    def set_grid_idx(self: Any, x: int, y: int, z: int) -> None:
        _, ny, nz = self.grid_dim
        memory.program = order[(x * ny + y) * nz + z]
        rest, z = divmod(memory.program, nz)
        grid_idx(self, *divmod(rest, ny), z)

    def masked_load(self: Any, ptrs: Any, mask: Any, other: Any, *more: Any) -> Any:
        dtype = ptrs.get_element_ty()
        memory.check("load", ptrs, mask, max(1, dtype.primitive_bitwidth // 8))
        if other is None and not mask.data.all():
            other = interpreter.TensorHandle(_poison(ptrs.data.shape, dtype), dtype)
        return load(self, ptrs, mask, other, *more)

    def masked_store(self: Any, ptrs: Any, value: Any, mask: Any, *more: Any) -> Any:
        memory.check("store", ptrs, mask, max(1, ptrs.get_element_ty().primitive_bitwidth // 8))
        memory.claim(ptrs, mask)
        return store(self, ptrs, value, mask, *more)

    return [
        (executor, "_init_args_hst", init_args),
        (builder, "set_grid_dim", set_grid_dim),
        (builder, "set_grid_idx", set_grid_idx),
        (builder, "create_masked_load", masked_load),
        (builder, "create_masked_store", masked_store),
    ]


def _poison(shape: tuple[int, ...], dtype: Any) -> Any:
    numbers = shim._get_np_dtype(dtype)
    if np.issubdtype(numbers, np.floating):
        return np.full(shape, np.nan, dtype=numbers)
    return np.full(shape, True if numbers == np.bool_ else np.iinfo(numbers).max, dtype=numbers)
