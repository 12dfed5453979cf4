"""Schedules whose ticks are counted in minutes after noon."""

from datetime import UTC, datetime, timedelta

from queue_app.models import Schedule
from queue_app.schedules.edit import create_schedule
from tests.workers import chores

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ECHO = chores.echo.module_path


def minutes(number: float) -> datetime:
    """Return an instant so many minutes after noon."""
    return NOON + timedelta(minutes=number)


def every_minute(name: str = "minutely", **values) -> Schedule:
    """Make a schedule that ticks a minute after noon and then every minute."""
    return create_schedule(name, {"task_type": ECHO, "args": [1], "every": 60} | values, now=NOON)
