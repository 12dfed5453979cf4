"""What limits cost: claims among many tenants and lanes, and draining with every limit set."""

import uuid
from collections.abc import Callable
from statistics import median

from bench import Table, analyze, drain, reset, timed
from bench_app.tasks import noop

from queue_app.core.records import NewTask
from queue_app.index import Lease, Profile, get_index
from queue_app.models import Limit, Queue, RuntimeSettings
from queue_app.registry import type_of
from queue_app.services.enqueue.store import enqueue_many
from queue_app.services.lifecycle.claim import claim
from queue_app.services.repair.rebuild import rebuild

type Options = Callable[[int], dict[str, object]]
type Worker = tuple[Profile, uuid.UUID]

BATCH, CALLS, ROUNDS = 10, 120, 12


def run(table: Table) -> None:
    """Measure each scene in turn with the plain one, call by call, so that a busy machine disturbs both alike."""
    try:
        _claims(table)
        _drain(table)
    finally:
        lift()


def _claims(table: Table) -> None:
    tenants, lanes = table.sized(10_000), table.sized(5_000)

    def by_user(number: int) -> dict[str, object]:
        return {"user": f"user{number % tenants}"}

    scenes: dict[str, tuple[dict[str, object], dict[str, object] | None, Options]] = {
        "10 000 fair tenants": ({"order": "fair"}, None, by_user),
        "10 000 fair tenants, each with a cap": ({"order": "fair", "max_concurrent_per_user": 5}, None, by_user),
        "5 000 lanes behind one type's cap": (
            {},
            {"scope": "type", "name": "bench.limited", "max_concurrent": 10 * CALLS * BATCH},
            lambda number: {"concurrency_key": f"key{number % lanes}"},
        ),
        "5 000 keys, each with a cap": (
            {},
            {"scope": "key", "name": "many", "max_concurrent": 50},
            lambda number: {"concurrency_key": f"many:{number % lanes}"},
        ),
    }
    for name, (fields, limit, options) in scenes.items():
        reset()
        Queue.objects.update_or_create(name="limited", defaults=fields)
        if limit:
            Limit.objects.create(**limit)
        rebuild()
        plain = fill_lanes(table.sized(50_000), ["default"], "bench.plain", lambda _: {})
        limited = fill_lanes(table.sized(50_000), ["limited"], "bench.limited", options)
        analyze()
        alone = in_turn(_script_alone, plain, limited)
        whole = in_turn(with_rows, plain, limited)
        table.add(f"claim, {name} / one lane, script and rows", "≤ 1.5", whole)
        table.add(f"claim, {name} / one lane, script alone", "-", alone)
        lift()


def fill_lanes(n: int, queues: list[str], task_type: str, options: Options) -> Worker:
    """Store n tasks in these queues by turns, and return a worker that runs these only."""
    for start in range(0, n, 10_000):
        enqueue_many(
            NewTask(task_type=task_type, queue=queues[number % len(queues)], **options(number))  # type: ignore[arg-type]
            for number in range(start, min(n, start + 10_000))
        )
    profile, worker_id = Profile.of(queues, [task_type], []), uuid.uuid4()
    get_index().register(profile, worker_id)
    return profile, worker_id


def in_turn(measure: Callable[[Worker], float], plain: Worker, limited: Worker) -> str:
    """Call both by turns; return the ratio of their medians, and the time of a task among the limited ones."""
    times: dict[Worker, list[float]] = {plain: [], limited: []}
    for number in range(CALLS):
        for worker in (plain, limited) if number % 2 else (limited, plain):
            times[worker].append(measure(worker))
    ratio = median(times[limited]) / median(times[plain])
    return f"{ratio:.2f} ({median(times[limited]) / BATCH * 1e6:.0f} µs a task)"


def _script_alone(worker: Worker) -> float:
    """Time the script, then put the tasks back, so that the depth stays."""
    index, taken = get_index(), []
    seconds = timed(lambda: taken.append(index.claim(*worker, BATCH, register_idle=False)))
    assert len(taken[0].tasks) == BATCH
    index.release(Lease(task_id, queue, taken[0].leased_at) for task_id, queue in taken[0].tasks)
    return seconds


def with_rows(worker: Worker) -> float:
    """Time the whole claim."""
    return timed(lambda: claim(*worker, BATCH))


def _drain(table: Table) -> None:
    n = table.sized(6_000)
    plain, limited = [], []
    for number in range(ROUNDS):
        for with_limits in (False, True) if number % 2 else (True, False):
            lift()
            if with_limits:
                _set_all()
            (limited if with_limits else plain).append(_rate(n))
    best = _undisturbed(limited) / _undisturbed(plain)
    middle = median(limited) / median(plain)
    table.add("drain with every limit set / without", "≥ 0.8", f"{best:.2f} (of the medians: {middle:.2f})")


def _undisturbed(rates: list[float]) -> float:
    """Return what the best quarter of the rounds reached: others only ever take from a rate."""
    return median(sorted(rates)[-len(rates) // 4 :])


def _set_all() -> None:
    """Set limits of every kind, so high that they never hold anything up."""
    rate = {"rate_count": 1_000_000, "rate_seconds": 1.0}
    RuntimeSettings.objects.update(max_concurrent=10_000)
    Queue.objects.filter(pk="default").update(
        max_concurrent=9_000, max_concurrent_per_user=8_000, order="fair", fair_weights={"user1": 2}, **rate
    )
    Limit.objects.create(scope="type", name=type_of(noop), max_concurrent=7_000, **rate)
    Limit.objects.create(scope="key", name="customer", max_concurrent=6_000, **rate)


def _rate(n: int) -> float:
    """Return the tasks a second of one worker; all have a user and a key, whether these are limited or not."""
    reset()
    enqueue_many(
        NewTask(
            task_type=type_of(noop), args=[number], user=f"user{number % 50}", concurrency_key=f"customer:{number % 20}"
        )
        for number in range(n)
    )
    return drain(n)


def lift() -> None:
    """Remove all limits."""
    Limit.objects.all().delete()
    Queue.objects.filter(pk="limited").delete()
    RuntimeSettings.objects.update(max_concurrent=None)
    Queue.objects.filter(pk="default").update(
        max_concurrent=None,
        max_concurrent_per_user=None,
        order="fifo",
        fair_weights={},
        rate_count=None,
        rate_seconds=None,
    )
    rebuild()
