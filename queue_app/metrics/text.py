"""The metrics as the text that a scraper reads."""

from __future__ import annotations

import os

from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from queue_app.metrics.exposition import QueueCollector

_registry = CollectorRegistry(auto_describe=False)
_registry.register(QueueCollector())


def of_queue() -> bytes:
    """Return the metrics of the queue, the same from every process."""
    return generate_latest(_registry)


def of_process() -> bytes:
    """Return what this web process counted itself: requests, queries, cache; of all its siblings where they share.

    They do where ``PROMETHEUS_MULTIPROC_DIR`` names a folder, as several gunicorn workers need it.
    """
    registry = REGISTRY
    if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry)
