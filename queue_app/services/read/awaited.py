"""Read the signals that a task waits for."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from queue_app.core.ids import Id, parse_id
from queue_app.core.signals import Fields, fields_of
from queue_app.core.states import TERMINAL
from queue_app.sql import signals as rows


@dataclass(frozen=True, slots=True)
class Awaited:
    """A signal that a task waits for."""

    signal: str
    until: datetime | None
    fields: Fields | None  # of the payload; None: any payload


def awaited(task: Id, *, in_workflow: bool = False) -> Sequence[Awaited]:
    """Return the signals that a task waits for: at most one, as a task waits in one step; or those of a workflow's."""
    return [
        Awaited(name, until, None if schema is None else fields_of(json.loads(schema)))
        for name, until, schema, status in rows.awaited(parse_id(task), in_workflow=in_workflow)
        if status not in TERMINAL
    ]
