"""Independent jobs on one machine: in this process, or in a pool of processes."""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Generic, TypeVar

Job = TypeVar("Job")
Done = TypeVar("Done")


def run_jobs(
    function: Callable[[Job], Done],
    jobs: Sequence[Job],
    workers: int,
    failed: Callable[[Job, str], Done],
) -> Iterator[tuple[int, Done]]:
    """Yields the index of each job and what `function` makes of it, as they finish.

    More than one worker is a pool of fresh processes; function, jobs and results must pickle. A
    job that raises becomes `failed(job, reason)`. A worker that dies takes the pool with it: the
    jobs without a result start over in a new pool, and if that dies too, each in one of its own,
    where a death can only be the job's.
    """
    work = guarded(function, failed)
    if workers == 1:
        for index, job in enumerate(jobs):
            yield index, work(job)
        return
    left = dict(enumerate(jobs))
    for _ in range(2):
        for index, done in _pooled(work, left, workers):
            del left[index]
            yield index, done
    for index, job in left.items():
        alone = list(_pooled(work, {index: job}, 1))
        yield alone[0] if alone else (index, failed(job, "its worker process died"))


def guarded(
    function: Callable[[Job], Done], failed: Callable[[Job, str], Done]
) -> Callable[[Job], Done]:
    """Returns a function whose errors become `failed(job, reason)`; it pickles if its parts do."""
    return _Guarded(function, failed)


class _Guarded(Generic[Job, Done]):
    def __init__(self, function: Callable[[Job], Done], failed: Callable[[Job, str], Done]) -> None:
        self.function, self.failed = function, failed

    def __call__(self, job: Job) -> Done:
        try:
            return self.function(job)
        except (RuntimeError, ValueError, ArithmeticError, MemoryError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            return self.failed(job, reason)


def _pooled(
    function: Callable[[Job], Done], jobs: Mapping[int, Job], workers: int
) -> Iterator[tuple[int, Done]]:
    """Yields results as they finish, until all are there or a worker dies."""
    if not jobs:
        return
    jobs = dict(jobs)
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(workers, len(jobs)), mp_context=context)
    try:
        with _blank_main():
            futures = {pool.submit(function, job): index for index, job in jobs.items()}
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BrokenProcessPool:
        return
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


@contextlib.contextmanager
def _blank_main() -> Iterator[None]:
    """Hides the main script from the processes started inside, which would run it again.

    Jobs are functions of importable modules; a script without a guard, such as some console
    scripts and notebooks' runners, would start the whole command once more in each worker.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def in_order(results: Iterator[tuple[int, Done]]) -> Iterator[Done]:
    """Yields results by index, each as soon as all before it are there."""
    waiting: dict[int, Done] = {}
    following = 0
    for index, done in results:
        waiting[index] = done
        while following in waiting:
            yield waiting.pop(following)
            following += 1
