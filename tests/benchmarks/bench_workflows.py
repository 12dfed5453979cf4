"""Workflows: storing them, chains, fan-out with fan-in, and what blocked tasks cost a plain drain."""

from contextlib import ExitStack
from statistics import median

from bench import Table, peer_rates, process, reset, timed
from bench_app.tasks import noop
from django.db import connection
from django.tasks import default_task_backend

from queue_app import Workflow, chain
from queue_app.models import Task, Workflow as Row

ROUNDS = 3


def run(table: Table) -> None:
    """Measure with two worker processes, in turn with the peers; times are taken from the rows."""
    empty()
    nodes = table.sized(100_000)
    took = timed(lambda: fan(nodes))
    table.add(f"store a workflow of {nodes:,} tasks before one, s", "≤ 5", f"{took:.1f}")
    rates = measure(table.sized(1000), table.sized(10_000))
    asked = "≥ 5 times the peer in one run"
    for name, (ours, peers) in rates.items():
        table.add(f"{name}, steps/s", asked, f"{ours:,.0f}")
        for peer, rate in peers.items():
            table.add(f"{name}: times {peer}, which has {rate:,.0f} steps/s", asked, f"{ours / rate:.1f}")
    behind_blocked(table)
    empty()


def measure(chains: int, wide: int) -> dict[str, tuple[float, dict[str, float]]]:
    """Return {what: (our rate, {peer: its rate})}: medians of turns."""
    ours: dict[str, list[float]] = {"chains": [], "fan": []}
    theirs: dict[tuple[str, str], list[float]] = {}
    for _ in range(ROUNDS):
        empty()
        for _ in range(chains):
            chain(*[(noop, n) for n in range(10)]).enqueue()
        ours["chains"].append(drained(workers=2))
        empty()
        fan(wide)
        ours["fan"].append(drained(workers=2))
        for peer in ("celery", "dbos"):
            for what, rate in peer_rates(peer).items():
                theirs.setdefault((what, peer), []).append(rate)
    names = {"chains": f"{chains:,} chains of 10", "fan": f"fan-out and fan-in of {wide:,}"}
    return {
        name: (median(ours[what]), {peer: median(found) for (kind, peer), found in theirs.items() if kind == what})
        for what, name in names.items()
    }


def fan(count: int) -> None:
    """Store a workflow: one task, many after it, one after all of these."""
    flow = Workflow("fan")
    many = flow.add_many(noop, [((n,), {}) for n in range(count)], after=[flow.add(noop, 0)])
    flow.add(noop, 1, after=[many])
    flow.enqueue()


def behind_blocked(table: Table) -> None:
    """Drain plain tasks in turn with and without many blocked ones beside them."""
    plain, blocked = table.sized(10_000), table.sized(1_000_000)
    rates: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(ROUNDS):
        for beside in (False, True):
            empty()
            if beside:
                store_blocked(blocked)
            default_task_backend.enqueue_many(noop, [((n,), {}) for n in range(plain)])
            rates[beside].append(drained(plain_only=True))
    ratio = median(rates[True]) / median(rates[False])
    table.add(f"drain beside {blocked:,} blocked tasks, to without", "≥ 0.95", f"{ratio:.2f}")


def store_blocked(count: int) -> None:
    """Store blocked tasks of workflows that are paused, so that nothing of them starts."""
    each = min(count, 100_000)
    for _ in range(count // each):
        fan(each)
    Task.objects.filter(status="queued").update(status="blocked")
    Row.objects.update(paused=True, paused_at="2026-01-01T00:00Z")
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE queue_app_task")


def drained(*, plain_only: bool = False, workers: int = 1) -> float:
    """Let workers run what can run; return completed tasks per second, from the first start to the last end."""
    with ExitStack() as stack:
        for worker in [stack.enter_context(process("runworker", "--burst")) for _ in range(workers)]:
            worker.wait(timeout=600)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FILTER (WHERE status <> 'completed'), count(*),"
            " EXTRACT(EPOCH FROM max(finished_at) - min(started_at)) FROM queue_app_task"
            " WHERE workflow_id IS NULL OR %s",
            [not plain_only],
        )
        left, done, seconds = cursor.fetchone()
    assert not left, f"{left} of {done} tasks were not completed"
    return done / float(seconds)


def empty() -> None:
    """Empty the tables of workflows too."""
    with connection.cursor() as cursor:
        cursor.execute(
            "TRUNCATE queue_app_workflow, queue_app_taskdependency, queue_app_dependencycounter, queue_app_workflownode"
        )
    reset()
