"""The words: turn the events of ``queue_app.signals`` into log lines, in one place."""

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
_NOTHING: Final = "nothing makes up for it, and no task depends on it"
#: What the index was not told, and what makes up for it, by the operation that failed.
_LOST: Final = {
    "push": ("that tasks are queued", "the reconciler will push them from the rows"),
    "remove": ("that tasks wait no more", "the rows will refuse them, and the reconciler takes them out"),
    "release": ("that slots are free", "the reconciler will end their leases"),
    "reap": ("that tasks of a dead worker are queued again", "the reconciler will push them from the rows"),
    "withdraw": ("what a dead worker was proposed last", "the reconciler will end those leases"),
    "register": ("of a new worker", "it will register again with its first claim"),
    "retire": ("that a worker is gone", "the reconciler will retire it"),
    "tell": ("to wake workers for what concerns them", "they look it up with every heartbeat"),
    "set_limits": ("of changed limits", "the reconciler will copy them from the rows"),
    "set_thresholds": ("of changed thresholds of promotion", "the reconciler will copy them from the rows"),
    "publish": ("of events", _NOTHING),
    "count": ("what to count", _NOTHING),
    "position": ("which position to look up", "the answer goes without it"),
}
_FINAL: Final = frozenset({Status.FAILED, Status.DEAD_LETTER})


@receiver(signals.index_unreachable, dispatch_uid="queue_app.telemetry.unreachable")
def index_unreachable(operation: str, error: Exception, **_: Any) -> None:
    """Say that a hint was lost, and what makes up for it."""
    told, repair = _LOST.get(operation, (operation, _FROM_ROWS))
    logger.warning("the index could not be told %s; %s: %s", told, repair, error)


@receiver(signals.index_rebuilt, dispatch_uid="queue_app.telemetry.rebuilt")
def index_rebuilt(generation: int, tasks: int, leases: int, seconds: float, **_: Any) -> None:
    """Say that the index was built anew."""
    logger.info("index rebuilt: generation %d, %d queued, %d executing, %.2f s", generation, tasks, leases, seconds)


@receiver(signals.index_repaired, dispatch_uid="queue_app.telemetry.repaired")
def index_repaired(kind: str, count: int, **_: Any) -> None:
    """Say what the reconciler found."""
    logger.info("index repaired: %d %s", count, kind.replace("_", " "))


@receiver(signals.worker_reaped, dispatch_uid="queue_app.telemetry.reaped")
def worker_reaped(worker_id: Any, **_: Any) -> None:
    """Say that a worker was found dead."""
    logger.warning("worker %s is silent and was declared dead; its tasks are queued again", worker_id)


@receiver(signals.resumed_by_itself, dispatch_uid="queue_app.telemetry.resumed")
def resumed_by_itself(what: str, **_: Any) -> None:
    """Say that a pause is over without anybody having ended it."""
    logger.info("resumed: the pause of %s ended at its time", printable(what))


@receiver(signals.dead_letters_replayed, dispatch_uid="queue_app.telemetry.replayed")
def dead_letters_replayed(count: int, by: str, **_: Any) -> None:
    """Say who replayed dead letters."""
    logger.info("%d dead letters replayed by %s", count, printable(by) or "a program")


@receiver(signals.dead_letters_discarded, dispatch_uid="queue_app.telemetry.discarded")
def dead_letters_discarded(count: int, by: str, reason: str, **_: Any) -> None:
    """Say who discarded dead letters, and why."""
    logger.info("%d dead letters discarded by %s: %s", count, printable(by) or "a program", printable(reason))


@receiver(signals.operation_ended, dispatch_uid="queue_app.telemetry.operation_ended")
def operation_ended(operation: Any, **_: Any) -> None:
    """Say how an action on many ended, and who had asked for it; loudly when its first tasks failed again."""
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
    """Return one line about a failed attempt; no secrets of its parameters, no control characters."""
    failure = outcome.failure
    what = redact(f"{failure.exception_class}: {failure.message}", secrets) if failure else ""
    return (
        f"{outcome.task.task_type} {outcome.task.id} attempt {outcome.task.attempt} -> {status}: {printable(what):.500}"
    )


@receiver(signals.attempt_finished, dispatch_uid="queue_app.telemetry.finished")
def attempt_finished(outcome: Outcome, status: Status, **_: Any) -> None:
    """Log failures: a warning for one that is tried again, an error, once, for the last of a task.

    Trackers of errors take a report from each ``ERROR`` line. Where the exception was raised
    in this process it comes with its stack; from child processes and remote workers as text,
    and so it does where it repeats a value that must not be shown, which the text hides.
    """
    if outcome.failure is None:
        return
    secrets = _secrets_of(outcome)
    described = _describe(outcome, status, secrets)
    if status not in _FINAL:
        level = logging.INFO if status is Status.CANCELLED else logging.WARNING
        logger.log(level, "%s", described, extra=_facts(outcome, status))
        return
    told = outcome.failure.message + outcome.failure.traceback
    error = None if any(secret in told for secret in secrets) else outcome.error
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
    """Report tasks that were given up because their workers died."""
    for task in tasks:
        logger.error(
            "%s %s was given up: too many workers died while they ran it",
            printable(task.task_type),
            task.id,
            extra={ATTRIBUTE: {"task_id": str(task.id), "task_type": task.task_type, "queue": task.queue}},
        )


@receiver(signals.tasks_promoted, dispatch_uid="queue_app.telemetry.promoted")
def tasks_promoted(steps: dict[tuple[Band, Band], int], *, complete: bool, **_: Any) -> None:
    """Say how many tasks rose, and whether more will."""
    text = ", ".join(f"{count} from {one.label} to {other.label}" for (one, other), count in sorted(steps.items()))
    logger.info("promoted: %s%s", text, "" if complete else "; more at the next run")


@receiver(signals.tasks_expired, dispatch_uid="queue_app.telemetry.expired")
def tasks_expired(queue: str, count: int, **_: Any) -> None:
    """Say how many tasks were given up because they waited too long."""
    logger.warning("expired: %d stale tasks of queue %s", count, queue)
