"""Write metrics in Prometheus' text format.

``prometheus_client`` would take five times as long, which is most of the duration of a scrape.
"""

import os
from collections.abc import Iterable, Iterator
from functools import lru_cache

from queue_app.diagnose.health import collect
from queue_app.metrics.exposition import BOUNDS, Family, HistogramSample, families


def of_queue() -> bytes:
    """Return the metrics of the queue, the same from every process."""
    return render(families(collect()))


def render(metrics: Iterable[Family]) -> bytes:
    """Return metrics as text."""
    return "".join(line for family in metrics for line in _lines(family)).encode()


def _lines(family: Family) -> Iterator[str]:
    name, names = family.metric.name, family.metric.labels
    yield f"# HELP {name} {family.metric.help}\n# TYPE {name} {family.metric.kind}\n"
    for labels, value in family.samples.items():
        pairs = _label_pairs(names, labels)
        if isinstance(value, HistogramSample):
            before = pairs + ("," if pairs else "")
            for bound, count in zip(BOUNDS, value.buckets, strict=True):
                yield f'{name}_bucket{{{before}le="{bound}"}} {count}\n'
            yield f"{name}_sum{{{pairs}}} {value.total}\n{name}_count{{{pairs}}} {value.buckets[-1]}\n"
        else:
            yield f"{name}{{{pairs}}} {value}\n" if pairs else f"{name} {value}\n"


@lru_cache(maxsize=5000)
def _label_pairs(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    return ",".join(f'{name}="{_escape(value)}"' for name, value in zip(names, values, strict=True))


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def of_process() -> bytes:
    """Return what this web process counts: requests, queries, cache.

    With ``PROMETHEUS_MULTIPROC_DIR``, which several gunicorn workers need, the sum over all of them.
    """
    from prometheus_client import REGISTRY, CollectorRegistry, generate_latest  # noqa: PLC0415 - an extra
    from prometheus_client.multiprocess import MultiProcessCollector  # noqa: PLC0415

    registry = REGISTRY
    if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry)
