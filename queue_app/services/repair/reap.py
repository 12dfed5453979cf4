"""Requeue the tasks of dead workers, and fail tasks that are stuck past their deadline.

A worker is dead when it sends no heartbeat for its whole budget, or at once when it ran on this
machine and its process is gone. While PostgreSQL is away no heartbeat arrives, so a scheduler only
counts silence after it has listened for one and a half heartbeats. Tasks of a worker that stopped,
or whose row is gone, are requeued too. Crashes are counted apart from failures; a task with too many
becomes a dead letter (``crash_loop``).

Crash points: before the commit nothing has happened, and the next tick repeats it. Between the rows
and the index, the reconciler ends the leases and pushes the tasks.
"""

import math
import time
import uuid
from typing import ClassVar

from queue_app import conf, signals
from queue_app.core.clock import now
from queue_app.core.process import machine_identity, process_identity
from queue_app.core.records import ClaimedTask, Outcome, TaskFailure
from queue_app.core.states import Status
from queue_app.index import Index
from queue_app.services.lifecycle.claim import return_to_index, withdraw_last
from queue_app.services.lifecycle.finish import finish
from queue_app.services.notify import events
from queue_app.services.notify.index import notify_index
from queue_app.services.upkeep.jobs import Answers
from queue_app.sql import reap as rows
from queue_app.sql import workers

BATCH = 500
#: Longest gap between two checks of the heartbeats. After a longer gap the scheduler cannot tell whether the workers
#: were silent or PostgreSQL was away. With a shorter limit a busy scheduler would never count silence.
MAX_GAP_SECONDS = 10.0


def reap(listened: float = math.inf) -> int:
    """Declare silent workers dead and end at most ``BATCH`` of their attempts; return the number of attempts.

    ``listened``: for how long the caller could have seen a heartbeat, in seconds.
    """
    _announce(workers.mark_silent_dead(conf.get().worker.missed_heartbeats, listened, BATCH))
    mark_dead_locally()
    return reap_orphans()


class Reaper:
    """Reaps about every second, and remembers since when it has seen every heartbeat."""

    QUESTIONS: ClassVar = ("silent", "neighbours", "orphans")

    def __init__(self) -> None:
        self._listens_since = self._checked_at = -math.inf  # monotonic

    def run_once(self) -> int:
        """Call ``reap``; after the start, and after PostgreSQL was away, give workers the time for a heartbeat."""
        now = self._listen()
        reaped = reap(now - self._listens_since)
        self._checked_at = now
        return reaped

    def is_wanted(self, answers: Answers) -> bool:
        """Whether the answers name something to reap; counts as a check."""
        self._checked_at = self._listen()
        return answers["silent"] or answers["orphans"] or any(map(_is_gone, answers["neighbours"]))

    def _listen(self) -> float:
        """Start to listen again if the last check is too long ago; return the time now."""
        now = time.monotonic()
        if now - self._checked_at > MAX_GAP_SECONDS:
            self._listens_since = now
        return now


def reap_orphans() -> int:
    """End at most ``BATCH`` attempts of workers that are gone; return how many it ended."""
    settings = conf.get()
    reaped = rows.reap_orphans(
        BATCH, max_crashes=settings.retry.max_crashes, dead_letter_seconds=settings.retention.dead_letter_seconds
    )
    if reaped:
        return_to_index(reaped)
        dead = [each.task for each in reaped if each.status is Status.DEAD_LETTER]
        if dead:
            signals.tasks_crash_looped.send(None, tasks=dead)
        again = sum(each.status in {Status.QUEUED, Status.SCHEDULED} for each in reaped)
        if again:
            events.count({"retry:worker_died": again})
    return len(reaped)


def reap_overdue() -> int:
    """Fail tasks of workers that live but are stuck; return how many.

    The worker enforces deadlines itself; the reaper waits ``SCHEDULER.OVERDUE_SECONDS`` longer.
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
    """Declare one worker dead whose end the caller saw, and end its attempts; return how many it ended."""
    _announce(workers.mark_dead(worker_id))
    return reap_orphans()


def mark_dead_locally() -> int:
    """Declare workers of this machine dead whose process is gone; return how many.

    Compares boot id, pid namespace, pid and start time, so neither a reused pid nor another container is mistaken for
    the worker. On a platform without ``/proc`` this finds nothing; the heartbeat decides.
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
    """Whether the process is gone; ``neighbour`` is its "pid identity"."""
    pid, _, identity = neighbour.partition(" ")
    return process_identity(int(pid)) != identity


def _announce(dead: list[tuple[uuid.UUID, str]]) -> None:
    for worker_id, profile in dead:
        notify_index(withdraw_last, "withdraw", worker_id)
        notify_index(Index.unregister, "retire", profile, worker_id)
        signals.worker_reaped.send(None, worker_id=worker_id)
    if dead:
        events.count({"worker:dead": len(dead)})
