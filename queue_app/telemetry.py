"""The words: turn the events of ``queue_app.signals`` into log lines, in one place."""

from __future__ import annotations

import logging
from typing import Any

from django.dispatch import receiver

from queue_app import signals
from queue_app.core.priorities import Band
from queue_app.core.records import Outcome
from queue_app.core.states import Status

logger = logging.getLogger("taskqueue")


@receiver(signals.index_unreachable, dispatch_uid="queue_app.telemetry.unreachable")
def index_unreachable(operation: str, error: Exception, **_: Any) -> None:
    """Say that a hint was lost; the reconciler will repair it."""
    logger.warning("the index did not hear of %s; it will be repaired from the rows: %s", operation, error)


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
    logger.info("resumed: the pause of %s ended at its time", _printable(what))


@receiver(signals.dead_letters_replayed, dispatch_uid="queue_app.telemetry.replayed")
def dead_letters_replayed(count: int, by: str, **_: Any) -> None:
    """Say who replayed dead letters."""
    logger.info("%d dead letters replayed by %s", count, _printable(by) or "a program")


@receiver(signals.dead_letters_discarded, dispatch_uid="queue_app.telemetry.discarded")
def dead_letters_discarded(count: int, by: str, reason: str, **_: Any) -> None:
    """Say who discarded dead letters, and why."""
    logger.info("%d dead letters discarded by %s: %s", count, _printable(by) or "a program", _printable(reason))


@receiver(signals.replay_ended, dispatch_uid="queue_app.telemetry.replay_ended")
def replay_ended(operation: Any, **_: Any) -> None:
    """Say how a replay of many ended; loudly when its first tasks failed again."""
    level = logging.WARNING if operation.state == "stopped" else logging.INFO
    logger.log(
        level,
        "replay %s %s: %d of %d replayed, %d of the first failed again",
        operation.id,
        operation.state,
        operation.replayed,
        operation.total,
        operation.failed_again,
    )


@receiver(signals.operation_ended, dispatch_uid="queue_app.telemetry.operation_ended")
def operation_ended(operation: Any, **_: Any) -> None:
    """Say how an action on many tasks ended, and who had asked for it."""
    logger.info(
        "operation %s (%s by %s) %s: %d of %d tasks changed",
        operation.id,
        operation.kind,
        _printable(operation.by) or "a program",
        operation.state,
        operation.changed,
        operation.total,
    )


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)


def describe_failure(outcome: Outcome, status: Status) -> str:
    """Return one line about a failed attempt; no parameters, no control characters."""
    failure = outcome.failure
    what = f"{failure.exception_class}: {failure.message}" if failure else ""
    return (
        f"{outcome.task.task_type} {outcome.task.id} attempt {outcome.task.attempt} -> {status}: "
        f"{_printable(what):.500}"
    )


@receiver(signals.attempt_finished, dispatch_uid="queue_app.telemetry.finished")
def attempt_finished(outcome: Outcome, status: Status, **_: Any) -> None:
    """Log failures; successes only at debug level."""
    if outcome.failure is not None:
        logger.warning("%s", describe_failure(outcome, status))


@receiver(signals.tasks_promoted, dispatch_uid="queue_app.telemetry.promoted")
def tasks_promoted(steps: dict[tuple[Band, Band], int], *, complete: bool, **_: Any) -> None:
    """Say how many tasks rose, and whether more will."""
    text = ", ".join(f"{count} from {one.label} to {other.label}" for (one, other), count in sorted(steps.items()))
    logger.info("promoted: %s%s", text, "" if complete else "; more at the next run")


@receiver(signals.tasks_expired, dispatch_uid="queue_app.telemetry.expired")
def tasks_expired(queue: str, count: int, **_: Any) -> None:
    """Say how many tasks were given up because they waited too long."""
    logger.warning("expired: %d stale tasks of queue %s", count, queue)
