"""Where attempts run."""

from collections.abc import Callable

from queue_app.workers.context import AttemptStore
from queue_app.workers.executor import Executor
from queue_app.workers.options import WorkerOptions
from queue_app.workers.pools.base import Pool


def make_pool(options: WorkerOptions, executor: Executor, on_outcome: Callable[[], None], store: AttemptStore) -> Pool:
    """Return the pool that the options name; import only its module."""
    if options.pool == "async":
        from queue_app.workers.pools.asynchronous import AsyncPool  # noqa: PLC0415

        return AsyncPool(options.concurrency, executor, on_outcome)
    if options.pool == "processes":
        from queue_app.workers.pools.processes import ProcessPool  # noqa: PLC0415

        return ProcessPool(options.concurrency, executor, on_outcome, options.limits, store)
    from queue_app.workers.pools.threads import ThreadPool  # noqa: PLC0415

    return ThreadPool(options.concurrency, executor, on_outcome)
