"""Write one log line for each task and each transition, when ``EVENTS.LOG`` is on.

The line is written after the row is committed and does not need Redis. A process that dies in
between leaves a line out. Lines hold ids, names and numbers, never parameters, results, users
or error messages.
"""

import logging
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Final

from queue_app import conf
from queue_app.core.events import COUNTED, Ended, EventName, Occasion, Run
from queue_app.core.records import ClaimedTask, TaskRef
from queue_app.core.states import Status
from queue_app.logs import ATTRIBUTE, printable

logger: Final = logging.getLogger("taskqueue.transitions")


def enabled() -> bool:
    """Return whether transitions are logged."""
    return conf.get().events.log and logger.isEnabledFor(logging.INFO)


def log_events(runs: Iterable[Run]) -> None:
    """Log the events of ``runs``."""
    for occasion, task_ids, _traces in runs:
        if occasion.name == COUNTED:
            continue
        facts = _facts(occasion)
        for task_id in task_ids or (None,):
            _write(occasion.name, task_id, facts)


def log_started(tasks: Iterable[ClaimedTask]) -> None:
    """Log that a worker was granted tasks, and how long they had waited."""
    for task in tasks:
        waited = (task.started_at - task.queued_at).total_seconds()
        facts = facts_of_attempt(task, Status.EXECUTING) | {"wait_seconds": round(waited, 3)}
        _write(EventName.STARTED, task.id, facts)


def log_ended(attempts: Iterable[Ended]) -> None:
    """Log how attempts ended, and how long they took."""
    for attempt in attempts:
        outcome = attempt.outcome
        ran = (outcome.finished_at - outcome.started_at).total_seconds()
        facts = facts_of_attempt(outcome.task, attempt.status) | {"run_seconds": round(ran, 3)}
        if outcome.failure is not None:
            facts |= {"reason": outcome.failure.reason, "error": outcome.failure.exception_class}
        _write(attempt.name, outcome.task.id, facts)


def log_due(tasks: Iterable[TaskRef]) -> None:
    """Log that tasks whose time has come were queued; no event is published for that."""
    for task in tasks:
        _write("Due", task.id, {"task_type": task.task_type, "queue": task.queue, "status": Status.QUEUED.value})


def facts_of_attempt(task: ClaimedTask, status: Status | None) -> dict[str, Any]:
    """Return the fields of a log line about an attempt, without the id of the task."""
    return {
        "task_type": task.task_type,
        "queue": task.queue,
        "attempt": task.attempt,
        "worker": "" if task.worker_id is None else str(task.worker_id),
        "status": "" if status is None else status.value,
        "trace_id": task.trace_id,
    }


def _facts(occasion: Occasion) -> dict[str, Any]:
    details = dict(zip(occasion.details[::2], occasion.details[1::2], strict=False))
    return details | {
        "task_type": occasion.task_type,
        "queue": occasion.queue,
        "attempt": int(occasion.attempt) if occasion.attempt.isdecimal() else "",
        "worker": occasion.worker,
        "status": occasion.status,
    }


def _write(name: str, task_id: uuid.UUID | None, facts: Mapping[str, Any]) -> None:
    if task_id is not None:
        facts = {"trace_id": task_id.hex, **facts}
    logger.info(
        "%s %s %s",
        name,
        printable(facts["task_type"]),
        task_id or "",
        extra={ATTRIBUTE: {"event": str(name), "task_id": "" if task_id is None else str(task_id), **facts}},
    )
