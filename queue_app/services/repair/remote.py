"""What workers without access to the servers do, on their behalf and within their token's scope.

Each use case first makes sure that the worker is the token's own; what it then does to
tasks is done by the same services that local workers call, under the same fence. So a
worker, or whoever has its token, can touch nothing but what it was granted itself.

Crash points: a grant whose answer never arrived is given back when the worker next polls
and does not name it, or by the reaper when it does not poll any more.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from queue_app.core.records import ClaimedTask, Outcome, ProgressReport
from queue_app.exceptions import (
    IndexNotReady,
    IndexUnavailable,
    OutOfScope,
    StaleLease,
    TokenRefused,
    UnknownProfile,
    WorkerLost,
)
from queue_app.exceptions import WorkerNotFound as NotFound
from queue_app.index import Profile
from queue_app.models import Task, TaskPayload, Worker, WorkerToken
from queue_app.models.worker import WorkerStatus
from queue_app.services.lifecycle import progress
from queue_app.services.lifecycle.claim import claim, give_back, give_back_unacknowledged
from queue_app.services.lifecycle.finish import finish
from queue_app.services.repair import tokens
from queue_app.services.repair import workers as service
from queue_app.services.repair.rebuild import rebuild_if_needed
from queue_app.services.repair.workers import WorkerIdentity
from queue_app.sql import progress as rows

#: While a poll waits, its token is looked at again so often: a revoked one ends the wait.
LOOK_SECONDS: Final = 2.0
HEARTBEAT_SECONDS: Final = 10.0
MAX_UNSERVED: Final = 100  # names of types in one answer
LIVING: Final = (WorkerStatus.ACTIVE, WorkerStatus.DRAINING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a worker says it is; its identity is the token's matter."""

    name: str
    queues: tuple[str, ...]
    capabilities: tuple[str, ...]
    task_types: tuple[str, ...]
    concurrency: int
    version: str = ""


@dataclass(frozen=True, slots=True)
class Pulse:
    """The answer to a heartbeat.

    Tasks to stop, tasks that are not the worker's any more, whether to leave, and types that
    wait in its queues but are not among its own.
    """

    cancel: list[uuid.UUID]
    lost: list[uuid.UUID]
    drain: bool
    unserved: list[str]


def register(token: WorkerToken, wanted: Registration) -> Worker:
    """Make a worker known; raise ``OutOfScope`` when it asks for more than its token gives."""
    queues = wanted.queues or tuple(token.queues)
    beyond = sorted(set(queues) - set(token.queues)) if token.queues else []
    if beyond:
        raise OutOfScope(f"The token is not good for the queues {', '.join(beyond)}.", code="queue_not_allowed")
    beyond = sorted(set(wanted.capabilities) - set(token.capabilities))
    if beyond:
        raise OutOfScope(
            f"The token is not good for the capabilities {', '.join(beyond)}.", code="capability_not_allowed"
        )
    worker_id = uuid.uuid4()
    identity = WorkerIdentity(
        id=worker_id,
        name=wanted.name,
        host=f"token {token.name}",
        pid=0,
        process_identity="remote",
        version=wanted.version,
    )
    profile = Profile.of(queues, wanted.task_types, wanted.capabilities, wanted.concurrency)
    service.register(
        identity, profile, concurrency=wanted.concurrency, heartbeat_seconds=HEARTBEAT_SECONDS, token_id=token.id
    )
    return Worker.objects.get(id=worker_id)


def poll(
    token: WorkerToken,
    worker_id: uuid.UUID,
    *,
    want: int,
    wait: float = 0.0,
    holding: Sequence[uuid.UUID] | None = None,
) -> list[ClaimedTask]:
    """Return up to ``want`` tasks that are now the worker's; wait up to ``wait`` seconds for the first.

    ``holding`` are the tasks that the worker knows it has: what it was granted besides is
    given back first. Raises ``TokenRefused``, ``WorkerNotFound`` and ``WorkerLost``.
    """
    deadline = time.monotonic() + wait
    worker = _own(token, worker_id)
    profile = _profile(worker)
    if holding is not None:
        give_back_unacknowledged(worker_id, list(holding))
    while True:
        tasks = _claim(profile, worker_id, min(want, _room(token)))
        left = deadline - time.monotonic()
        if tasks or left <= 0:
            return tasks
        service.wait_for_wake(worker_id, min(left, LOOK_SECONDS))
        if not tokens.is_in_force(token.id):
            raise TokenRefused("The worker token is not valid.")
        _own(token, worker_id)


def wait_for_call(token: WorkerToken, worker_id: uuid.UUID, seconds: float) -> bool:
    """Wait until there is something to look at, at most so long; return whether there is."""
    _own(token, worker_id)
    return service.wait_for_wake(worker_id, seconds)


def held(token: WorkerToken, worker_id: uuid.UUID, attempts: Sequence[tuple[uuid.UUID, int]]) -> list[ClaimedTask]:
    """Return those of the attempts that hold their task, granted to this worker."""
    _own(token, worker_id)
    return rows.held_by(worker_id, attempts)


def report(outcomes: Sequence[Outcome]) -> set[uuid.UUID]:
    """Record how attempts that ``held`` returned have ended; return the tasks that they held until now."""
    failed = [outcome.task.id for outcome in outcomes if outcome.failure is not None]
    calls = {found.task_id: found for found in TaskPayload.objects.filter(pk__in=failed)} if failed else {}
    return finish([_with_call(outcome, calls.get(outcome.task.id)) for outcome in outcomes])


def _with_call(outcome: Outcome, call: TaskPayload | None) -> Outcome:
    """Return an outcome that knows what its task was called with: of a failure, that tells what must not be told."""
    if call is None:
        return outcome
    task = replace(outcome.task, args=json.dumps(call.args), parameters=json.dumps(call.parameters))
    return replace(outcome, task=task)


def release(tasks: list[ClaimedTask]) -> None:
    """Return tasks that ``held`` returned to their places."""
    give_back(tasks)


def stale(task_id: uuid.UUID, worker_id: uuid.UUID) -> StaleLease:
    """Return the error about an attempt that holds nothing; the status is told of tasks that were the worker's once."""
    status = Task.objects.filter(pk=task_id, worker_id=worker_id).values_list("status", flat=True).first()
    return StaleLease(f"The attempt does not hold task {task_id}; its outcome was dropped.", status=status)


def heartbeat(
    token: WorkerToken, worker_id: uuid.UUID, notes: Sequence[ProgressReport], *, draining: bool, tasks_done: int
) -> Pulse:
    """Say that the worker lives, and what its attempts say. Raises ``WorkerLost`` when it was declared dead."""
    worker = _own(token, worker_id)
    if not service.heartbeat(worker_id, draining=draining, tasks_done=tasks_done):
        raise WorkerLost("The worker was declared dead; register again.")
    mine = {(task.id, task.attempt) for task in rows.held_by(worker_id, [(n.task_id, n.attempt) for n in notes])}
    progress.note([note for note in notes if (note.task_id, note.attempt) in mine])
    lost = [note.task_id for note in notes if (note.task_id, note.attempt) not in mine]
    cancel, drain = sorted(service.cancel_requests(worker_id)), service.is_asked_to_drain(worker_id)
    return Pulse(cancel, lost, drain, _unserved(worker))


def learn(token: WorkerToken, worker_id: uuid.UUID, task_types: Sequence[str]) -> None:
    """Let a worker serve these types from now on, and no others."""
    worker = _own(token, worker_id)
    before = _profile(worker)
    after = Profile.of(worker.queues, task_types, worker.capabilities, worker.concurrency)
    if after != before:
        service.change_profile(worker_id, before, after)


def deregister(token: WorkerToken, worker_id: uuid.UUID, *, tasks_done: int) -> None:
    """Say goodbye; what the worker still holds goes back to its place. Again, it changes nothing."""
    worker = Worker.objects.filter(id=worker_id, token_id=token.id).first()
    if worker is None:
        raise NotFound(f"This token has no worker {worker_id}.")
    if worker.status in LIVING:
        give_back_unacknowledged(worker_id, [])
        service.deregister(worker_id, _profile(worker), tasks_done=tasks_done)


def _own(token: WorkerToken, worker_id: uuid.UUID) -> Worker:
    worker: Worker | None = Worker.objects.filter(id=worker_id, token_id=token.id).first()
    if worker is None:
        raise NotFound(f"This token has no worker {worker_id}.")
    if worker.status not in LIVING:
        raise WorkerLost(f"The worker is {worker.status}; register again.")
    return worker


def _profile(worker: Worker) -> Profile:
    return Profile.of(worker.queues, worker.task_types, worker.capabilities, worker.concurrency)


def _unserved(worker: Worker) -> list[str]:
    """Return types that wait for somebody in the worker's queues; none while the index does not answer."""
    try:
        return sorted(service.unserved_types(_profile(worker)))[:MAX_UNSERVED]
    except IndexUnavailable:
        return []


def _room(token: WorkerToken) -> int:
    """Return how many more tasks the token's workers may hold: a stolen one cannot drain the queue unseen."""
    return max(0, token.max_in_flight - rows.in_flight(token.id))


def _claim(profile: Profile, worker_id: uuid.UUID, want: int) -> list[ClaimedTask]:
    if want <= 0:
        return []
    try:
        return claim(profile, worker_id, want)
    except UnknownProfile:
        service.register_in_index(profile, worker_id)
        return claim(profile, worker_id, want)
    except IndexNotReady:
        rebuild_if_needed()
        return []  # the next poll finds it built, by us or by somebody else
