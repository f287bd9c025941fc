"""Independent jobs on a Dask cluster."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from seqdiag.diagnostics.jobs import guarded
from seqdiag.errors import UnavailableError, UsageError

Job = TypeVar("Job")
Done = TypeVar("Done")

_PATIENCE = 10.0
_ALONE = threading.Lock()


def run_on_cluster(
    function: Callable[[Job], Done],
    jobs: Sequence[Job],
    address: str,
    failed: Callable[[Job, str], Done],
) -> Iterator[tuple[int, Done]]:
    """Yields the index of each job and what `function` makes of it, as the workers finish.

    The workers import seqdiag; each runs one job at a time. Jobs of a worker that dies go to
    another; one that takes several workers with it becomes `failed(job, reason)`. Raises
    `UnavailableError` without the package, a scheduler at `address`, or a worker.
    """
    if not jobs:
        return
    with _client(address) as client:
        from distributed import as_completed

        work = guarded(function, failed)
        futures = {
            client.submit(_alone, work, job, pure=False): index for index, job in enumerate(jobs)
        }
        for future in as_completed(futures):
            index = futures[future]
            if future.status == "cancelled":
                raise UnavailableError(
                    f"--scheduler: {address} is gone",
                    hint="finished rows are in the file of --resume",
                )
            if future.status == "error":
                reason = " ".join(str(future.exception()).split())
                yield index, failed(jobs[index], reason[:200])
            else:
                yield index, future.result()


def _alone(work: Callable[[Job], Done], job: Job) -> Done:
    """Runs a job while no other runs in this process: jobs seed its global random numbers."""
    with _ALONE:
        return work(job)


def _client(address: str) -> Any:
    try:
        from distributed import Client
    except ImportError:
        raise UnavailableError(
            "--scheduler: distributed is not installed", hint="pip install 'seqdiag[cluster]'"
        ) from None
    for name in ("distributed", "tornado"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        client = Client(address, timeout=_PATIENCE)
    except (OSError, TimeoutError) as error:
        reason = " ".join(str(error).split())
        raise UnavailableError(f"--scheduler: no scheduler at {address}: {reason:.200}") from None
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"--scheduler: {address!r} is not an address such as tcp://host:8786: {error}"
        ) from None
    try:
        client.wait_for_workers(1, timeout=_PATIENCE)
    except TimeoutError:
        client.close()
        raise UnavailableError(
            f"--scheduler: {address} has no worker", hint=f"dask worker {address} --nthreads 1"
        ) from None
    return client
