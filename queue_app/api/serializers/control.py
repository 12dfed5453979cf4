"""What requests about queues, policies, limits, pauses, events and health may hold."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final

from django.db import models

from queue_app.api.serializers import kinds
from queue_app.api.serializers.base import Body, Field, Query
from queue_app.api.serializers.rules import Rule, a_change
from queue_app.core.events import EventName, is_entry_id
from queue_app.exceptions import InvalidTaskData
from queue_app.models import Limit, PriorityPolicy, Queue, RuntimeSettings
from queue_app.models.fields import TYPE_LENGTH, USER_LENGTH
from queue_app.models.limits import SCOPES
from queue_app.services.control import pause
from queue_app.services.control.limits import PACE
from queue_app.services.control.queues import OVERALL_FIELDS, POLICY_FIELDS, QUEUE_FIELDS
from queue_app.services.read.stats import TARGET_SECONDS

MAX_SLOTS: Final = 1000
MAX_SECONDS: Final = 86_400
ENTRY: Final = r"^[0-9]{1,19}(-[0-9]{1,19})?$"


def columns(model: type[models.Model], names: Iterable[str]) -> dict[str, Any]:
    """Return the fields of a model's columns, to declare a serializer with ``type``."""
    return {name: kinds.column(model, name) for name in names}


class Edit(Body):
    """A change of at least one field."""

    rules = (a_change(),)


def edit(
    name: str, model: type[models.Model], names: Iterable[str], base: type[Body] = Edit, /, **more: Any
) -> type[Body]:
    """Return a serializer with the fields of a model's columns, and more."""
    return type(name, (base,), columns(model, names) | more)


QueueEdit: Final = edit("QueueEdit", Queue, QUEUE_FIELDS, answers=("Queue",), example={"max_concurrent": 10})
PolicyEdit: Final = edit("PolicyEdit", PriorityPolicy, POLICY_FIELDS, answers=("Policy",), example={"max_retries": 5})
LimitEdit: Final = edit(
    "LimitEdit", Limit, PACE, Body, answers=("Limit",), example={"rate_count": 100, "rate_seconds": 60}
)
NewLimit: Final = edit(
    "NewLimit", Limit, PACE, Body, answers=("Limit",), scope=kinds.word(SCOPES, required=True),
    name=kinds.text(TYPE_LENGTH, required=True), example={"scope": "key", "name": "customer", "max_concurrent": 2},
)  # fmt: skip
OverallEdit: Final = edit(
    "OverallEdit", RuntimeSettings, OVERALL_FIELDS, answers=("OverallLimits",), rules=(a_change(has_reason=True),),
    reason=kinds.reason(default=""), example={"max_concurrent": 40, "reason": "a new database"},
)  # fmt: skip


def _name_of_scope(values: Mapping[str, Any]) -> InvalidTaskData | None:
    """Demand a name, except for everything."""
    if (values["scope"] == pause.EVERYTHING) != ("name" in values):
        return None
    rule, code = ("takes no name", "conflicting_fields") if "name" in values else ("needs a name", "required")
    return InvalidTaskData("name", f"The scope {values['scope']} {rule}.", code=code)


class Resumption(Body):
    """A task type, a key, or everything."""

    example: ClassVar[Any] = {"scope": "type", "name": "shop.tasks.send_receipt"}
    rules = (
        Rule(
            _name_of_scope,
            {
                "if": {"properties": {"scope": {"const": pause.EVERYTHING}}},
                "then": {"not": {"required": ["name"]}},
                "else": {"required": ["name"]},
            },
        ),
    )
    scope = kinds.word([pause.EVERYTHING, *SCOPES], required=True)
    name = kinds.text(TYPE_LENGTH)


class WithReason(Body):
    example: ClassVar[Any] = {"reason": "the bank is down"}
    reason = kinds.reason(default="")


class PauseUntil(WithReason):
    resume_at = kinds.moment(
        pause.check_resume_at, allow_null=True,
        help_text=f"When the pause ends by itself, at most {pause.MAX_PAUSE.days} days from now. Left out: never.",
    )  # fmt: skip


class Pause(PauseUntil, Resumption):
    example: ClassVar[Any] = Resumption.example | WithReason.example


class Nothing(Body):
    """A body without fields."""


class QueueStatsQuery(Query):
    totals = kinds.flag(default=False, help_text="true: also total_enqueued, total_completed, oldest_enqueued_at.")


class AutoscaleQuery(Query):
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
    queue = kinds.name()
    task_type = kinds.text(TYPE_LENGTH)
    user = kinds.text(USER_LENGTH)
    task = kinds.identifier(source="task_id")
    event = kinds.several(kinds.word(EventName, "unknown_event"), source="names")
    after = Field(entry, {"type": "string", "pattern": ENTRY}, help_text="The last event that the client received.")
