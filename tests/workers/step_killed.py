"""Separate processes that run a task with steps, each killed at another point of it; see test_steps_killed."""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from typing import Any

import django


def die() -> None:
    """End as a machine that loses its power does."""
    os.kill(os.getpid(), signal.SIGKILL)


def run_until(point: str, worker_id: uuid.UUID) -> None:
    """Claim a task as this worker, and run it; die at ``point``: where, and in which step."""
    from django.db import transaction  # noqa: PLC0415 - needs the settings

    from queue_app.index import Profile  # noqa: PLC0415
    from queue_app.registry import type_of  # noqa: PLC0415
    from queue_app.services.lifecycle.claim import claim  # noqa: PLC0415
    from queue_app.services.lifecycle.finish import finish  # noqa: PLC0415
    from queue_app.services.worker import registration as workers  # noqa: PLC0415
    from queue_app.sql import steps  # noqa: PLC0415
    from queue_app.sql.database import alias  # noqa: PLC0415
    from queue_app.workers.context import ClaimedAttempt  # noqa: PLC0415
    from queue_app.workers.executor import Executor  # noqa: PLC0415
    from tests.workers import step_tasks  # noqa: PLC0415

    where, _, wanted = point.partition(" ")
    record, take = steps.record, steps.take

    def at(place: str, name: str) -> None:
        if (place, name) == (where, wanted):
            die()

    def record_and_die(task: Any, step: Any) -> bool:
        at("called", step.name)
        if where == "committed" and step.name == wanted and transaction.get_connection(alias()).in_atomic_block:
            transaction.on_commit(die, using=alias())
        held = record(task, step)
        at("recorded" if transaction.get_connection(alias()).in_atomic_block else "committed", step.name)
        return held

    def take_and_die(*args: Any) -> Any:
        found = take(*args)
        at("recorded", args[1].name)
        return found

    steps.record, steps.take = record_and_die, take_and_die  # type: ignore[assignment]
    step_tasks.before = lambda name: at("before", name)
    profile = Profile.of((), (type_of(step_tasks.killable),), ())
    identity = workers.WorkerIdentity(
        id=worker_id, name=f"killed-{worker_id}", host="h", pid=1, process_identity="elsewhere", version=""
    )
    workers.register(identity, profile, concurrency=1, heartbeat_seconds=3600)
    (task,) = claim(profile, worker_id, 1)
    outcome = Executor(worker_id).run(ClaimedAttempt(task, time.monotonic()))
    at("ended", "")
    finish([outcome])
    die()


if __name__ == "__main__":
    django.setup()
    for pair in sys.argv[1:]:
        worker, _, place = pair.partition("=")
        if (child := os.fork()) == 0:
            run_until(place, uuid.UUID(worker))
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL, (place, status)
