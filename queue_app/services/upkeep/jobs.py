"""Record the runs of upkeep jobs, elect the leading scheduler, and ask whether there is work for it."""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import wraps
from typing import Any

from django.db import DatabaseError
from django.db.models.functions import Now

from queue_app import conf
from queue_app.core.process import QueryPauses, machine_identity
from queue_app.exceptions import in_one_line
from queue_app.index import get_index
from queue_app.models import MaintenanceJob
from queue_app.sql import locks, upkeep
from queue_app.sql.database import alias
from queue_app.sql.doctor import STALL_SECONDS

#: Answers to questions of ``sql.upkeep``, by question.
type Answers = Mapping[str, Any]

MAX_ERROR = 1000  # characters
#: Number of intervals without a success after which even the scheduler should have run an upkeep job.
LONG_OVERDUE_INTERVALS = 6


def recorded[**P](name: str) -> Callable[[Callable[P, int]], Callable[P, int]]:
    """Decorate a job that returns how many rows or tasks it handled: record each run and its error."""

    def decorate(job: Callable[P, int]) -> Callable[P, int]:
        @wraps(job)
        def run(*args: P.args, **kwargs: P.kwargs) -> int:
            began = time.monotonic()
            try:
                done = job(*args, **kwargs)
            except Exception as error:
                with suppress(DatabaseError):  # the database may be the reason for the error
                    text = f"{type(error).__name__}: {in_one_line(error)}"
                    started_at = _ago(time.monotonic() - began)
                    MaintenanceJob.record(alias(), name, started_at=started_at, error=text[:MAX_ERROR])
                raise
            seconds = time.monotonic() - began
            values = {"started_at": _ago(seconds), "succeeded_at": Now(), "seconds": seconds, "done": done, "error": ""}
            MaintenanceJob.record(alias(), name, **values)
            return done

        return run

    return decorate


def _ago(seconds: float) -> Any:
    """Return an expression for an instant of the past, by the database's clock: those of the hosts may differ."""
    return Now() - timedelta(seconds=seconds)


def succeeded_within(name: str, seconds: float) -> bool:
    """Whether the job has succeeded within the last ``seconds``; a success of the future does not count."""
    within = (_ago(seconds), Now())
    return MaintenanceJob.objects.using(alias()).filter(name=name, succeeded_at__range=within).exists()


def progress(name: str) -> dict[str, Any]:
    """Return the progress that the job saved last."""
    found = MaintenanceJob.objects.using(alias()).filter(name=name).values_list("progress", flat=True).first()
    return dict(found or {})


def save_progress(name: str, progress: dict[str, Any]) -> None:
    """Save the progress of a job for its next run."""
    MaintenanceJob.record(alias(), name, progress=progress)


def take_lead(token: str, seconds: float) -> bool:
    """Take or renew the leadership for ``seconds``; return whether ``token`` leads."""
    return locks.hold(locks.LEADER, token, seconds)


def resign(token: str) -> None:
    """Release the leadership, if ``token`` has it."""
    locks.hold(locks.LEADER, token, 0)


def leader_lapses() -> float | None:
    """Return the seconds after which the leadership expires unless it is renewed; ``None`` without a leader."""
    return locks.lapses_in(locks.LEADER)


def wake_idle_workers() -> int:
    """Wake an idle worker of every profile that has work: an earlier call may have reached a worker that died."""
    return get_index().wake_idle()


def pending_work(questions: Iterable[str], pauses: QueryPauses | None = None) -> Answers:
    """Answer questions of ``sql.upkeep`` in one round trip. Raises database errors.

    A question that took long and found nothing pauses; its answer is then ``None``. Tasks that became due a moment ago
    are found at once even then.
    """
    settings, names = conf.get(), set(questions)
    pausing = {name for name in names if pauses and name in pauses}
    if "due" in pausing:
        names.add("recently_due")
    params: dict[str, Any] = {
        "overdue": settings.scheduler.overdue_seconds,
        "late": STALL_SECONDS,
        "overrun": settings.scheduler.overdue_seconds + STALL_SECONDS,
        "upkeep": LONG_OVERDUE_INTERVALS * settings.scheduler.maintenance_seconds,
    }
    if "neighbours" in names:
        params["neighbours"] = machine_identity() or None  # an unknown machine has no neighbours
    answers, took = upkeep.pending_work(names - pausing, params)
    for name, seconds in took.items():
        if pauses and (_is_empty(name, answers[name]) or name == "startable"):  # which stays true while tasks wait
            pauses.begin(name, seconds)
    return dict.fromkeys(pausing) | answers | ({"due": answers["recently_due"]} if "due" in pausing else {})


def _is_empty(question: str, answer: Any) -> bool:
    """Whether an answer names no work for now."""
    return answer > 0 if question in {"due", "recently_due"} else not answer
