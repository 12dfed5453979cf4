"""What limits cost: claims among many tenants and lanes, and draining with every limit set."""

from statistics import median

from bench import Table, analyze, process, register, reset, timed
from bench_app.tasks import noop
from django.db import connection

from queue_app.core.records import NewTask
from queue_app.index import Lease, get_index
from queue_app.models import Limit, Queue, RuntimeSettings
from queue_app.registry import type_of
from queue_app.services.claim import claim
from queue_app.services.enqueue import enqueue_many
from queue_app.services.rebuild import rebuild

BATCH, CALLS, ROUNDS = 10, 100, 3


def run(table: Table) -> None:
    """Measure each scene in turn with the plain one, so that a busy machine disturbs both alike."""
    try:
        _claims(table)
        _drain(table)
    finally:
        _lift()


def _claims(table: Table) -> None:
    n = table.sized(50_000)
    tenants, lanes = table.sized(10_000), table.sized(5_000)
    scenes = {
        "10 000 fair tenants": ({"order": "fair"}, lambda number: {"user": f"user{number % tenants}"}),
        "10 000 fair tenants, each with a cap": (
            {"order": "fair", "max_concurrent_per_user": 2},
            lambda number: {"user": f"user{number % tenants}"},
        ),
        "5 000 lanes behind one type's cap": ({}, lambda number: {"concurrency_key": f"key{number % lanes}"}),
        "5 000 keys, each with a cap": ({}, lambda number: {"concurrency_key": f"many:{number % lanes}"}),
    }
    for name, (fields, options) in scenes.items():
        alone, whole = [], []
        plain = _measure(n, {}, lambda _: {})
        for given in (fields,):
            if "type" in name:
                Limit.objects.create(scope="type", name="bench.type0", max_concurrent=10 * CALLS * BATCH)
            if "keys" in name:
                Limit.objects.create(scope="key", name="many", max_concurrent=50)
            found = _measure(n, given, options)
            alone.append(found[0] / plain[0])
            whole.append(found[1] / plain[1])
        table.add(f"claim, {name} / one lane, script and rows", "≤ 1.5", f"{median(whole):.2f}")
        table.add(
            f"claim, {name} / one lane, script alone", "-", f"{median(alone):.2f} ({found[0] * 1e6:.0f} µs a task)"
        )
        _lift()


def _measure(n: int, fields: dict[str, object], options: object) -> tuple[float, float]:
    """Return seconds per claimed task in batches of 10: of the script, and of script and row update."""
    reset()
    Queue.objects.filter(pk="default").update(**fields)
    rebuild()
    for start in range(0, n, 10_000):
        enqueue_many(
            NewTask(task_type="bench.type0", **options(number))  # type: ignore[operator]
            for number in range(start, min(n, start + 10_000))
        )
    analyze()
    profile, worker_id = register()
    index = get_index()

    def script_once() -> float:
        taken = []
        seconds = timed(lambda: taken.append(index.claim(profile, worker_id, BATCH, register_idle=False)))
        assert len(taken[0].tasks) == BATCH
        index.withdraw(Lease(task_id, queue, taken[0].leased_at) for task_id, queue in taken[0].tasks)
        return seconds

    alone = [script_once() for _ in range(CALLS)]
    whole = [timed(lambda: claim(profile, worker_id, BATCH, register_idle=False)) for _ in range(CALLS)]
    return median(alone) / BATCH, median(whole) / BATCH


def _drain(table: Table) -> None:
    n = table.sized(10_000)
    ratios = []
    for _ in range(ROUNDS):
        _lift()
        plain = _rate(n)
        _set_all()
        ratios.append(_rate(n) / plain)
    shown = ", ".join(f"{ratio:.2f}" for ratio in sorted(ratios))
    table.add("drain with every limit set / without", "≥ 0.8", f"{median(ratios):.2f} ({shown})")


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
            task_type=type_of(noop),
            args=[number],
            user=f"user{number % 50}",
            concurrency_key=f"customer:{number % 20}",
        )
        for number in range(n)
    )
    with process("runworker", "--burst") as worker:
        worker.wait(timeout=300)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*), EXTRACT(EPOCH FROM max(finished_at) - min(started_at))"
            " FROM queue_app_task WHERE status = 'completed'"
        )
        done, seconds = cursor.fetchone()
    assert done == n, f"{done} of {n} were completed"
    return n / float(seconds)


def _lift() -> None:
    Limit.objects.all().delete()
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
