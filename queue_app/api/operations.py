"""What a request for an action on many tasks asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from queue_app.api.dead_letters import ids_of, options_of, reason_text
from queue_app.api.fields import Reader, switch, text
from queue_app.api.submission import priority
from queue_app.api.task_filters import read_body_filter
from queue_app.exceptions import InvalidTaskData
from queue_app.models.operation import OperationKind
from queue_app.services.operations.request import Action, Options
from queue_app.services.read.task_filter import TaskFilter

ACTIONS: Final = tuple(kind.value for kind in OperationKind)


@dataclass(frozen=True, slots=True)
class BulkAction:
    """What to do to which tasks."""

    action: Action
    wanted: TaskFilter
    options: Options
    reason: str
    dry_run: bool


def parse_action(data: Mapping[str, Any]) -> BulkAction:
    """Return what the body asks for; raise every error in it."""
    reader = Reader(data)
    reader.refuse_others(("action", "priority", "ids", "filter", "rate", "limit", "reason", "dry_run"))
    kind = reader.required("action", _kind, OperationKind.CANCEL)
    band = reader.optional("priority", priority)
    ids = reader.optional("ids", ids_of)
    wanted = reader.optional("filter", lambda value, _: read_body_filter(value))
    if data.get("ids") is not None and data.get("filter") is not None:
        reader.note(InvalidTaskData("filter", "Give ids or filter, not both.", code="conflicting_fields"))
    elif data.get("ids") is None and data.get("filter") is None:
        reader.note(InvalidTaskData("ids", "Give ids, or a filter; an empty filter means all.", code="required"))
    reason = reader.optional("reason", reason_text) or ""
    dry_run = reader.optional("dry_run", switch) or False
    options = options_of(reader, data, Options())
    reader.finish()
    return BulkAction(Action(kind=kind, band=band), wanted or TaskFilter(ids=ids), options, reason, dry_run)


def _kind(value: Any, name: str) -> OperationKind:
    if text(value, name) not in ACTIONS:
        raise InvalidTaskData(
            name, f"{value!r:.60} is no action; there is {', '.join(ACTIONS)}.", code="unknown_action"
        )
    return OperationKind(value)
