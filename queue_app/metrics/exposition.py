"""Turn the values read from the servers into metrics, and these into Prometheus' text format.

``prometheus_client`` would take five times as long to write it, which is most of the duration of a scrape.

Labels are bounded: bands, states and reasons are fixed sets, and queues beyond
``METRICS.MAX_QUEUES`` share the label ``other``, and so do failing schedules beyond that number.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final, NamedTuple

from queue_app import conf
from queue_app.core.counters import ADAPTED, BUCKETS, LATE, RUN, SUM, TICK, TICKS, WAIT, WHOLE
from queue_app.core.events import EventName
from queue_app.core.priorities import PROMOTED, Band
from queue_app.core.reasons import KINDS, Source
from queue_app.core.states import Status
from queue_app.diagnose.health import Metrics, collect
from queue_app.diagnose.system import way_name
from queue_app.index import IndexStats
from queue_app.metrics.names import BY_NAME, Metric
from queue_app.models.worker import WorkerStatus
from queue_app.services.way import is_detour
from queue_app.sql.snapshot import Way
from queue_app.sql.stats import PERCENTILES, RowStats

OTHER: Final = "other"
FAILURES: Final = {EventName.FAILED.value: "error", EventName.TIMED_OUT.value: "timeout"}
#: Counters of all reasons start at 0: Prometheus does not see the first rise of a counter that was absent.
RETRY_REASONS: Final = ("error", "timeout", "worker_died")
FAILURE_REASONS: Final = ("error", "timeout")
CRASH_LOOP: Final = "crash_loop"
DEATH_REASONS: Final = ("retries_exhausted", "timeout", CRASH_LOOP)
REPAIRS: Final = (
    "missing",
    "leases_ended",
    "leases_restored",
    "entries_ended",
    "workers_retired",
    "limits",
    "unreadable",
    "forgotten_tasks",
)
#: Events that do not change the state of the task.
NO_CHANGE: Final = {EventName.PROMOTED.value, EventName.REJECTED.value}


#: Upper bounds of the buckets, as labels.
BOUNDS: Final = (*(str(bound) for bound in BUCKETS), "+Inf")

type Labels = tuple[str, ...]
#: The parts of each counter's name after its kind, by kind: event -> [event, queue, band, status, reason],
#: wait or run -> [queue, band, status, bucket].
type _Parsed = dict[str, list[tuple[list[str], int]]]


class HistogramSample(NamedTuple):
    """A histogram for one set of labels: the number of values up to each of ``BOUNDS``, and their sum in seconds."""

    buckets: list[int]
    total: float


class Family(NamedTuple):
    """A metric, and its value for each set of labels."""

    metric: Metric
    samples: Mapping[Labels, float | HistogramSample]


def families(metrics: Metrics) -> Iterator[Family]:
    """Yield all metrics, except of a server that does not answer."""
    index, rows = metrics.index, metrics.rows
    works = {"postgresql": rows is not None and not rows.is_read_only}
    if conf.get().index == conf.REDIS:
        answers = index is not None if metrics.redis_answers is None else metrics.redis_answers
        works = {"redis": answers} | works
    yield _family("up", {(name,): float(up) for name, up in works.items()})
    labels: dict[str, str] = {}
    if index is not None:
        counts = _parse(index.counts)
        labels = _queue_labels(index, counts)
        yield from _of_index(index, counts, labels)
    if rows is not None:
        yield _family("scheduler_leading", {(): float(rows.leader_lapses is not None)})
        if metrics.leader_age is not None:
            yield _family("scheduler_leader_age_seconds", {(): metrics.leader_age})
        yield from _of_rows(rows)
        yield from _of_way(rows.way)
        stalled = {(kind,): float(rows.stalled.get(kind, 0)) for kind in _stalls()}
        if rows.leader_lapses is not None:
            stalled["no_watchdog",] = float(not rows.is_watched)
        yield _family("stalled", stalled)
    if index is not None and rows is not None:
        active = sum(queue.active for queue in index.queues)
        yield _family("task_state_total", _states(index, rows))
        yield _family("worker_capacity_used_ratio", {(): active / rows.slots if rows.slots else 0.0})
        yield _family("index_ready", {(): float(bool(metrics.ready))})
        paused = {(name,): float(value) for name, value in rows.paused.items() if labels.get(name) == name}
        yield _family("queue_paused", paused)


def _of_way(way: Way) -> Iterator[Family]:
    yield _family("index_way", {(name,): float(name == way_name(way)) for name in (conf.REDIS, conf.ROWS)})
    since = way.since if is_detour(way) else None
    seconds = 0.0 if since is None else max(0.0, (datetime.now(UTC) - since).total_seconds())
    yield _family("index_away_seconds", {(): seconds})


def _stalls() -> list[str]:
    """Return the kinds of stalls."""
    return [kind.code for kind in KINDS.values() if kind.source is Source.WATCHDOG]


def _states(index: IndexStats, rows: RowStats) -> dict[Labels, float]:
    """Return the stored tasks by state; the index knows exactly how many are queued."""
    exact = {Status.QUEUED.value: sum(queue.total for queue in index.queues)} if index.state == "ready" else {}
    return {(status.value,): (rows.states | exact).get(status.value, 0) for status in Status}


def _parse(counts: Mapping[str, int]) -> _Parsed:
    """Parse the names of counters, once for all metrics: there are thousands."""
    parsed: _Parsed = {"event": [], WAIT: [], RUN: [], WHOLE: []}
    for field, count in counts.items():
        kind, *parts = field.split(":", 5)
        if kind in parsed:
            parsed[kind].append((parts, count))
    return parsed


def _queue_labels(index: IndexStats, parsed: _Parsed) -> dict[str, str]:
    """Return the label of each queue: the name for the queues with most tasks, ``other`` for the rest."""
    weight = {queue.queue: queue.total + queue.active for queue in index.queues}
    counted = {parts[1] for parts, _ in parsed["event"]}
    counted.update(parts[0] for kind in (WAIT, RUN, WHOLE) for parts, _ in parsed[kind])
    weight |= dict.fromkeys(counted - weight.keys(), 0)
    first = set(sorted(weight, key=lambda name: (-weight[name], name))[: conf.get().metrics.max_queues])
    return {name: name if name in first else OTHER for name in weight}


def _of_index(index: IndexStats, parsed: _Parsed, queue_labels: dict[str, str]) -> Iterator[Family]:
    now = datetime.now(UTC)
    depth: Counter[Labels] = Counter()
    ages: dict[Labels, float] = {}
    active: Counter[Labels] = Counter()
    for queue in index.queues:
        name = queue_labels[queue.queue]
        active[name,] += queue.active
        for band, count in queue.counts.items():
            labels = (name, band.label)
            depth[labels] += count
            oldest = queue.oldest.get(band)
            age = 0.0 if oldest is None else max(0.0, (now - oldest).total_seconds())
            ages[labels] = max(age, ages.get(labels, 0.0))
    yield _family("queue_depth", depth)
    yield _family("queue_oldest_age_seconds", ages)
    yield _family("queue_active", active)
    counts = index.counts
    yield from _of_events(parsed, counts, queue_labels)
    yield from _of_times(parsed, queue_labels)
    yield _family(
        "tasks_promoted_total",
        {(band.label, Band(band - 1).label): counts.get(f"promoted:{band.label}:{Band(band - 1).label}", 0)
         for band in PROMOTED},
    )  # fmt: skip
    yield _family("worker_heartbeat_failures_total", {(): counts.get("worker:dead", 0)})
    yield _family("stalls_total", {(kind,): counts.get(f"stall:{kind}", 0) for kind in _stalls()})
    yield _family("schedule_ticks_total", {(outcome,): counts.get(f"{TICK}:{outcome}", 0) for outcome in TICKS})
    buckets = [counts.get(f"{LATE}:{place}", 0) for place in range(len(BOUNDS))]
    late = HistogramSample(list(accumulate(buckets)), counts.get(f"{LATE}:{SUM}", 0) / 1_000_000)
    yield _family("schedule_lateness_seconds", {(): late})
    yield _family("limits_adapted_total", {(): counts.get(ADAPTED, 0)})
    yield _family("index_repairs_total", {(kind,): counts.get(f"repair:{kind}", 0) for kind in REPAIRS})


def _of_events(parsed: _Parsed, counts: Mapping[str, int], queue_labels: dict[str, str]) -> Iterator[Family]:
    names = sorted(set(queue_labels.values()))
    zeros: dict[Labels, int] = {(name, band.label): 0 for name in names for band in Band}
    enqueued, scheduled, started = Counter(zeros), Counter(zeros), Counter(zeros)
    states = Counter({(status.value,): 0 for status in Status})
    failed, dead = (Counter({(reason,): 0 for reason in reasons}) for reasons in (FAILURE_REASONS, DEATH_REASONS))
    retries = Counter({(band.label, reason): 0 for band in Band for reason in RETRY_REASONS})
    for (event, queue, band, status, reason), count in parsed["event"]:
        labels = (queue_labels[queue], band)
        if event not in NO_CHANGE and (event != EventName.DEAD_LETTERED or reason == CRASH_LOOP):
            states[status,] += count  # another dead letter was counted with the event of its last failure
        if status == Status.SCHEDULED:
            scheduled[labels] += count
        if event == EventName.ACCEPTED:
            enqueued[labels] += count
        elif event == EventName.STARTED:
            started[labels] += count
        elif event == EventName.DEAD_LETTERED:
            dead[reason if reason in DEATH_REASONS else OTHER,] += count
        elif event in FAILURES:
            failed[FAILURES[event],] += count
            if status == Status.SCHEDULED:
                retries[band, FAILURES[event]] += count
    states[Status.QUEUED.value,] += counts.get("due", 0)
    for one in Band:
        retries[one.label, "worker_died"] += counts.get(f"retry:worker_died:{one.label}", 0)
    yield _family("queue_enqueue_total", enqueued)
    yield _family("tasks_delayed_total", scheduled)
    yield _family("queue_schedule_total", started)
    yield _family("task_transitions_total", states)
    yield _family("task_retries_total", retries)
    yield _family("tasks_failed_total", failed)
    yield _family("tasks_dlq_total", dead)


_HISTOGRAMS: Final = (
    (WAIT, "queue_wait_time"), (RUN, "attempt_duration_seconds"), (WHOLE, "task_duration_seconds")
)  # fmt: skip


def _of_times(parsed: _Parsed, queue_labels: dict[str, str]) -> Iterator[Family]:
    for kind, name in _HISTOGRAMS:
        found: dict[Labels, list[int]] = defaultdict(lambda: [0] * (len(BOUNDS) + 1))  # the buckets, and the sum in µs
        for (queue, band, status, place), count in parsed[kind]:
            found[queue_labels[queue], band, status][-1 if place == SUM else int(place)] += count
        yield _family(
            name,
            {
                labels: HistogramSample(list(accumulate(buckets)), total / 1_000_000)
                for labels, (*buckets, total) in found.items()
            },
        )


def _of_rows(rows: RowStats) -> Iterator[Family]:
    yield _family("workers_total", {(status.value,): rows.workers.get(status.value, 0) for status in WorkerStatus})
    yield _family("worker_slots", {(): rows.slots})
    waits = {
        (Band(band).label, f"p{percentile}"): wait
        for band, found in rows.waits.items()
        for percentile, wait in zip(PERCENTILES, found, strict=True)
    }
    yield _family("queue_age_seconds", waits)
    yield _family("index_generation", {(): rows.way.number})
    if rows.rebuild_seconds is not None:
        yield _family("index_rebuild_seconds", {(): rows.rebuild_seconds})
    yield from (_family(name, samples) for name, samples in rows.of_rooms.items())
    yield _family("maintenance_age_seconds", {(job,): age for job, age in rows.job_ages.items()})


def _family(name: str, samples: Mapping[Any, float] | Mapping[Any, HistogramSample]) -> Family:
    return Family(BY_NAME[name], samples)


# -- text -----------------------------------------------------------------------------------------


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
