"""The way of a worker that has access to PostgreSQL and Redis: it calls the services."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from django.tasks.base import TaskError

from queue_app.core.records import ClaimedTask, Outcome, ProgressReport
from queue_app.index import Profile
from queue_app.services.lifecycle import claim as claims
from queue_app.services.lifecycle import finish
from queue_app.services.read import results
from queue_app.services.repair import rebuild
from queue_app.services.repair import workers as service
from queue_app.services.repair.workers import WorkerIdentity
from queue_app.services.upkeep import jobs, promote
from queue_app.workers.transport.base import OnWait

# ruff: noqa: D102 - the functions of the package say what each does


class DirectTransport:
    """Calls the services of the queue in this process."""

    def register(
        self, identity: WorkerIdentity, profile: Profile, *, concurrency: int, heartbeat_seconds: float
    ) -> None:
        service.register(identity, profile, concurrency=concurrency, heartbeat_seconds=heartbeat_seconds)

    def register_again(self, profile: Profile, worker_id: uuid.UUID) -> None:
        service.register_in_index(profile, worker_id)

    def heartbeat(self, worker_id: uuid.UUID, *, draining: bool, tasks_done: int) -> bool:
        return service.heartbeat(worker_id, draining=draining, tasks_done=tasks_done)

    def is_asked_to_drain(self, worker_id: uuid.UUID) -> bool:
        return service.is_asked_to_drain(worker_id)

    def deregister(self, worker_id: uuid.UUID, profile: Profile, *, tasks_done: int) -> None:
        service.deregister(worker_id, profile, tasks_done=tasks_done)

    def wait_for_wake(self, worker_id: uuid.UUID, seconds: float) -> bool:
        return service.wait_for_wake(worker_id, seconds)

    def unserved_types(self, profile: Profile) -> set[str]:
        return service.unserved_types(profile)

    def change_profile(self, worker_id: uuid.UUID, before: Profile, after: Profile) -> None:
        service.change_profile(worker_id, before, after)

    def cancel_requests(self, worker_id: uuid.UUID) -> set[uuid.UUID]:
        return service.cancel_requests(worker_id)

    def claim(
        self, profile: Profile, worker_id: uuid.UUID, want: int, on_wait: OnWait | None = None
    ) -> list[ClaimedTask]:
        return claims.claim(profile, worker_id, want, on_wait=on_wait)

    def finish(self, outcomes: Sequence[Outcome]) -> set[uuid.UUID]:
        return finish.finish(outcomes)

    def give_back(self, tasks: list[ClaimedTask]) -> int:
        return claims.give_back(tasks)

    def give_back_unacknowledged(self, worker_id: uuid.UUID, known: list[uuid.UUID]) -> int:
        return claims.recover(worker_id, known)

    def note(self, notes: Sequence[ProgressReport]) -> None:
        finish.record_progress(notes)

    def earlier_attempts(self, task_id: uuid.UUID) -> tuple[list[TaskError], list[str]]:
        return results.earlier_attempts(task_id)

    def make_due(self) -> int:
        return promote.make_due()

    def wake_idle_workers(self) -> int:
        return jobs.wake_idle_workers()

    def rebuild_if_needed(self) -> object:
        return rebuild.rebuild_if_needed()
