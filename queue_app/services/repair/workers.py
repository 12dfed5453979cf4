"""The life of a worker process: register, heartbeat, leave."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from django.db.models.functions import Now

from queue_app.exceptions import InvalidTransition
from queue_app.index import Profile, get_index
from queue_app.models import Worker
from queue_app.models.columns import USER_LENGTH
from queue_app.models.worker import WorkerStatus
from queue_app.services.notify.index import notify_index, on_commit
from queue_app.services.repair.reap import mark_dead_locally, reap_orphans
from queue_app.sql import workers as worker_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerIdentity:
    """Who a worker process is, so that others can tell whether it still lives."""

    id: uuid.UUID
    name: str
    host: str
    pid: int
    process_identity: str
    version: str


def register(
    identity: WorkerIdentity,
    profile: Profile,
    *,
    concurrency: int,
    heartbeat_seconds: float,
    token_id: uuid.UUID | None = None,
) -> None:
    """Make a worker known to rows and index; again with another profile when it learnt new task types."""
    now = Now()  # the clock by which a silent worker is declared dead; this host's may differ
    Worker.objects.update_or_create(
        id=identity.id,
        defaults={
            "queues": list(profile.queues),
            "capabilities": list(profile.capabilities),
            "task_types": list(profile.task_types),
            "profile": profile.id,
            "status": WorkerStatus.ACTIVE,
            "last_heartbeat_at": now,
        },
        create_defaults={
            "name": identity.name,
            "status": WorkerStatus.ACTIVE,
            "queues": list(profile.queues),
            "capabilities": list(profile.capabilities),
            "task_types": list(profile.task_types),
            "concurrency": concurrency,
            "profile": profile.id,
            "host": identity.host,
            "pid": identity.pid,
            "process_identity": identity.process_identity,
            "version": identity.version,
            "started_at": now,
            "last_heartbeat_at": now,
            "heartbeat_seconds": heartbeat_seconds,
            "token_id": token_id,
        },
    )
    notify_index(lambda index: index.register(profile, identity.id), "register")
    mark_dead_locally()  # a worker that takes the place of a dead one gives its tasks back at once
    reap_orphans()


def register_in_index(profile: Profile, worker_id: uuid.UUID) -> None:
    """Make a worker known to an index that was rebuilt. Raises ``IndexUnavailable``."""
    get_index().register(profile, worker_id)


def heartbeat(worker_id: uuid.UUID, *, draining: bool, tasks_done: int) -> bool:
    """Say that the worker lives; return false when it was declared dead and must stop its tasks."""
    status = WorkerStatus.DRAINING if draining else WorkerStatus.ACTIVE
    return worker_rows.heartbeat(worker_id, status, tasks_done)


def deregister(worker_id: uuid.UUID, profile: Profile, *, tasks_done: int) -> None:
    """Say goodbye; what the worker still held is the reaper's."""
    worker_rows.stop(worker_id, tasks_done)
    notify_index(lambda index: index.unregister(profile.id, worker_id), "retire")


def wait_for_wake(worker_id: uuid.UUID, seconds: float) -> bool:
    """Block until the index calls the worker, at most ``seconds``; return whether it did."""
    return get_index().wait_for_wake(worker_id, seconds)


def unserved_types(profile: Profile) -> set[str]:
    """Return the task types that wait in the profile's queues but are not among its types."""
    return get_index().unserved_types(profile)


def change_profile(worker_id: uuid.UUID, before: Profile, after: Profile) -> None:
    """Register a running worker under another profile."""
    Worker.objects.filter(id=worker_id).update(
        profile=after.id,
        queues=list(after.queues),
        capabilities=list(after.capabilities),
        task_types=list(after.task_types),
    )
    index = get_index()
    index.register(after, worker_id)
    index.unregister(before.id, worker_id)


def cancel_requests(worker_id: uuid.UUID) -> set[uuid.UUID]:
    """Return the tasks of the worker that it was asked to stop."""
    return worker_rows.cancel_requests(worker_id)


def request_drain(worker_id: uuid.UUID, *, by: str) -> None:
    """Ask a worker to finish what runs, to take nothing new, and to leave.

    It looks for that with every heartbeat, and is woken now. Raises
    ``InvalidTransition`` when it is not active, or was asked before.
    """
    if not worker_rows.request_drain(worker_id, by[:USER_LENGTH]):
        status = Worker.objects.filter(pk=worker_id).values_list("status", flat=True).first() or "gone"
        why = "it was asked to drain before" if status == WorkerStatus.ACTIVE else f"it is {status}"
        raise InvalidTransition(f"The worker cannot be drained: {why}.", status=status)
    on_commit(lambda index: index.notify_workers([worker_id]), "tell")


def is_asked_to_drain(worker_id: uuid.UUID) -> bool:
    """Return whether somebody asked the worker to leave."""
    return worker_rows.is_asked_to_drain(worker_id)
