"""List, add, pause, resume, run, backfill or delete schedules; store the declared ones; import Celery beat's."""

from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from typing import Any, Final

from django.utils import timezone

from queue_app.core.options import OF_ROWS, Door
from queue_app.core.priorities import parse_band
from queue_app.exceptions import InvalidTaskData, ScheduleNotFound
from queue_app.management.verbs import OK, REFUSED, Call, Needs, add_by_and_json
from queue_app.management.verbs._values import add_options, duration, format_table, instant, json_object, parameter
from queue_app.models import Schedule
from queue_app.schedules import edit
from queue_app.schedules.backfill import preview_backfill, run_schedule, start_backfill
from queue_app.schedules.declare import find_entries, import_entries, synchronise
from queue_app.schedules.pause import pause_schedule, resume_schedule
from queue_app.schedules.tick import RecentTick, recent
from queue_app.services.operations.request import OperationOptions
from queue_app.sql.database import alias, atomic

EXAMPLE = 'taskqueue schedule add nightly shop.tasks.report --cron "0 3 * * *" --zone Europe/Berlin --param days=1'
NEEDS = Needs.DATABASE | Needs.TASKS
#: Options of ``add`` that are passed on unchanged.
PLAIN: Final = (
    "cron", "every", "zone", "queue", *OF_ROWS, "starts_at", "ends_at", "jitter", "overlap", "grace_seconds",
    "catch_up", "instant_parameter", "notes",
)  # fmt: skip


def add_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("action", choices=tuple(_ACTIONS))
    add("name", nargs="?", default="", help="name of the schedule; not for list, sync and import-beat")
    add("task_type", nargs="?", metavar="TASK", help="add: name of a registered task, as in the admin")
    add("--cron", metavar="FIELDS", help='add: such as "*/15 8-18 * * MON-FRI", or @daily')
    add("--every", type=float, metavar="SECONDS", help="add: instead of --cron")
    add("--at", action="append", type=instant, metavar="TIME", help="add: instead of --cron; repeatable")
    add("--zone", help="add: time zone of --cron; default: TIME_ZONE of the project")
    add("--param", action="append", default=[], type=parameter, metavar="NAME=VALUE", help="add: a text parameter")
    add("--json-params", type=json_object, default={}, metavar="OBJECT", help="add: parameters as JSON")
    add("--instant-parameter", metavar="NAME", help="add: parameter that gets the tick's instant as text")
    add("--queue", help="add: default: the task's queue")
    add("--priority", help="add: critical, high, normal, low or background; default: the task's priority")
    add_options(parser, Door.SCHEDULE, "add: ")
    add("--jitter", type=float, metavar="SECONDS", help="add: delay each tick by a random time up to this")
    add("--overlap", help="add: allow, skip, queue_one or cancel_previous; default: allow")
    add("--grace", dest="grace_seconds", type=float, metavar="SECONDS", help="add: later ticks are missed; default: 60")
    add("--catch-up", help="add: missed ticks: skip, last or all; default: last")
    add("--starts-at", type=instant, metavar="TIME", help="add: no tick before this time")
    add("--ends-at", type=instant, metavar="TIME", help="add: no tick at this time or later")
    add("--notes", help="add: text for people")
    add("--from", dest="start", type=instant, metavar="TIME", help="backfill: start of the range")
    add("--to", dest="end", type=instant, metavar="TIME", help="backfill: end of the range, excluded")
    add("--rate", type=float, metavar="N", help="backfill: tasks per second; default: as fast as possible")
    add("--dry-run", action="store_true", help="backfill, import-beat: change nothing")
    add("--reason", default="", metavar="TEXT", help="pause, run, backfill, delete: why; shown in the admin")
    add("--for", dest="length", type=duration, metavar="TIME", help="pause: resume by itself after 90s, 15m, 2h, 1d")
    add_by_and_json(parser)


def run(call: Call) -> int:
    """Carry the action out, and record it in the audit log."""
    if not call["name"] and call["action"] not in {"list", "sync", "import-beat"}:
        raise InvalidTaskData("name", f"schedule {call['action']} needs the name of a schedule.", code="required")
    return _ACTIONS[call["action"]](call)


def _list(call: Call) -> int:
    schedules = list(Schedule.objects.using(alias()))
    ticks = recent(schedules, 1)
    rows = [["NAME", "WHEN", "NEXT", "LAST", "TASK"]]
    rows += [_row(schedule, ticks[schedule.pk]) for schedule in schedules]
    text = "\n".join(format_table(rows)) if schedules else "no schedules"
    return call.answer(text, [_as_dict(schedule) for schedule in schedules])


def _row(schedule: Schedule, ticks: list[RecentTick]) -> list[str]:
    if schedule.paused:
        coming = f"paused by {schedule.paused_by}" if schedule.paused_by else "paused"
    elif schedule.next_instant is None:
        coming = "ended"
    else:
        coming = f"{timezone.localtime(schedule.next_instant):%Y-%m-%d %H:%M:%S}"
    last = (ticks[0].status or "skipped").replace("_", " ") if ticks else "-"
    return [schedule.name, schedule.recurrence.words, coming, last, schedule.task_type]


def _add(call: Call) -> int:
    values = {name: call[name] for name in PLAIN if call[name] is not None}
    values |= {"task_type": call["task_type"], "parameters": call["json_params"] | dict(call["param"])}
    if call["at"]:
        values["instants"] = [each.isoformat() for each in call["at"]]
    if call["priority"] is not None:
        values["priority"] = parse_band(call["priority"])
    values.setdefault("zone", timezone.get_default_timezone_name())
    with atomic():
        schedule = edit.create_schedule(call["name"], values)
        call.record("add", "schedule", [schedule.name], after=edit.without_payload(schedule), reason=call["reason"])
    coming = f"{schedule.next_instant:%Y-%m-%d %H:%M:%S %Z}"
    return call.answer(
        f"{schedule.name}: {schedule.recurrence.words}; the next tick is at {coming}", _as_dict(schedule)
    )


def _pause(call: Call) -> int:
    until = None if call["length"] is None else timezone.now() + call["length"]
    with atomic():
        schedule = pause_schedule(call["name"], by=call.by, reason=call["reason"], resume_at=until)
        call.record("pause", "schedule", [schedule.name], reason=call["reason"])
    end = f" until {until:%Y-%m-%d %H:%M:%S %Z}" if until else ""
    return call.answer(f"the schedule {schedule.name} is paused by {schedule.paused_by}{end}", _as_dict(schedule))


def _resume(call: Call) -> int:
    with atomic():
        schedule = resume_schedule(call["name"])
        call.record("resume", "schedule", [schedule.name], reason=call["reason"])
    return call.answer(f"the schedule {schedule.name} is resumed", _as_dict(schedule))


def _run(call: Call) -> int:
    with atomic():
        tick = run_schedule(call["name"], by=call.by)
        call.record("run", "schedule", [call["name"]], after={"task": str(tick.task_id)}, reason=call["reason"])
    return call.answer(str(tick.task_id), {"task_id": tick.task_id, "instant": tick.instant})


def _backfill(call: Call) -> int:
    start, end = call["start"], call["end"]
    if start is None or end is None:
        raise InvalidTaskData("from", "schedule backfill needs --from and --to.", code="required")
    if call["dry_run"]:
        schedule = Schedule.objects.using(alias()).filter(name=call["name"]).first()
        if schedule is None:
            raise ScheduleNotFound(f"There is no schedule {call['name']!r}.")
        instants = preview_backfill(schedule, start, end)
        shown = ", ".join(f"{each:%Y-%m-%d %H:%M:%S}" for each in instants[:3]) + (", …" if len(instants) > 3 else "")  # noqa: PLR2004
        return call.answer(f"{len(instants)} tasks would be enqueued: {shown}", {"total": len(instants)})
    with atomic():
        operation = start_backfill(
            call["name"], start, end, OperationOptions(rate=call["rate"]), by=call.by, reason=call["reason"]
        )
        call.record("backfill", "schedule", [call["name"]], after=operation.filter, reason=call["reason"])
    text = f"{operation.id}: a scheduler will enqueue {operation.total} tasks"
    return call.answer(text, {"operation_id": operation.id, "total": operation.total})


def _delete(call: Call) -> int:
    with atomic():
        schedule = edit.delete_schedule(call["name"])
        call.record("delete", "schedule", [schedule.name], before=edit.without_payload(schedule), reason=call["reason"])
    return call.answer(f"the schedule {schedule.name} is deleted", {"name": schedule.name})


def _sync(call: Call) -> int:
    changed = synchronise(force=True)
    return call.answer(f"stored: {', '.join(changed)}" if changed else "nothing has changed", {"changed": changed})


def _import_beat(call: Call) -> int:
    imported, refused = import_entries(find_entries(), dry_run=call["dry_run"])
    if imported and not call["dry_run"]:
        call.record("import", "schedule", imported)
    lines = [f"{'would import' if call['dry_run'] else 'imported'} {name}" for name in imported]
    lines += [f"cannot import {name}: {why}" for name, why in refused.items()]
    nothing = "there is nothing to import: neither CELERY_BEAT_SCHEDULE nor django-celery-beat has an entry"
    call.answer("\n".join(lines) or nothing, {"imported": imported, "refused": refused})
    return REFUSED if refused else OK


def _as_dict(schedule: Schedule) -> Mapping[str, Any]:
    state = {"name": schedule.name, "words": schedule.recurrence.words, "next_instant": schedule.next_instant}
    pause = {"paused": schedule.paused, "paused_by": schedule.paused_by, "paused_reason": schedule.paused_reason}
    return state | pause | edit.values_of(schedule)


_ACTIONS: Final[dict[str, Callable[[Call], int]]] = {
    "list": _list,
    "add": _add,
    "pause": _pause,
    "resume": _resume,
    "run": _run,
    "backfill": _backfill,
    "delete": _delete,
    "sync": _sync,
    "import-beat": _import_beat,
}
