"""The life of a worker process: register, heartbeat, leave."""

import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from django.db.models.functions import Now

from queue_app.core.records import AttemptKey, HeartbeatAnswer, WorkerReport
from queue_app.core.sentence import sentence
from queue_app.exceptions import InvalidTransition
from queue_app.index import Index, Profile, WorkerMessage, get_index
from queue_app.models import Queue, Worker
from queue_app.models.fields import USER_LENGTH
from queue_app.models.worker import WorkerStatus
from queue_app.services.lifecycle.claim import compare
from queue_app.services.notify.index import notify_index, on_commit
from queue_app.services.repair.reap import mark_dead_locally, reap_orphans
from queue_app.services.way import follow
from queue_app.sql import workers as worker_rows
from queue_app.sql.database import alias

#: Stands for no queue in a profile; no queue can have this name.
NO_QUEUE: Final = "(none)"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerIdentity:
    """Identity of a worker process, by which other processes can tell whether it still lives."""

    id: uuid.UUID
    name: str
    host: str
    pid: int
    process_identity: str
    version: str
    supervisor_pid: int | None = None


def _columns(profile: Profile) -> dict[str, Any]:
    return {
        "profile": profile.id,
        "queues": list(profile.queues),
        "capabilities": list(profile.capabilities),
        "task_types": list(profile.task_types),
    }


def register(
    identity: WorkerIdentity,
    profile: Profile,
    *,
    concurrency: int,
    heartbeat_seconds: float,
    token_id: uuid.UUID | None = None,
) -> None:
    """Register a worker in rows and index; registering again updates it."""
    now = Now()  # the database's clock, by which a silent worker is declared dead; this host's may differ
    updated = _columns(profile) | {"status": WorkerStatus.ACTIVE, "last_heartbeat_at": now}
    _, is_new = Worker.objects.update_or_create(
        id=identity.id,
        defaults=updated,
        create_defaults=updated
        | asdict(identity)
        | {"concurrency": concurrency, "started_at": now, "heartbeat_seconds": heartbeat_seconds, "token_id": token_id},
    )
    if is_new:
        worker_rows.start(identity.id)
    notify_index(Index.register, "register", profile, identity.id)
    if mark_dead_locally():  # a worker that replaces a dead one on this machine requeues its tasks at once
        reap_orphans()


def heartbeat(worker_id: uuid.UUID, report: WorkerReport, held: Sequence[AttemptKey] = ()) -> HeartbeatAnswer:
    """Record that the worker lives and still has all of these grants; return also which of them it has lost."""
    follow()
    found = compare(worker_id, held)
    return worker_rows.heartbeat(worker_id, report, names_all=found.is_complete)._replace(lost=found.lost)


def deregister(worker_id: uuid.UUID, profile: Profile, *, tasks_done: int) -> None:
    """Record that the worker exits; the reaper requeues the tasks that it still holds."""
    worker_rows.stop(worker_id, tasks_done)
    notify_index(Index.unregister, "retire", profile.id, worker_id)


def register_in_index(profile: Profile, worker_id: uuid.UUID) -> None:
    """Register a worker in an index that was rebuilt. Raises ``IndexUnavailable``."""
    get_index().register(profile, worker_id)


def wait_for_wake(worker_id: uuid.UUID, seconds: float) -> WorkerMessage | None:
    """Wait up to ``seconds`` until the index wakes or notifies the worker; return which, or ``None``."""
    return get_index().wait_for_call(worker_id, seconds)


def unserved_types(profile: Profile) -> set[str]:
    """Return the task types that wait in the profile's queues but are not among its types."""
    return get_index().unserved_types(profile)


def queues_except(excluded: Sequence[str]) -> tuple[str, ...]:
    """Return the names of all queues but some. If none is left, return a name that no queue has: empty means all."""
    names = Queue.objects.using(alias()).exclude(name__in=excluded).order_by("name").values_list("name", flat=True)
    return tuple(names) or (NO_QUEUE,)


def change_profile(worker_id: uuid.UUID, before: Profile, after: Profile) -> None:
    """Register a running worker under another profile."""
    Worker.objects.filter(id=worker_id).update(**_columns(after))
    index = get_index()
    index.register(after, worker_id)
    index.unregister(before.id, worker_id)


def request_drain(worker_id: uuid.UUID, *, by: str) -> None:
    """Ask a worker to finish its running tasks, claim no more, and exit.

    The worker is woken now, and reads the request with every heartbeat. Raises ``InvalidTransition``
    when the worker is not active or was asked before.
    """
    if not worker_rows.request_drain(worker_id, by[:USER_LENGTH]):
        status = Worker.objects.filter(pk=worker_id).values_list("status", flat=True).first() or "gone"
        why = sentence("it is %(state)s", state=sentence(status))
        if status in {WorkerStatus.ACTIVE, WorkerStatus.DRAINING}:
            why = sentence("it was asked to drain before")
        raise InvalidTransition(sentence("The worker cannot be drained: %(why)s.", why=why), status=status)
    on_commit(Index.notify_workers, "tell", [worker_id])
