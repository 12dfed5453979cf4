"""Work stands still although nothing forbids it to go on: the watchdog alone must notice and end it.

The scheduler's own comparison of index and rows is switched off, so each damage would last for ever.
"""

from __future__ import annotations

import signal
import time
import uuid

from queue_app.core.states import Status
from queue_app.index import get_index
from queue_app.models import Task
from queue_app.services.doctor import Level, work
from queue_app.sql import snapshot
from tests.integration.faults.run import CAPS, PATIENCE, Run
from tests.integration.faults.starts import alone
from tests.integration.processes import Process, eventually
from tests.support.engine import index_away

#: The reconciler gets no turn for the whole run.
NO_RECONCILER = {"TASKQUEUE__SCHEDULER__RECONCILE_SECONDS": "3600"}
LONGEST = 30.0
COUNT = 20


def work_stands_still(run: Run) -> None:
    """Damage the index in several ways, each while no worker is busy; measure how long work stands still."""
    run.fleet.scheduler(**NO_RECONCILER)
    worker = alone(run)
    eventually(lambda: levels() == {Level.OK}, "the watchdog looks", PATIENCE)
    for damage in (lose_entries, leak_slots, pause_the_index_only, lose_heads):
        run.load(COUNT)
        eventually(lambda: run.ended() == len(run.order), "all are done before the damage", PATIENCE)
        began = time.monotonic()
        damage(run, worker)
        eventually(lambda: Level.FAIL in levels(), f"the doctor notices: {damage.__name__}", PATIENCE)
        noticed = time.monotonic() - began
        eventually(lambda: run.ended() == len(run.order), f"the watchdog ends it: {damage.__name__}", PATIENCE)
        seconds = time.monotonic() - began
        print(f"{damage.__name__}: noticed after {noticed:.1f} s, all done after {seconds:.1f} s", flush=True)
        eventually(lambda: levels() == {Level.OK}, "the doctor is green again", PATIENCE)
        name = "longest standstill until the watchdog ended it (s)"
        run.measured[name] = max(run.measured.get(name, 0.0), seconds)
        assert seconds <= LONGEST, damage.__name__


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
    index._client.zadd(index.keys.queue_leases("default"), ghosts)
    index._client.hset(index.keys.leases, mapping=dict.fromkeys(ghosts, "default\x1fa\x1f"))
    run.load(COUNT)


def pause_the_index_only(run: Run, worker: Process) -> None:
    """Let the index, but not the rows, say that everything is paused."""
    index = get_index()
    index._client.hset(f"{index.keys.prefix}:settings", "paused", "1")
    run.load(COUNT)


def lose_heads(run: Run, worker: Process) -> None:
    """Delete the lists in which workers look for lanes, and their calls."""
    index = get_index()
    worker.send(signal.SIGSTOP)
    try:
        run.load(COUNT)
        index.push(snapshot.refs(list(Task.objects.filter(status=Status.QUEUED).values_list("id", flat=True))))
        for pattern in ("heads:*", "wake:*", "idle:*"):
            for key in index._client.keys(f"{index.keys.prefix}:{pattern}"):
                index._client.delete(key)
    finally:
        worker.send(signal.SIGCONT)
