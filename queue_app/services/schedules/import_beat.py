"""Take over the periodic tasks of Celery beat: from ``CELERY_BEAT_SCHEDULE`` and from django-celery-beat's tables.

A task keeps its name, so the project must have a task of this queue under that name. What cannot be taken over is
reported, never left out silently.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from django.apps import apps
from django.conf import settings
from django.db import transaction

from queue_app.exceptions import InvalidTaskData
from queue_app.services.schedules.edit import create_schedule
from queue_app.sql.database import alias, atomic


class BeatEntry(NamedTuple):
    """A periodic task of Celery: the values of a schedule, or why it cannot be one."""

    name: str
    values: Mapping[str, Any]
    problem: str = ""


def find_entries() -> list[BeatEntry]:
    """Return the periodic tasks that the project's settings and tables define."""
    configured = getattr(settings, "CELERY_BEAT_SCHEDULE", {})
    entries = [_of_setting(str(name), given) for name, given in configured.items()]
    if apps.is_installed("django_celery_beat"):
        model: Any = apps.get_app_config("django_celery_beat").get_model("PeriodicTask")
        tasks = model.objects.filter(enabled=True)
        tasks = tasks.select_related("interval", "crontab", "clocked", "solar").exclude(name="celery.backend_cleanup")
        entries += [_of_row(task) for task in tasks.order_by("name")]
    return entries


def import_entries(entries: list[BeatEntry], *, dry_run: bool = False) -> tuple[list[str], dict[str, str]]:
    """Store each entry as a schedule; return the names of the stored ones, and {name: problem} of the others."""
    refused = {entry.name: entry.problem for entry in entries if entry.problem}
    imported = []
    for entry in entries:
        if entry.problem:
            continue
        try:
            with atomic():
                create_schedule(entry.name, entry.values)
                transaction.set_rollback(dry_run, using=alias())
        except InvalidTaskData as error:
            refused[entry.name] = str(error)
        else:
            imported.append(entry.name)
    return imported, refused


def _of_setting(name: str, given: Mapping[str, Any]) -> BeatEntry:
    options = dict(given.get("options") or {})
    values = {
        "task_type": given.get("task"),
        "args": list(given.get("args") or ()),
        "parameters": dict(given.get("kwargs") or {}),
        "zone": getattr(settings, "CELERY_TIMEZONE", None) or settings.TIME_ZONE,
    }
    if "queue" in options:
        values["queue"] = options.pop("queue")
    when = given.get("schedule")
    if options:
        return BeatEntry(name, values, f"it has options that schedules do not have: {', '.join(sorted(options))}")
    when = getattr(when, "run_every", when) if not hasattr(when, "_orig_minute") else when
    if isinstance(when, timedelta | int | float):
        return BeatEntry(name, values | {"every": _seconds(when)})
    fields = list(_crontab(when))
    if not fields:
        return BeatEntry(name, values, f"its schedule is of a kind that only Celery has: {type(when).__name__}")
    return BeatEntry(name, values | {"cron": " ".join(fields)})


def _of_row(task: Any) -> BeatEntry:
    values: dict[str, Any] = {
        "task_type": task.task,
        "args": json.loads(task.args or "[]"),
        "parameters": json.loads(task.kwargs or "{}"),
        "notes": task.description or "",
        "zone": settings.TIME_ZONE,
    }
    values |= {"queue": task.queue} if task.queue else {}
    values |= {"starts_at": task.start_time} if task.start_time else {}
    values |= {"ends_at": task.expires} if task.expires else {}
    if task.exchange or task.routing_key or task.expire_seconds:
        return BeatEntry(task.name, values, "it has an exchange, a routing key or an expiry of its messages")
    if task.one_off and task.clocked is None:
        return BeatEntry(task.name, values, "it runs once at an interval; give it a time instead")
    if task.interval is not None:
        return BeatEntry(task.name, values | {"every": _seconds(task.interval.schedule.run_every)})
    if task.clocked is not None:
        return BeatEntry(task.name, values | {"instants": [task.clocked.clocked_time.isoformat()]})
    if task.crontab is not None:
        each = task.crontab
        fields = (each.minute, each.hour, each.day_of_month, each.month_of_year, each.day_of_week)
        return BeatEntry(task.name, values | {"cron": " ".join(map(_field, fields)), "zone": str(each.timezone)})
    return BeatEntry(task.name, values, "it follows the sun, which only Celery does")


def _crontab(when: Any) -> Iterator[str]:
    """Yield the five fields of Celery's ``crontab``, as they were written; nothing for another kind of schedule."""
    names = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
    if all(hasattr(when, f"_orig_{name}") for name in names):
        yield from (_field(getattr(when, f"_orig_{name}")) for name in names)


def _field(value: Any) -> str:
    return ",".join(map(str, sorted(value))) if isinstance(value, set | list | tuple) else str(value).replace(" ", "")


def _seconds(value: Any) -> float:
    return float(value.total_seconds() if isinstance(value, timedelta) else value)
