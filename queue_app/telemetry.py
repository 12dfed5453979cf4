"""Turn the signals of ``queue_app.signals`` into log lines."""

from __future__ import annotations

import logging
from typing import Any, Final

from django.dispatch import receiver

from queue_app import signals
from queue_app.core import trace
from queue_app.core.priorities import Band
from queue_app.core.records import Outcome, TaskRef
from queue_app.core.redaction import Secrets, redact
from queue_app.core.states import Status
from queue_app.logs import ATTRIBUTE, printable

logger = logging.getLogger("taskqueue")

_FROM_ROWS: Final = "the reconciler will repair it from the rows"
_NOTHING: Final = "they are lost, and no task depends on them"
#: Failed operation -> (what the index did not learn, how it will be repaired).
_LOST: Final = {
    "push": ("that tasks are queued", "the reconciler will push them from the rows"),
    "remove": ("that tasks no longer wait", "the rows will refuse them, and the reconciler will remove them"),
    "release": ("that slots are free", "the reconciler will end their leases"),
    "reap": ("that tasks of a dead worker are queued again", "the reconciler will push them from the rows"),
    "withdraw": ("to end the leases of a dead worker's last proposal", "the reconciler will end them"),
    "register": ("of a new worker", "it will register again with its first claim"),
    "retire": ("that a worker is gone", "the reconciler will retire it"),
    "tell": ("to wake workers for new instructions", "they read them with every heartbeat"),
    "set_limits": ("of changed limits", "the reconciler will copy them from the rows"),
    "set_thresholds": ("of changed thresholds of promotion", "the reconciler will copy them from the rows"),
    "publish": ("of events", _NOTHING),
    "count": ("of counts", _NOTHING),
    "position": ("to look up a position", "the answer leaves it out"),
}
_FINAL: Final = frozenset({Status.FAILED, Status.DEAD_LETTER})


@receiver(signals.index_unreachable, dispatch_uid="queue_app.telemetry.unreachable")
def index_unreachable(operation: str, error: Exception, **_: Any) -> None:
    """Log that a notification of the index was lost, and how it will be repaired."""
    what, repair = _LOST.get(operation, (operation, _FROM_ROWS))
    logger.warning("the index could not be told %s; %s: %s", what, repair, error)


@receiver(signals.index_rebuilt, dispatch_uid="queue_app.telemetry.rebuilt")
def index_rebuilt(generation: int, tasks: int, leases: int, seconds: float, **_: Any) -> None:
    """Log that the index was rebuilt."""
    logger.info("index rebuilt: generation %d, %d queued, %d executing, %.2f s", generation, tasks, leases, seconds)


@receiver(signals.index_repaired, dispatch_uid="queue_app.telemetry.repaired")
def index_repaired(kind: str, count: int, **_: Any) -> None:
    """Log what the reconciler repaired."""
    logger.info("index repaired: %d %s", count, kind.replace("_", " "))


@receiver(signals.worker_reaped, dispatch_uid="queue_app.telemetry.reaped")
def worker_reaped(worker_id: Any, **_: Any) -> None:
    """Log that a worker was declared dead."""
    logger.warning("worker %s is silent and was declared dead; its tasks are queued again", worker_id)


@receiver(signals.resumed_by_itself, dispatch_uid="queue_app.telemetry.resumed")
def resumed_by_itself(what: str, **_: Any) -> None:
    """Log that a pause ended at its set time."""
    logger.info("resumed: the pause of %s ended at its time", printable(what))


@receiver(signals.dead_letters_replayed, dispatch_uid="queue_app.telemetry.replayed")
def dead_letters_replayed(count: int, by: str, **_: Any) -> None:
    """Log who replayed dead letters."""
    logger.info("%d dead letters replayed by %s", count, printable(by) or "a program")


@receiver(signals.dead_letters_discarded, dispatch_uid="queue_app.telemetry.discarded")
def dead_letters_discarded(count: int, by: str, reason: str, **_: Any) -> None:
    """Log who discarded dead letters, and why."""
    logger.info("%d dead letters discarded by %s: %s", count, printable(by) or "a program", printable(reason))


@receiver(signals.operation_ended, dispatch_uid="queue_app.telemetry.operation_ended")
def operation_ended(operation: Any, **_: Any) -> None:
    """Log how an operation ended; as a warning if it stopped because its first tasks failed again."""
    logger.log(
        logging.WARNING if operation.state == "stopped" else logging.INFO,
        "operation %s (%s by %s) %s: %d of %d tasks changed, %d failed again",
        operation.id,
        operation.kind,
        printable(operation.by) or "a program",
        operation.state,
        operation.changed,
        operation.total,
        operation.failed_again,
    )


def _secrets_of(outcome: Outcome) -> Secrets:
    from queue_app.displayed_payload import secrets_of_call  # noqa: PLC0415 - it needs the models

    return secrets_of_call(outcome.task)


def _describe(outcome: Outcome, status: Status, secrets: Secrets) -> str:
    """Return one line about a failed attempt, without secrets and control characters."""
    failure = outcome.failure
    what = redact(f"{failure.exception_class}: {failure.message}", secrets) if failure else ""
    return (
        f"{outcome.task.task_type} {outcome.task.id} attempt {outcome.task.attempt} -> {status}: {printable(what):.500}"
    )


@receiver(signals.attempt_finished, dispatch_uid="queue_app.telemetry.finished")
def attempt_finished(outcome: Outcome, status: Status, **_: Any) -> None:
    """Log a failure: a warning if the task is retried, an error if it was the last attempt.

    Error trackers report each ``ERROR`` line. The record carries the exception if it was raised
    in this process and contains no secret; otherwise it carries the redacted traceback as text.
    """
    if outcome.failure is None:
        return
    secrets = _secrets_of(outcome)
    described = _describe(outcome, status, secrets)
    if status not in _FINAL:
        level = logging.INFO if status is Status.CANCELLED else logging.WARNING
        logger.log(level, "%s", described, extra=_facts(outcome, status))
        return
    text = outcome.failure.message + outcome.failure.traceback
    error = None if any(secret in text for secret in secrets) else outcome.error
    facts = _facts(outcome, status)
    if error is None and outcome.failure.traceback:
        facts[ATTRIBUTE]["traceback"] = redact(outcome.failure.traceback, secrets)[-4_000:]
    logger.error(
        "%s",
        described,
        exc_info=None if error is None else (type(error), error, error.__traceback__),
        extra=facts,
    )


def _facts(outcome: Outcome, status: Status) -> dict[str, dict[str, Any]]:
    task = outcome.task
    return {
        ATTRIBUTE: {
            "task_id": str(task.id),
            "task_type": task.task_type,
            "queue": task.queue,
            "attempt": task.attempt,
            "worker": "" if task.worker_id is None else str(task.worker_id),
            "status": status.value,
            "trace_id": "" if task.trace is None else trace.trace_id(task.trace),
        }
    }


@receiver(signals.tasks_crash_looped, dispatch_uid="queue_app.telemetry.crash_looped")
def tasks_crash_looped(tasks: list[TaskRef], **_: Any) -> None:
    """Log tasks that were given up because their workers died."""
    for task in tasks:
        logger.error(
            "%s %s was given up: too many workers died while they ran it",
            printable(task.task_type),
            task.id,
            extra={ATTRIBUTE: {"task_id": str(task.id), "task_type": task.task_type, "queue": task.queue}},
        )


@receiver(signals.tasks_promoted, dispatch_uid="queue_app.telemetry.promoted")
def tasks_promoted(steps: dict[tuple[Band, Band], int], *, complete: bool, **_: Any) -> None:
    """Log how many tasks were promoted, and whether more follow."""
    text = ", ".join(f"{count} from {one.label} to {other.label}" for (one, other), count in sorted(steps.items()))
    logger.info("promoted: %s%s", text, "" if complete else "; more at the next run")


@receiver(signals.tasks_expired, dispatch_uid="queue_app.telemetry.expired")
def tasks_expired(queue: str, count: int, **_: Any) -> None:
    """Log how many tasks expired."""
    logger.warning("expired: %d stale tasks of queue %s", count, queue)
