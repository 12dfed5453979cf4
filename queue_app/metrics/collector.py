"""Metrics for a registry of ``prometheus_client``, for projects that serve their own ``/metrics``."""

from collections.abc import Iterable, Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from queue_app.diagnose.health import collect
from queue_app.metrics.exposition import BOUNDS, Family, HistogramSample, families
from queue_app.metrics.names import COUNTER, HISTOGRAM


class QueueCollector:
    """Reads the servers at each scrape and keeps no state, so every web process returns the same values."""

    def collect(self) -> Iterator[Metric]:
        return (_converted(family) for family in families(collect()))

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registration queries no server."""
        return ()


def _converted(family: Family) -> Metric:
    name, kind, labels, meaning = family.metric
    if kind == HISTOGRAM:
        histogram = HistogramMetricFamily(name, meaning, labels=labels)
        for values, times in family.samples.items():
            if isinstance(times, HistogramSample):
                histogram.add_metric(values, list(zip(BOUNDS, times.buckets, strict=True)), times.total)
        return histogram
    plain = CounterMetricFamily if kind == COUNTER else GaugeMetricFamily
    converted = plain(name, meaning, labels=labels)
    for values, value in family.samples.items():
        if not isinstance(value, HistogramSample):
            converted.add_metric(values, value)
    return converted
