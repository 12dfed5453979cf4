"""What the index says of queues, for pages of single ones; see ``live`` for all of them at once."""

from __future__ import annotations

from collections.abc import Iterable

from queue_app.exceptions import IndexUnavailable
from queue_app.index import get_index
from queue_app.models import Queue
from queue_app.services.read.stats import QueueSummary, queue_summary


def oldest_seconds(summary: QueueSummary | None) -> float | None:
    """Return the age of the task that waits longest in a queue."""
    if summary is None:
        return None
    ages = [band.oldest_seconds for band in summary.bands.values() if band.oldest_seconds is not None]
    return max(ages, default=None)


def summaries(queues: Iterable[Queue]) -> tuple[dict[str, QueueSummary], str]:
    """Return the summary of each queue by name, and why there is none; the first failure ends the asking.

    A server that does not answer costs one time-out so, not one for each queue.
    """
    found: dict[str, QueueSummary] = {}
    try:
        for queue in queues:
            found[queue.name] = queue_summary(queue)
    except IndexUnavailable as error:
        return {}, str(error)
    return found, ""


def index_state() -> str:
    """Return ready, rebuilding, missing or unreachable."""
    try:
        return get_index().generation().state
    except IndexUnavailable:
        return "unreachable"
