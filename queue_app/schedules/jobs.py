"""The scheduler's jobs of schedules: store what the code declares, and let ticks become tasks."""

import time

from queue_app.conf import SchedulerSettings
from queue_app.schedules.declare import synchronise
from queue_app.schedules.tick import BATCH, run_due
from queue_app.services.upkeep.jobs import Answers
from queue_app.workers.scheduler import DUE_SECONDS, Job


def of_all(settings: SchedulerSettings) -> list[Job]:
    """Return the job that stores what the code declares: every scheduler must say that its version is there."""
    return [Job("declarations", settings.maintenance_seconds, synchronise)]


def of_leader(settings: SchedulerSettings) -> list[Job]:
    """Return the job that lets ticks become tasks."""
    return [
        Job(
            "schedules",
            settings.due_seconds,
            _run_schedules,
            asks=("schedules",),
            is_wanted=lambda answers: _seconds_until_a_tick(answers) <= 0,
            next_in=_seconds_until_a_tick,
            is_urgent=True,
        )
    ]


def _run_schedules() -> bool:
    """Run the schedules that are due, for up to ``DUE_SECONDS``; return whether to ask again at once."""
    until = time.monotonic() + DUE_SECONDS
    handled = 0
    while time.monotonic() < until:
        handled = run_due()
        if handled < BATCH:
            break
    return handled > 0  # the next answer says when the next tick is due


def _seconds_until_a_tick(answers: Answers) -> float:
    seconds: float | None = answers["schedules"]
    return float("inf") if seconds is None else seconds
