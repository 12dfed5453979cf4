"""What requests about schedules may hold, and what answers hold."""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from queue_app.api.access import may_view_payload
from queue_app.api.answers import BAND, FLAG, STATUS, TEXT, Shape, answer, listed, maybe, page
from queue_app.api.representation import ARGS, NEXT_BEFORE, PAUSE, PREVIEW, SOURCES
from queue_app.api.serializers import kinds
from queue_app.api.serializers.base import Body, Field, ListOf, Query
from queue_app.api.serializers.control import Edit, WithReason, columns
from queue_app.api.serializers.kinds import OBJECT, TIME, UUID
from queue_app.api.serializers.tasks import FORMER_PAGE, Submission, cursor, page_size
from queue_app.core.options import API_NAMES, Door
from queue_app.core.parsing import timestamp
from queue_app.core.priorities import Band
from queue_app.core.recurrence import MAX_INSTANTS
from queue_app.encryption.displayed import displayed_payload
from queue_app.models import Schedule, ScheduleTick
from queue_app.models.fields import NAME_LENGTH, TYPE_LENGTH
from queue_app.schedules.edit import FIELDS, overridden
from queue_app.services.operations.request import MAX_RATE, MIN_RATE

MAX_ARGS: Final = 100
_FIELDS: Final[Mapping[str, Any]] = {
    "answers": ("Schedule",),
    "aliases": Submission.aliases,
    "args": ListOf(Field(lambda value, _name: value, {}), MAX_ARGS),
    "parameters": kinds.payload_object(),
    "instant_parameter": kinds.text(NAME_LENGTH, 0),
    "queue": kinds.name(),
    "priority": kinds.band(),
    **kinds.options_at(Door.SCHEDULE, nullable=False),
    "cron": kinds.text(100, 0, help_text='Five fields, or six with seconds first, or a name such as "@daily".'),
    "instants": ListOf(kinds.moment(), MAX_INSTANTS, into=lambda items: [item.isoformat() for item in items]),
    "zone": kinds.text(64),
    **columns(
        Schedule,
        (
            "notes", "every", "anchor", "starts_at", "ends_at", "jitter", "grace_seconds", "catch_up",
            "catch_up_limit", "catch_up_seconds", "overlap",
        ),
    ),
}  # fmt: skip


class ScheduleEdit(Edit):
    vars().update(_FIELDS)
    example: ClassVar[Any] = {"cron": "30 3 * * *"}
    task_type = kinds.text(TYPE_LENGTH)


class NewSchedule(Body):
    vars().update(_FIELDS)
    example: ClassVar[Any] = {
        "name": "nightly", "task_type": "shop.tasks.report", "cron": "0 3 * * *", "zone": "Europe/Berlin",
    }  # fmt: skip
    name = kinds.text(NAME_LENGTH, required=True)
    task_type = kinds.text(TYPE_LENGTH, required=True)


class Backfill(WithReason):
    example: ClassVar[Any] = {"start": "2026-01-01T00:00:00Z", "end": "2026-01-08T00:00:00Z", "dry_run": True}
    start = kinds.moment(required=True, help_text="The first instant.")
    end = kinds.moment(required=True, help_text="The end of the range, which is not filled itself.")
    rate = kinds.number(MIN_RATE, MAX_RATE, allow_null=True, help_text="Tasks per second; null: as fast as possible.")
    dry_run = kinds.flag(default=False)


class TickQuery(Query):
    aliases: ClassVar[Mapping[str, str]] = FORMER_PAGE
    page_size = page_size()
    cursor = cursor(timestamp)


# Answers.

SCHEDULE: Final = Shape(
    Schedule, "id", "name", "words", "next_instant", "declared", *(API_NAMES.get(name, name) for name in FIELDS),
    *PAUSE.names, words=("recurrence.words", TEXT), declared=("is_declared", FLAG), priority=BAND, args=maybe(ARGS),
    parameters=maybe(OBJECT), instants=listed(TIME), **SOURCES,
)  # fmt: skip
answer("Schedule", SCHEDULE.schemas | {"overridden": listed(TEXT)})
tick: Final = Shape(
    ScheduleTick, "instant", "kind", "at", "late_seconds", "task_id", "reason", "first_instant", "count",
    "run_seconds",
)  # fmt: skip
answer("Tick", tick.schemas | {"status": maybe(STATUS)})
page("Schedule")
page("Tick", next_before=NEXT_BEFORE)
answer("BackfillPreview", PREVIEW | {"sample": listed(TIME)})
answer("StartedTick", {"id": UUID, "task_id": UUID, "instant": TIME})


def schedule(found: Schedule, user: Any) -> dict[str, Any]:
    """Return a schedule; its parameters are null for those who may not read the payloads of its user's tasks."""
    visible = may_view_payload(user, found.user)
    _secrets, args, parameters = displayed_payload(found.task_type, found, hide_encrypted=True)
    return SCHEDULE(found) | {
        "priority": Band(found.priority).label,
        "args": args if visible else None,
        "parameters": parameters if visible else None,
        "overridden": [API_NAMES.get(name, name) for name in overridden(found)],
    }
