"""Where attempts run."""

from __future__ import annotations

from collections.abc import Callable

from workers.executor import Executor
from workers.options import WorkerOptions
from workers.pools.base import Pool


def make_pool(options: WorkerOptions, executor: Executor, on_outcome: Callable[[], None]) -> Pool:
    """Return the pool that the options name; only its own module is imported."""
    if options.pool == "async":
        from workers.pools.asynchronous import AsyncPool  # noqa: PLC0415

        return AsyncPool(options.concurrency, executor, on_outcome)
    if options.pool == "processes":
        from workers.pools.processes import ProcessPool  # noqa: PLC0415

        return ProcessPool(options.concurrency, executor, on_outcome, options.limits)
    from workers.pools.threads import ThreadPool  # noqa: PLC0415

    return ThreadPool(options.concurrency, executor, on_outcome)
