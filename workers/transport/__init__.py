"""How a worker reaches the queue: at its servers itself, or over HTTP.

A process has one way, chosen at its start; the direct one unless ``use`` names another. The
functions here are all that the runtime asks of the queue.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from django.tasks.base import TaskError

from queue_app.core.records import ClaimedTask, Outcome, ProgressReport
from queue_app.index import Profile
from queue_app.services.repair.workers import WorkerIdentity
from queue_app.workers.transport.base import OnWait, Transport
from queue_app.workers.transport.direct import DirectTransport

_ways: list[Transport] = [DirectTransport()]  # the last one counts


def use(way: Transport) -> None:
    """Reach the queue in this way from now on."""
    _ways[1:] = [way]


def is_direct() -> bool:
    """Whether this process has access to the servers of the queue."""
    return len(_ways) == 1


def register(identity: WorkerIdentity, profile: Profile, *, concurrency: int, heartbeat_seconds: float) -> None:
    """Make a worker known."""
    _ways[-1].register(identity, profile, concurrency=concurrency, heartbeat_seconds=heartbeat_seconds)


def register_again(profile: Profile, worker_id: uuid.UUID) -> None:
    """Make a worker known to an index that was rebuilt."""
    _ways[-1].register_again(profile, worker_id)


def heartbeat(worker_id: uuid.UUID, *, draining: bool, tasks_done: int) -> bool:
    """Say that the worker lives; return false when it was declared dead."""
    return _ways[-1].heartbeat(worker_id, draining=draining, tasks_done=tasks_done)


def is_asked_to_drain(worker_id: uuid.UUID) -> bool:
    """Return whether somebody asked the worker to leave."""
    return _ways[-1].is_asked_to_drain(worker_id)


def deregister(worker_id: uuid.UUID, profile: Profile, *, tasks_done: int) -> None:
    """Say goodbye."""
    _ways[-1].deregister(worker_id, profile, tasks_done=tasks_done)


def wait_for_wake(worker_id: uuid.UUID, seconds: float) -> bool:
    """Block until the worker is called, at most ``seconds``; return whether it was."""
    return _ways[-1].wait_for_wake(worker_id, seconds)


def unserved_types(profile: Profile) -> set[str]:
    """Return the task types that wait in the profile's queues but are not among its types."""
    return _ways[-1].unserved_types(profile)


def change_profile(worker_id: uuid.UUID, before: Profile, after: Profile) -> None:
    """Register a running worker under another profile."""
    _ways[-1].change_profile(worker_id, before, after)


def cancel_requests(worker_id: uuid.UUID) -> set[uuid.UUID]:
    """Return the tasks of the worker that it was asked to stop."""
    return _ways[-1].cancel_requests(worker_id)


def claim(profile: Profile, worker_id: uuid.UUID, want: int, on_wait: OnWait | None = None) -> list[ClaimedTask]:
    """Return tasks for up to ``want`` slots that are now this worker's, most urgent first.

    ``on_wait`` is told in how many seconds to look again, where a limit then lets something start.
    """
    return _ways[-1].claim(profile, worker_id, want, on_wait)


def finish(outcomes: Sequence[Outcome]) -> set[uuid.UUID]:
    """Record outcomes; return the ids of the tasks that the attempts still held.

    Raises ``DataError``, ``IntegrityError`` or ``OutcomesRefused`` when one of them cannot be stored.
    """
    return _ways[-1].finish(outcomes)


def give_back(tasks: list[ClaimedTask]) -> int:
    """Return claimed tasks to their places; return how many were still this worker's."""
    return _ways[-1].give_back(tasks)


def give_back_unacknowledged(worker_id: uuid.UUID, known: list[uuid.UUID]) -> int:
    """Return to the queue what was granted to the worker without its knowledge."""
    return _ways[-1].give_back_unacknowledged(worker_id, known)


def note(notes: Sequence[ProgressReport]) -> None:
    """Store what attempts say while they run."""
    _ways[-1].note(notes)


def earlier_attempts(task_id: uuid.UUID) -> tuple[list[TaskError], list[str]]:
    """Return errors and workers of a task's earlier attempts, as far as they can be known here."""
    return _ways[-1].earlier_attempts(task_id)


def make_due() -> int:
    """Queue tasks whose time has come; return how many."""
    return _ways[-1].make_due()


def wake_idle_workers() -> int:
    """Repeat wake-up calls that may have been lost."""
    return _ways[-1].wake_idle_workers()


def rebuild_if_needed() -> object:
    """Rebuild the index unless it is fit, or somebody else does; return ``None`` when nothing was done."""
    return _ways[-1].rebuild_if_needed()
