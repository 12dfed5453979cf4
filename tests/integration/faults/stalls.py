"""Work stands still although nothing prevents it: the watchdog alone must notice and end it.

The scheduler's own comparison of index and rows is switched off, so each damage would last for ever.
"""

from __future__ import annotations

import signal
import sys
import time
import uuid

from queue_app.core.reasons import Level
from queue_app.core.records import NewTask
from queue_app.core.states import Status
from queue_app.diagnose import work
from queue_app.index import get_index
from queue_app.models import Limit, Queue, Task
from queue_app.registry import type_of
from queue_app.services.enqueue.store import enqueue_many
from queue_app.sql import snapshot
from tests.integration.app import tasks
from tests.integration.faults.run import CAPS, HEARTBEAT, PATIENCE, Run
from tests.integration.faults.starts import alone
from tests.integration.processes import Process
from tests.support.engine import index_away, redis_client
from tests.support.waiting import turns, until

#: The reconciler gets no turn for the whole run.
NO_RECONCILER = {"TASKQUEUE__SCHEDULER__RECONCILE_SECONDS": "3600"}
LONGEST = 30.0
#: A program that starts a worker which asks for tasks and gets none: a fault that no repair knows.
GETS_NOTHING = """
import sys
from django.core.management import execute_from_command_line
from queue_app.index import Index
from queue_app.core.records import Proposal
Index.claim = lambda *_, **__: Proposal(0, 0, (), None)
execute_from_command_line(["manage.py", *sys.argv[1:]])
"""
COUNT = 20


def work_stands_still(run: Run) -> None:
    """Damage the index in four ways while the scheduler's own comparison is switched off."""
    run.fleet.scheduler(**NO_RECONCILER)
    worker = alone(run)
    until(lambda: levels() == {Level.OK}, "the watchdog looks", PATIENCE)
    for damage in (lose_entries, leak_slots, pause_the_index_only, lose_heads):
        run.load(COUNT)
        until(lambda: run.ended() == len(run.order), "all are done before the damage", PATIENCE)
        began = time.monotonic()
        damage(run, worker)
        until(lambda: Level.FAIL in levels(), f"the doctor notices: {damage.__name__}", PATIENCE)
        noticed = time.monotonic() - began
        until(lambda: run.ended() == len(run.order), f"the watchdog ends it: {damage.__name__}", PATIENCE)
        seconds = time.monotonic() - began
        said = f"{damage.__name__}: noticed after {noticed:.1f} s, all done after {seconds:.1f} s"
        print(said, file=sys.stderr, flush=True)
        until(lambda: levels() == {Level.OK}, "the doctor is green again", PATIENCE)
        name = "longest standstill until the watchdog ended it (s)"
        run.measured[name] = max(run.measured.get(name, 0.0), seconds)
        assert seconds <= LONGEST, damage.__name__


def nothing_stands_still(run: Run, seconds: float = 45.0) -> None:
    """Let limits of all kinds make tasks wait while slots are free; the watchdog must take none of it for a stall."""
    limit(Queue.objects.get(pk="default"), order="fair", max_concurrent_per_user=1)
    limit(Queue.objects.get(pk="other"), rate_count=4, rate_seconds=1.0, rate_burst=2)
    limit(Limit(scope="key", name="customer"), max_concurrent=1)
    limit(Limit(scope="type", name=type_of(tasks.work)), max_concurrent=2)
    scheduler = run.fleet.scheduler()
    alone(run)
    run.fleet.worker("--concurrency", "2", "--max-tasks", "50", heartbeat=HEARTBEAT)
    until(lambda: levels() == {Level.OK}, "the watchdog looks", PATIENCE)
    for _ in turns(seconds, pause=0.5):
        new = [mixed(run) for _ in range(2)]
        run.note(new, [stored.id for stored in enqueue_many(new)])
        assert levels() <= {Level.OK}, list(work.check_stalls())
    limit(Queue.objects.get(pk="other"), rate_count=None, rate_seconds=None, rate_burst=None)
    until(lambda: run.ended() == len(run.order), "all are done", PATIENCE)
    assert "stands still" not in scheduler.log


def gets_nothing(run: Run) -> Process:
    """Start a worker that asks for tasks and gets none."""
    heartbeat = {"TASKQUEUE__WORKER__HEARTBEAT_SECONDS": str(HEARTBEAT)}
    return run.fleet.start("runworker", "--concurrency", "3", program=("-c", GETS_NOTHING), **heartbeat)


def limit(row: Queue | Limit, **values: object) -> None:
    """Save limits as staff do."""
    for name, value in values.items():
        setattr(row, name, value)
    row.full_clean()
    row.save()


def mixed(run: Run) -> NewTask:
    """Return a task of any length, band, user, key and weight."""
    chance = run.chance
    seconds = chance.choice([0.0, 0.01, 0.1, 0.5, 1.5])
    return run.new_task(
        task_type=type_of(chance.choice([tasks.job, tasks.job, tasks.work])),
        args=[run.log, uuid.uuid4().hex, seconds],
        user=chance.choice(["", "ada", "bob"]),
        concurrency_key=chance.choice(["", "", "customer:1", "customer:2"]),
        weight=chance.choice([1, 1, 1, 1, 2, 4]),
    )


def levels() -> set[Level]:
    """Return the levels of what the doctor says about stalls."""
    return {finding.level for finding in work.check_stalls()}


def lose_entries(run: Run, worker: Process) -> None:
    """Enqueue while the index hears nothing of it."""
    with index_away("push"):
        run.load(COUNT)


def leak_slots(run: Run, worker: Process) -> None:
    """Fill all slots with leases of tasks that never were."""
    index = get_index()
    ghosts = {uuid.uuid4().bytes: 1.0 for _ in range(CAPS[""])}
    redis_client().zadd(index.keys.queue_leases("default"), ghosts)
    redis_client().hset(index.keys.leases, mapping=dict.fromkeys(ghosts, "default\x1fa\x1f"))
    run.load(COUNT)


def pause_the_index_only(run: Run, worker: Process) -> None:
    """Let the index, but not the rows, say that everything is paused."""
    index = get_index()
    redis_client().hset(f"{index.keys.prefix}:settings", "paused", "1")
    run.load(COUNT)


def lose_heads(run: Run, worker: Process) -> None:
    """Delete the lists in which workers look for lanes, and their calls."""
    index = get_index()
    worker.send(signal.SIGSTOP)
    try:
        run.load(COUNT)
        index.push(snapshot.refs(list(Task.objects.filter(status=Status.QUEUED).values_list("id", flat=True))))
        for pattern in ("heads:*", "wake:*", "idle:*"):
            for key in redis_client().keys(f"{index.keys.prefix}:{pattern}"):
                redis_client().delete(key)
    finally:
        worker.send(signal.SIGCONT)
