"""Clocks step by an hour: of Valkey, of PostgreSQL, of the machines of workers and schedulers."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from django.db import connection, transaction

from queue_app.core.states import Status
from queue_app.models import Limit, Queue, Task
from queue_app.registry import type_of
from queue_app.services.notify import index
from queue_app.services.repair.rebuild import rebuild
from tests.integration.app import tasks
from tests.integration.faults.arena import Places, Rows, patient
from tests.integration.faults.edits import BURST, IN_HAND, RATE, over_rate, starts
from tests.integration.faults.run import HEARTBEAT, Run
from tests.integration.faults.starts import start
from tests.integration.faults.stepping import Clock

HOUR = 3600
#: Longest standstill that a step may cause.
STEP_LIMIT = 2.0


def paces(run: Run) -> None:
    """Give one queue a rate and the other a fair order, and each task type a minimum delay."""
    other = Queue.objects.get(pk="other")
    other.rate_count, other.rate_seconds, other.rate_burst = RATE, 1.0, BURST
    other.save()
    default = Queue.objects.get(pk="default")
    default.order, default.max_concurrent_per_user = "fair", 4
    default.save()
    Limit.objects.create(scope="type", name=type_of(tasks.job), min_delay_seconds=0.002)


def _locked(stop: threading.Event) -> None:
    """Keep one queued row after the other locked for a second, as a transaction of the project may."""
    while not stop.wait(0.1):
        with suppress(Exception), transaction.atomic():
            Task.objects.select_for_update(skip_locked=True).filter(status=Status.QUEUED).first()
            stop.wait(1.0)
    connection.close()


def step(run: Run, server: Rows | Places, *offsets: int) -> None:
    """Let the clock of a server stand at one offset after the other, with every kind of limit in force."""
    clock: Clock = run.on_exit(run.arena.own_clock(server))
    connection.close()
    index.breaker.reset()
    patient(rebuild)
    paces(run)
    run.load()
    start(run)
    stop = threading.Event()
    locker = threading.Thread(target=_locked, args=(stop,))
    locker.start()
    try:
        for offset, _ in zip(offsets, run.moments(len(offsets)), strict=True):
            clock.step_to(offset)
            run.flowing_again("flowing after a step of a clock (s)", time.monotonic())
        run.reach(1)
    finally:
        stop.set()
        locker.join()
    if isinstance(server, Places):  # the rows do not tell the true time of a start when PostgreSQL's clock steps
        ahead = sum(later > earlier for earlier, later in zip((0, *offsets), offsets, strict=False))
        run.broken += over_rate(starts("other"), RATE, BURST * (1 + ahead) + IN_HAND)


def valkey_clock_ahead(run: Run) -> None:
    """Valkey's clock steps an hour ahead, and back to the true time."""
    step(run, run.arena.valkey, HOUR, 0)


def valkey_clock_back(run: Run) -> None:
    """Valkey's clock steps an hour back, and ahead to the true time."""
    step(run, run.arena.valkey, -HOUR, 0)


def postgres_clock_ahead(run: Run) -> None:
    """PostgreSQL's clock steps an hour ahead, and back to the true time."""
    step(run, run.arena.postgres, HOUR, 0)


def postgres_clock_back(run: Run) -> None:
    """PostgreSQL's clock steps an hour back, and ahead to the true time."""
    step(run, run.arena.postgres, -HOUR, 0)


def clocks_of_machines(run: Run) -> None:
    """The clocks of three workers are an hour ahead, an hour back and right; that of the scheduler is an hour back."""
    paces(run)
    run.load()
    ahead, back = Clock(run.folder / "ahead"), Clock(run.folder / "back")
    ahead.step_to(HOUR)
    back.step_to(-HOUR)
    run.fleet.scheduler(**back.env)
    for env in (ahead.env, back.env, {}):
        run.fleet.worker("--concurrency", "4", heartbeat=HEARTBEAT, **env)
    run.reach(1)
    run.broken += over_rate(starts("other"), RATE, BURST + IN_HAND)
