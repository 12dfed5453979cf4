"""What requests about queues, policies, limits, pauses, events and health may hold."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final

from django.db import models

from queue_app.api import representation
from queue_app.api.serializers import kinds
from queue_app.api.serializers.base import Body, Field, Query, Schema
from queue_app.core.events import EventName, is_entry_id
from queue_app.exceptions import InvalidTaskData
from queue_app.models import Limit, PriorityPolicy, Queue, RuntimeSettings
from queue_app.models.columns import TYPE_LENGTH, USER_LENGTH
from queue_app.models.limit import SCOPES
from queue_app.services.control import pause
from queue_app.services.control.apply import OVERALL_FIELDS
from queue_app.services.control.limits import PACE
from queue_app.services.control.queues import POLICY_FIELDS, QUEUE_FIELDS
from queue_app.services.read.autoscale import TARGET_SECONDS

MAX_SLOTS: Final = 1000
MAX_SECONDS: Final = 86_400
ENTRY: Final = r"^[0-9]{1,19}(-[0-9]{1,19})?$"
_SET_BY_THE_QUEUE: Final = (
    "name", "priority", "paused", "paused_at", "paused_by", "paused_reason", "throttled_until", "created_at",
    "current_concurrent", "updated_at",
)  # fmt: skip


def columns(model: type[models.Model], names: Iterable[str]) -> dict[str, Any]:
    """Return the fields of a model's columns, to declare a serializer with ``type``."""
    return {name: kinds.column(model, name) for name in names}


class Edit(Body):
    """A change of at least one field."""

    rules: ClassVar[Schema] = {"minProperties": 1}
    read_only_names = _SET_BY_THE_QUEUE

    def conflicts(self, values: Mapping[str, Any]) -> Iterator[InvalidTaskData]:
        """Demand a change."""
        if not set(values) - {"reason"}:
            yield InvalidTaskData("body", "Name at least one field to change.", code="body_required")


class _LimitEdit(Body):
    read_only_names = ("id", "scope", *representation.PAUSE.names, "current_concurrent", "updated_at")


QueueEdit: Final[type[Body]] = type("QueueEdit", (Edit,), columns(Queue, QUEUE_FIELDS))
PolicyEdit: Final[type[Body]] = type("PolicyEdit", (Edit,), columns(PriorityPolicy, POLICY_FIELDS))
LimitEdit: Final[type[Body]] = type(
    "LimitEdit", (_LimitEdit,), {"read_only_names": (*_LimitEdit.read_only_names, "name"), **columns(Limit, PACE)}
)
NewLimit: Final[type[Body]] = type(
    "NewLimit",
    (_LimitEdit,),
    {
        "scope": kinds.word(SCOPES, required=True),
        "name": kinds.text(TYPE_LENGTH, required=True),
        **columns(Limit, PACE),
    },
)


OverallEdit: Final[type[Body]] = type(
    "OverallEdit",
    (Edit,),
    {
        "rules": {"anyOf": [{"required": [name]} for name in OVERALL_FIELDS]},
        **columns(RuntimeSettings, OVERALL_FIELDS),
        "reason": kinds.reason(default=""),
    },
)


class Resumption(Body):
    """A task type, a key, or everything."""

    rules: ClassVar[Schema] = {
        "oneOf": [
            {"properties": {"scope": {"const": pause.EVERYTHING}, "name": False}},
            {"properties": {"scope": {"enum": [str(scope) for scope in SCOPES]}}, "required": ["name"]},
        ]
    }
    scope = kinds.word([pause.EVERYTHING, *SCOPES], required=True)
    name = kinds.text(TYPE_LENGTH)

    def conflicts(self, values: Mapping[str, Any]) -> Iterator[InvalidTaskData]:
        """Demand a name, except for everything."""
        if (values["scope"] == pause.EVERYTHING) == ("name" in values):
            rule, code = ("takes no name", "conflicting_fields") if "name" in values else ("needs a name", "required")
            yield InvalidTaskData("name", f"The scope {values['scope']} {rule}.", code=code)


class QueuePause(Body):
    """Why a queue is paused, and until when."""

    reason = kinds.reason(default="")
    resume_at = kinds.moment(pause.check_resume_at, allow_null=True)


class Pause(QueuePause, Resumption):
    """What to pause, why, and until when."""


class Nothing(Body):
    """A body without fields."""


class QueueStatsQuery(Query):
    """Whether to count all tasks that a queue ever stored."""

    totals = kinds.flag(default=False, help_text="true: also total_enqueued, total_completed, oldest_enqueued_at.")


class AutoscaleQuery(Query):
    """The workers that an autoscaler starts, and its aim."""

    slots = kinds.whole(1, MAX_SLOTS, help_text="Number of slots of one worker.")
    seconds = kinds.whole(
        1, MAX_SECONDS, default=int(TARGET_SECONDS), help_text="Time in which the tasks should be finished."
    )


def entry(value: Any, name: str) -> str:
    """Accept the id of an event."""
    if not isinstance(value, str) or not is_entry_id(value):
        raise InvalidTaskData(name, f"{name} must be the id of an event, like 1700000000000-0.", code="invalid_id")
    return value


class EventQuery(Query):
    """Which events to stream, and after which one."""

    queue = kinds.name()
    task_type = kinds.text(TYPE_LENGTH)
    user = kinds.text(USER_LENGTH)
    task = kinds.identifier(source="task_id")
    event = kinds.several(kinds.word(EventName, "unknown_event"), source="names")
    after = Field(entry, {"type": "string", "pattern": ENTRY}, help_text="The last event that the client received.")
