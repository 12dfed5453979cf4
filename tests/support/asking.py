"""Short words for tests of the request stream: ask as another service does, and read the answers."""

from __future__ import annotations

import itertools
from typing import Any

from django.tasks import task

from queue_app import registry
from queue_app.core.events import Event
from queue_app.index import Index, get_index
from queue_app.services.notify import events
from tests.support.engine import redis_client


@task(queue_name="default")
def plain(**parameters: Any) -> Any:
    """Return what it was called with."""
    return parameters


TYPE = registry.type_of(plain)


_numbers = itertools.count()


def ask(**fields: Any) -> str:
    """Write a request as another service does; ``None`` leaves a field out. Return the id of the entry."""
    asked = {"event": "ExecutionRequested", "request_id": f"r{next(_numbers)}", "task_type": TYPE} | fields
    written = {name: value for name, value in asked.items() if value is not None}
    return redis_client().xadd(get_index().keys.requests, written).decode()


def answers() -> list[Event]:
    """Return what was said of requests, the first at first."""
    return [
        event
        for event in events.read(events.FROM_THE_BEGINNING, count=1000)[0]
        if event.name in ("Accepted", "Rejected")
    ]


def answer() -> Event:
    """Return the only answer."""
    [only] = answers()
    return only


def aside(index: Index) -> list[dict[str, Any]]:
    """Return what was set aside."""
    return [
        {name.decode(errors="replace"): value for name, value in fields.items()}
        for _, fields in redis_client().xrange(index.keys.poison)
    ]
