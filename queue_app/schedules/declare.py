"""Store the schedules that the code declares.

While a deployment replaces the code, two versions of the declarations run side by side. Each scheduler reports its own
every minute. The version that appeared last is in force for as long as schedulers report it; a roll back to the older
one takes effect once the newer one is no longer reported.

A value that staff have changed stays as they left it, until they give it back. A schedule that the code no longer
declares is paused, never deleted.
"""

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from django.apps import AppConfig, apps
from django.conf import settings
from django.db import transaction
from django.db.models.signals import post_migrate
from django.dispatch import receiver
from django.utils import timezone

from queue_app import schedules
from queue_app.exceptions import InvalidTaskData
from queue_app.models import MaintenanceJob, Schedule
from queue_app.schedules import Declaration
from queue_app.schedules.edit import (
    FIELDS,
    WHEN,
    create_schedule,
    from_json,
    plan_ahead,
    save,
    set_values,
    to_json,
    values_of,
    with_options,
)
from queue_app.schedules.pause import settle_pause
from queue_app.schedules.sql import are_installed
from queue_app.schedules.tick import finish_due
from queue_app.sql.database import alias, atomic, clock

#: Name of the row that knows the versions of the declarations.
JOB: Final = "schedules"
#: Time after its last report when a version of the declarations counts as gone.
GONE: Final = timedelta(minutes=5)
#: Who paused a schedule that the code no longer declares.
BY: Final = "the code"
NOT_DECLARED: Final = "It is no longer declared in the code."

_log = logging.getLogger("taskqueue")


def synchronise(*, force: bool = False, now: datetime | None = None) -> list[str]:
    """Store the declarations of this process if its version is in force; return the names of what changed.

    With ``force`` this version counts as the newest. An invalid declaration is logged, and its schedule stays as it is.
    """
    found = schedules.declared()
    version = hashlib.sha256(repr(sorted((d.name, _text(d)) for d in found.values())).encode()).hexdigest()[:16]
    with atomic():
        MaintenanceJob.objects.using(alias()).get_or_create(name=JOB)
        known = MaintenanceJob.objects.using(alias()).select_for_update().get(name=JOB)
        now = now or clock()
        is_new = known.progress.get("stored") != version
        if not _is_in_force(known.progress, version, now, force=force):
            known.save(update_fields=["progress"])
            return []
        changed = _store(found, now) if is_new or force else []
        known.progress["stored"] = version
        known.started_at = known.succeeded_at = timezone.now()
        known.done = len(found)
        known.save()
    return changed


def _is_in_force(progress: dict[str, Any], version: str, now: datetime, *, force: bool) -> bool:
    """Report this version, forget those that are gone, and return whether this one appeared last."""
    seen: dict[str, list[str]] = progress.setdefault("versions", {})
    for other in list(seen):
        if datetime.fromisoformat(seen[other][1]) < now - GONE:
            del seen[other]
    first = now.isoformat() if force or version not in seen else seen[version][0]
    seen[version] = [first, now.isoformat()]
    return max(seen, key=lambda each: seen[each][0]) == version


def _store(found: Mapping[str, Declaration], now: datetime) -> list[str]:
    rows = {row.name: row for row in Schedule.objects.using(alias()).select_for_update().order_by("id")}
    changed = []
    for name, declaration in sorted(found.items()):
        try:
            with atomic():
                if _apply(rows.get(name) or Schedule(name=name), declaration, now):
                    changed.append(name)
        except InvalidTaskData as error:
            _log.error("the schedule %s is declared with an invalid %s: %s", name, error.field, error)
    for name, row in sorted(rows.items()):
        if row.declaration is not None and name not in found:
            _retire(row)
            changed.append(name)
    return changed


def _apply(row: Schedule, declaration: Declaration, now: datetime) -> bool:
    """Give a schedule the declared values, but for those that staff have changed; return whether it changed."""
    fresh = Schedule(name=row.name)
    set_values(fresh, with_options(declaration.values))
    wanted = values_of(fresh)
    is_new = row.pk is None
    before, old = values_of(row), row.declaration
    # A schedule that staff made first keeps all its values, which then show as overridden.
    kept = (
        {}
        if is_new
        else {name: before[name] for name in FIELDS if old is None or before[name] != old.get(name, before[name])}
    )
    after = wanted | kept
    if not is_new and old == wanted and after == before and row.paused_by != BY:
        return False
    row.declaration = wanted
    if row.paused and row.paused_by == BY:
        settle_pause(row, now)
        row.paused, row.paused_at, row.paused_by, row.paused_reason, row.resume_at = False, None, "", "", None
    is_moved = not is_new and any(after[name] != before[name] for name in WHEN)
    if is_moved:
        finish_due(row, now)
    set_values(row, from_json(after))
    if is_new or is_moved:
        plan_ahead(row, now)
    save(row, is_new=is_new)
    return True


def _retire(row: Schedule) -> None:
    row.declaration = None
    if not row.paused:
        row.paused, row.paused_at, row.paused_by, row.paused_reason = True, timezone.now(), BY, NOT_DECLARED
    row.save()


def _text(declaration: Declaration) -> str:
    return json.dumps(to_json(declaration.values), sort_keys=True, default=str)


@receiver(post_migrate, dispatch_uid="queue_app.migrated")
def migrated(app_config: AppConfig, using: str, **_: Any) -> None:
    """Store the schedules that the code declares, once the tables are there."""
    is_ours = app_config.name == "queue_app" and using == alias()
    if is_ours and are_installed():
        synchronise()


# Take over the periodic tasks of Celery beat: from ``CELERY_BEAT_SCHEDULE`` and from django-celery-beat's tables.
#
# A task keeps its name, so the project must have a task of this queue under that name. What cannot be taken over is
# reported, never left out silently.


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
