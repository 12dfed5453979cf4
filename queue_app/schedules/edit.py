"""Create, edit and delete schedules. Every value is checked before anything is stored.

An edit takes effect from the next tick on. It locks the row, so it waits for a tick that is being stored, and the tick
after it goes by the new values.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Unpack

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import IntegrityError
from django.tasks.base import Task

from queue_app import registry
from queue_app.core.options import OF_ROWS
from queue_app.core.priorities import Band, parse_band
from queue_app.core.records import NewTask, TaskSpec
from queue_app.core.recurrence import MIN_EVERY
from queue_app.core.signatures import check_arguments
from queue_app.exceptions import ChangedMeanwhile, InvalidTaskData
from queue_app.models import Schedule
from queue_app.models.fields import NAME_LENGTH
from queue_app.models.schedule import MAX_CATCH_UP, MAX_GRACE, MAX_JITTER
from queue_app.registry import AnyTask
from queue_app.schedules import ScheduleOptions, fields_of
from queue_app.schedules.pause import lock_schedule
from queue_app.schedules.tick import finish_due, next_check, task_of
from queue_app.services.control.limits import translated_errors
from queue_app.services.enqueue.validate import check_aware, check_spec, check_text
from queue_app.sql.database import alias, atomic, clock

#: Options of the task; missing ones are those of the registered task when the schedule is made.
TASK_OPTIONS: Final = ("queue", "priority", *OF_ROWS)
#: What decides when it ticks.
WHEN: Final = ("cron", "every", "anchor", "instants", "zone", "starts_at", "ends_at", "jitter")
#: All fields that a person or a declaration may set.
FIELDS: Final = (
    "task_type", "args", "parameters", "instant_parameter", *TASK_OPTIONS, *WHEN, "grace_seconds", "catch_up",
    "catch_up_limit", "catch_up_seconds", "overlap", "notes",
)  # fmt: skip
_TIMES: Final = ("anchor", "starts_at", "ends_at")


def create_schedule(name: str, values: Mapping[str, Any], *, now: datetime | None = None) -> Schedule:
    """Store a schedule; raise ``InvalidTaskData`` for what is wrong."""
    schedule = Schedule(name=check_text(name, "name", NAME_LENGTH))
    with atomic():
        set_values(schedule, with_options(values))
        plan_ahead(schedule, now or clock())
        save(schedule, is_new=True)
    return schedule


def set_schedule(name: str, task: AnyTask, **options: Unpack[ScheduleOptions]) -> Schedule:
    """Make a schedule of ``task``, or give the schedule of this name exactly these ``options``, those of ``@schedule``.

    The same call again changes nothing. A paused schedule stays paused. Raises ``InvalidTaskData`` for what is wrong,
    and for the name of a schedule that the code declares.
    """
    if not isinstance(task, Task):
        raise InvalidTaskData("task", f"task must be a function with @task above it, not {type(task).__name__}.")
    values = {"zone": settings.TIME_ZONE, "task_type": registry.type_of(task)} | fields_of(options)
    fresh = Schedule(name=name)
    set_values(fresh, with_options(values))
    wanted, rows = values_of(fresh), Schedule.objects.using(alias())
    with atomic():
        if not rows.filter(name=name).exists():
            try:
                with atomic():
                    return create_schedule(name, values)
            except InvalidTaskData:
                if not rows.filter(name=name).exists():  # else another process made it a moment ago
                    raise
        schedule = lock_schedule(name)
        if schedule.declaration is not None:
            message = "The code declares a schedule of this name: change it there, or choose another name."
            raise InvalidTaskData("name", message)
        known = values_of(schedule)
        changes = {field: getattr(fresh, field) for field in FIELDS if wanted[field] != known[field]}
        return update_schedule(name, changes) if changes else schedule


def update_schedule(
    name: str, changes: Mapping[str, Any], *, version: str | None = None, now: datetime | None = None
) -> Schedule:
    """Change a schedule; with ``version``, only if the schedule still has this version.

    Raises ``ScheduleNotFound``, ``ChangedMeanwhile``, and ``InvalidTaskData`` for what is wrong.
    """
    with atomic():
        schedule = lock_schedule(name)
        if version is not None and version_of(schedule) != version:
            raise ChangedMeanwhile("The schedule was changed by someone else; read it again and repeat your change.")
        if any(field in changes for field in WHEN):
            now = now or clock()
            finish_due(schedule, now)
            set_values(schedule, changes)
            plan_ahead(schedule, now)
        else:
            set_values(schedule, changes)
        save(schedule)
    return schedule


def give_back(name: str, *, now: datetime | None = None) -> Schedule:
    """Undo what staff changed of a declared schedule; raise ``ScheduleNotFound``, or ``InvalidTaskData``."""
    with atomic():
        schedule = lock_schedule(name)
        if schedule.declaration is None:
            raise InvalidTaskData("name", "This schedule is not declared in the code, so there is nothing to undo.")
        now = now or clock()
        finish_due(schedule, now)
        set_values(schedule, from_json(schedule.declaration))
        plan_ahead(schedule, now)
        save(schedule)
    return schedule


def delete_schedule(name: str) -> Schedule:
    """Delete a schedule with its history and return it; raise ``ScheduleNotFound``.

    A schedule that is declared in the code would come back, so it can only be paused.
    """
    with atomic():
        schedule = lock_schedule(name)
        if schedule.declaration is not None:
            raise InvalidTaskData("name", "This schedule is declared in the code: delete it there, or pause it here.")
        Schedule.objects.using(alias()).filter(pk=schedule.pk).delete()
    return schedule


adelete_schedule = sync_to_async(delete_schedule)
aset_schedule = sync_to_async(set_schedule)


def with_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with the options that the registered task has for those that are missing."""
    given = dict(values)
    task_type = given.get("task_type")
    if not isinstance(task_type, str):
        raise InvalidTaskData("task_type", "A schedule needs a task_type.", code="required")
    options = {name: given[name] for name in TASK_OPTIONS if name in given}
    if options.get("priority") is not None:
        given_band = options["priority"]
        options["priority"] = Band(given_band) if type(given_band) is int else parse_band(given_band)
    spec = check_spec(NewTask(task_type=task_type, **options), registry.get_for_caller(task_type))
    return given | options_of(spec)


def options_of(spec: TaskSpec) -> dict[str, Any]:
    """Return the options of a checked task as the columns of a schedule."""
    return {name: getattr(spec, name) for name in TASK_OPTIONS} | {"capabilities": list(spec.capabilities)}


def set_values(schedule: Schedule, values: Mapping[str, Any]) -> None:
    """Set the fields of a schedule and check them together; raise ``InvalidTaskData``."""
    for field, value in values.items():
        if field not in FIELDS:
            raise InvalidTaskData(field, f"A schedule has no field {field!r}.", code="unknown_field")
        if value is not None and field in _TIMES:
            check_aware(value, field)
        setattr(schedule, field, [each.isoformat() for each in times(value or [])] if field == "instants" else value)
    schedule.recurrence.check()
    _check_jitter(schedule)
    _check_grace(schedule)
    if type(schedule.notes) is str and any(each == "\0" or "\ud800" <= each <= "\udfff" for each in schedule.notes):
        raise InvalidTaskData("notes", "notes contains characters that cannot be stored.", code="invalid_characters")
    if type(schedule.args) not in (list, tuple):
        raise InvalidTaskData("args", "args must be a list.", code="list_expected")
    if not isinstance(schedule.parameters, dict):
        raise InvalidTaskData("parameters", "parameters must be an object with string keys.", code="object_expected")
    task = registry.get_for_caller(schedule.task_type)
    _check_signature(task, schedule)
    task_of(schedule, datetime.now(UTC))


def problem_of(values: Mapping[str, Any]) -> InvalidTaskData | None:
    """Return what is wrong with the values of a schedule; asks no database."""
    try:
        check_values(with_options(values), is_new=False)
    except InvalidTaskData as error:
        return error
    return None


def check_values(values: Mapping[str, Any], *, is_new: bool) -> None:
    """Raise ``InvalidTaskData`` for values that a schedule cannot have, or with which a new one would never tick."""
    schedule = Schedule(name="checked")
    set_values(schedule, values)
    if is_new:
        plan_ahead(schedule, datetime.now(UTC))


def times(values: Sequence[Any]) -> list[datetime]:
    """Return the times of ``instants``, which may be text; raise ``InvalidTaskData``."""
    try:
        found = [value if isinstance(value, datetime) else datetime.fromisoformat(value) for value in values]
    except (TypeError, ValueError):
        message = 'instants must be a list of times such as "2030-01-31T08:00:00+01:00".'
        raise InvalidTaskData("instants", message, code="datetime_expected") from None
    return [check_aware(value, "instants") for value in found]


def plan_ahead(schedule: Schedule, now: datetime) -> None:
    """Set the next tick after ``now``; raise ``InvalidTaskData`` if there is none."""
    schedule.next_instant = schedule.recurrence.after(now)
    schedule.due_at = next_check(schedule, schedule.next_instant)
    if schedule.held_instant is not None:
        schedule.due_at = now
    if schedule.next_instant is None:
        field = "instants" if schedule.instants else "ends_at"
        raise InvalidTaskData(
            field, "The schedule would never tick: all its times are in the past.", code="out_of_range"
        )


def save(schedule: Schedule, *, is_new: bool = False) -> None:
    """Store a checked schedule; raise ``InvalidTaskData`` for what the table refuses."""
    with translated_errors():
        schedule.full_clean()
        try:
            with atomic():
                schedule.save(using=alias(), force_insert=is_new)
        except IntegrityError:  # another process stored a schedule of the same name a moment ago
            schedule.full_clean()
            raise


def to_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a schedule as JSON holds them."""
    return {
        name: value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value
        for name, value in values.items()
    }


def from_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``to_json`` was given."""
    times = {name: datetime.fromisoformat(values[name]) for name in _TIMES if values.get(name)}
    return dict(values) | times


def values_of(schedule: Schedule) -> dict[str, Any]:
    """Return the fields of a schedule as JSON holds them."""
    return to_json({name: getattr(schedule, name) for name in FIELDS})


def version_of(schedule: Schedule) -> str:
    """Return a short text that differs once a person has changed the schedule; its ticks do not count."""
    pause = [schedule.paused, schedule.paused_by, schedule.paused_reason, str(schedule.resume_at)]
    text = json.dumps([schedule.pk, values_of(schedule), pause], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def without_payload(schedule: Schedule) -> dict[str, Any]:
    """Return the fields for the audit log, whose readers may not be allowed to read parameters."""
    return {name: value for name, value in values_of(schedule).items() if name not in {"args", "parameters"}}


def overridden(schedule: Schedule) -> list[str]:
    """Return the fields that staff have changed of a declared schedule."""
    declared = schedule.declaration or {}
    now = values_of(schedule)
    return [name for name in FIELDS if name in declared and declared[name] != now[name]]


def _check_jitter(schedule: Schedule) -> None:
    """Refuse a jitter by which a tick could come after the next one, which would wait for it and count as missed."""
    if schedule.jitter and type(schedule.jitter) in (int, float):
        longest = min(schedule.recurrence.shortest_gap, MAX_JITTER)
        if not schedule.jitter <= longest:  # not a number, too
            message = f"jitter must be at most {longest:g}, and never more than the seconds between two ticks."
            raise InvalidTaskData("jitter", message, code="out_of_range")


def _check_grace(schedule: Schedule) -> None:
    """Refuse a grace by which too many late ticks would run at once."""
    if type(schedule.grace_seconds) in (int, float) and not schedule.grace_seconds <= MAX_CATCH_UP * MIN_EVERY:
        longest = min(schedule.recurrence.shortest_gap * MAX_CATCH_UP, MAX_GRACE)
        if not schedule.grace_seconds <= longest:  # not a number, too
            message = f"grace_seconds must be at most {longest:g}: no more than {MAX_CATCH_UP} ticks may run late."
            raise InvalidTaskData("grace_seconds", message, code="out_of_range")


def _check_signature(task: AnyTask, schedule: Schedule) -> None:
    """Refuse arguments that the function does not take."""
    names = dict(schedule.parameters)
    if schedule.instant_parameter:
        if schedule.instant_parameter in names:
            message = f"{schedule.instant_parameter!r} is both a parameter and the instant_parameter."
            raise InvalidTaskData("instant_parameter", message)
        names[schedule.instant_parameter] = ""
    check_arguments(task, schedule.args, names)
