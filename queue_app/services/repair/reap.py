"""Return what dead workers were running, and end what is stuck past its deadline.

A worker is dead when it has been silent for its heartbeat budget, or when it ran on this
machine and its process is gone: that is seen at once. While PostgreSQL is away nobody can be
heard, so silence counts only for a scheduler that has listened for the last beat and a half
of it. A worker that said goodbye, or whose row is gone, holds nothing either. Crashes are
counted apart from failures; a task that had too many is dead-lettered (``crash_loop``).

Crash points: before the commit nothing has happened, and the next tick does it. After the
rows and before the index, the reconciler ends the leases and pushes the tasks.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from queue_app import conf, signals
from queue_app.core.clock import now
from queue_app.core.process import machine_identity, process_identity
from queue_app.core.records import ClaimedTask, Outcome, TaskFailure, TaskRef
from queue_app.core.states import Status
from queue_app.index import Index
from queue_app.services.lifecycle.claim import withdraw_last
from queue_app.services.lifecycle.finish import finish
from queue_app.services.notify import events
from queue_app.services.notify.index import notify_index
from queue_app.services.upkeep.jobs import Answers
from queue_app.sql import reap as rows
from queue_app.sql import workers

BATCH = 500
#: Who has not looked for so long does not know why nobody was heard; less would take a busy scheduler for deaf.
DEAF_SECONDS = 10.0


def reap(listened: float = math.inf) -> int:
    """Mark dead workers dead and end at most ``BATCH`` of the attempts that they held; return how many.

    ``listened`` is for how long the caller could have seen a heartbeat (s).
    """
    _announce(workers.mark_silent_dead(conf.get().worker.missed_heartbeats, listened, BATCH))
    mark_dead_locally()
    return reap_orphans()


class Reaper:
    """Reaps every second or so, and knows since when it has seen every heartbeat."""

    ASKS: ClassVar = ("silent", "neighbours", "orphans")

    def __init__(self) -> None:
        self._listens_since = self._looked_at = -math.inf  # monotonic

    def run_once(self) -> int:
        """As ``reap``; after the start, and after PostgreSQL was away, silent workers have the time for a beat."""
        now = time.monotonic()
        if now - self._looked_at > DEAF_SECONDS:
            self._listens_since = now
        reaped = reap(now - self._listens_since)
        self._looked_at = now
        return reaped

    def is_wanted(self, answers: Answers) -> bool:
        """Whether a look found something to reap; none is no reason to take this scheduler for deaf."""
        now = time.monotonic()
        if now - self._looked_at > DEAF_SECONDS:
            self._listens_since = now
        self._looked_at = now
        return answers["silent"] or answers["orphans"] or any(map(_is_gone, answers["neighbours"]))


def reap_orphans() -> int:
    """End at most ``BATCH`` attempts of workers that are gone; return how many."""
    settings = conf.get()
    reaped = rows.reap_orphans(
        BATCH,
        max_crashes=settings.retry.max_crashes,
        dead_letter_seconds=settings.retention.dead_letter_seconds,
    )
    if reaped:
        notify_index(lambda index: _return_to_index(index, reaped), "reap")
        events.returned(reaped)
        dead = [task for status, task in reaped if status is Status.DEAD_LETTER]
        if dead:
            signals.tasks_crash_looped.send(None, tasks=dead)
        again = sum(status in {Status.QUEUED, Status.SCHEDULED} for status, _ in reaped)
        events.count({"retry:worker_died": again} if again else {})
    return len(reaped)


def _return_to_index(index: Index, reaped: Sequence[tuple[Status, TaskRef]]) -> None:
    index.release((task.id, task.queue) for _, task in reaped)
    index.push(task for status, task in reaped if status is Status.QUEUED)


def reap_overdue() -> int:
    """Fail executing tasks that are long past their own deadline: their worker lives, but is stuck; return how many.

    The worker enforces deadlines itself; this waits ``SCHEDULER.OVERDUE_SECONDS`` longer.
    """
    tasks = rows.overdue(conf.get().scheduler.overdue_seconds, BATCH)
    return len(finish([_timed_out(task) for task in tasks])) if tasks else 0


def _timed_out(task: ClaimedTask) -> Outcome:
    failure = TaskFailure(
        exception_class="queue_app.exceptions.TaskTimeout",
        message=f"The attempt took longer than {task.timeout:g} s, and its worker did not end it.",
        traceback="",
        reason="timeout",
    )
    return Outcome(task, task.started_at, now(), failure=failure)


def mark_dead(worker_id: uuid.UUID) -> int:
    """Declare one worker dead, because its end was seen, and end what it held; return how many tasks."""
    _announce(workers.mark_dead(worker_id))
    return reap_orphans()


def mark_dead_locally() -> int:
    """Declare workers of this machine dead whose process is gone; return how many.

    Processes are compared by boot id, pid namespace, pid and start time, so neither a pid
    that was given to another process nor another container is mistaken. Finds nothing where
    the platform does not tell these (no ``/proc``); the heartbeat then decides.
    """
    machine = machine_identity()
    if not machine:
        return 0
    gone = [
        worker_id
        for worker_id, pid, identity in workers.on_this_machine(machine, BATCH)
        if process_identity(pid) != identity
    ]
    for worker_id in gone:
        _announce(workers.mark_dead(worker_id))
    return len(gone)


def _is_gone(neighbour: str) -> bool:
    pid, _, identity = neighbour.partition(" ")
    return process_identity(int(pid)) != identity


def _announce(dead: list[tuple[uuid.UUID, str]]) -> None:
    for worker_id, profile in dead:
        notify_index(partial(_withdraw_last, worker_id), "withdraw")
        notify_index(partial(Index.unregister, profile_id=profile, worker_id=worker_id), "retire")
        signals.worker_reaped.send(None, worker_id=worker_id)
    events.count({"worker:dead": len(dead)} if dead else {})


def _withdraw_last(worker_id: uuid.UUID, _index: Index) -> None:
    withdraw_last(worker_id)
