"""Metrics of adaptive limits."""

from collections.abc import Mapping

from queue_app import conf
from queue_app.adaptive.sql import adaptive


def metrics() -> dict[str, Mapping[tuple[str, ...], float]]:
    """Return the value of each limit, and its run times as multiples of their baseline."""
    limits = {(found.scope, found.name): found for found in adaptive()[: conf.get().metrics.max_queues]}
    return {
        "limit_value": {labels: found.value for labels, found in limits.items()},
        "limit_run_time_ratio": {labels: found.ratio for labels, found in limits.items() if found.ratio is not None},
    }
