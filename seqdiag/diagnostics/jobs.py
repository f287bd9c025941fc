"""Independent jobs on one machine: in this process, or in a pool of processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

Job = TypeVar("Job")
Done = TypeVar("Done")

_TRIES = 2


def run_jobs(
    function: Callable[[Job], Done],
    jobs: Sequence[Job],
    workers: int,
    failed: Callable[[Job, str], Done],
) -> Iterator[Done]:
    """Yields what `function` makes of each job, in the order of the jobs.

    More than one worker is a pool of fresh processes; function, jobs and results must pickle. A
    worker that dies takes the pool with it: the jobs that had no result start over in a new one,
    and a job that dies twice becomes `failed(job, reason)`, as does one that raises.
    """
    if workers == 1 or len(jobs) == 1:
        for job in jobs:
            yield _guarded(function, job, failed)
        return
    tries = dict.fromkeys(range(len(jobs)), 0)
    first = 0
    while first < len(jobs):
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            try:
                futures = {i: pool.submit(function, jobs[i]) for i in range(first, len(jobs))}
                while first < len(jobs):
                    yield _result(futures[first], jobs[first], failed)
                    first += 1
            except BrokenProcessPool:
                tries[first] += 1
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
        if first < len(jobs) and tries[first] == _TRIES:
            yield failed(jobs[first], f"its worker process died {_TRIES} times")
            first += 1


def _guarded(function: Callable[[Job], Done], job: Job, failed: Callable[[Job, str], Done]) -> Done:
    try:
        return function(job)
    except (RuntimeError, ValueError, MemoryError) as error:
        return failed(job, " ".join(str(error).split()))


def _result(future: Future[Done], job: Job, failed: Callable[[Job, str], Done]) -> Done:
    try:
        return future.result()
    except BrokenProcessPool:
        raise
    except (RuntimeError, ValueError, MemoryError) as error:
        return failed(job, " ".join(str(error).split()))
