"""The search of the task list as one filter, which the list and the actions on all that match share."""

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import reduce
from typing import Any, Final

from django.utils.translation import gettext as _

from queue_app import registry
from queue_app.core.priorities import Band
from queue_app.core.states import Status
from queue_app.models import Worker
from queue_app.models.worker import WorkerStatus
from queue_app.services.read.task_filter import TaskFilter, seeks_hidden
from queue_app.services.read.waits import SEVERE, kinds_that_wait

SEARCH_HELP = (
    "A task id, the beginning of a task type, or a user name. To combine conditions: user:NAME type:NAME error:TEXT"
    " parameters.KEY:VALUE"
)
#: Maximum number of names in the type filter. The search finds the others.
MAX_TYPES: Final = 200
MAX_WORKERS: Final = 200
SINCE: Final = {
    "15m": timedelta(minutes=15),
    "1h": timedelta(hours=1),
    "24h": timedelta(hours=24),
    "7d": timedelta(days=7),
}
ENDED: Final = {"1m": timedelta(minutes=1), **SINCE}
#: The status of the filter that finds all tasks that failed for good; the tile "Failed per minute" counts them.
FAILED_ANY: Final = "failed_any"
#: Reasons of ``services.read.waits`` by which the list can be filtered.
WAIT_CODES: Final = (*sorted(SEVERE), "limit_reached", "no_free_slot", "paused", "rate_limited", "throttled")
_BANDS: Final = {band.label: band for band in Band}
_PARAMETERS = "parameters."
_KINDS = ("user:", "type:", "error:", _PARAMETERS)


class NotAllowed(Exception):
    """The user may not search for this."""


class Ambiguous(Exception):
    """No known task type begins with the term. It may mean a user, or a type that no code knows any more."""


def known_types() -> list[str]:
    """Return the task types that this process or a live worker knows, without a query over the tasks."""
    names = set(registry.known_types())
    live = Worker.objects.filter(status__in=[WorkerStatus.ACTIVE, WorkerStatus.DRAINING])
    for types in live.order_by("-id").values_list("task_types", flat=True)[:MAX_WORKERS]:
        names.update(types)
    return sorted(names)


def statuses_of(name: str) -> tuple[str, ...]:
    """Return the statuses of a choice of the status filter."""
    return (Status.FAILED, Status.DEAD_LETTER) if name == FAILED_ANY else (name,)


def waiting_for(code: str) -> TaskFilter:
    """Return the filter for tasks that wait for a reason now. Raises ``LookupError`` for an unknown one."""
    if code not in WAIT_CODES:
        raise LookupError(code)
    return TaskFilter(statuses=[Status.QUEUED], kinds=kinds_that_wait(code))


def read_term(term: str, *, may_view_payload: bool) -> TaskFilter:
    """Return the filter for a search term.

    Raises ``NotAllowed``, and ``Ambiguous`` for a word that may be a user or a task type. Only users
    who may read parameters and errors can search in them, and no one can find secrets by guessing.
    """
    term = term.strip()
    if not term:
        return TaskFilter()
    try:
        return TaskFilter(ids=[uuid.UUID(term)])
    except ValueError:
        pass
    if not term.startswith(_KINDS):
        types = [name for name in known_types() if name.startswith(term)]
        if not types:
            raise Ambiguous(_("Write user:%(term)s, or type: and the full name of a task type.") % {"term": term})
        return TaskFilter(task_types=types)
    found = TaskFilter()
    for kind, value in _parts(term):
        found = _add(found, kind, value, may_view_payload=may_view_payload)
    if any(seeks_hidden(contained, found.task_types) for group in found.parameters for contained in group):
        raise NotAllowed(_("Hidden values cannot be searched."))
    return found


def _parts(term: str) -> list[tuple[str, str]]:
    """Split a term at the words that name a kind; other words belong to the value before them."""
    parts: list[str] = []
    for word in term.split():
        if word.startswith(_KINDS) and ":" in word:
            parts.append(word)
        else:
            parts[-1:] = [f"{parts[-1]} {word}"] if parts else [word]
    split = [part.partition(":") for part in parts]
    return [(kind, value.strip()) for kind, _separator, value in split]


def _add(found: TaskFilter, kind: str, value: str, *, may_view_payload: bool) -> TaskFilter:
    if kind == "user":
        return replace(found, user=value)
    if kind == "type":
        types = [name for name in known_types() if name.startswith(value)]
        if not types:
            raise Ambiguous(_("No known task type begins with %(value)s.") % {"value": value})
        return replace(found, task_types=types)
    if not may_view_payload:
        raise NotAllowed(_("Searching in parameters and errors needs the permission queue_app.view_payload."))
    if kind == "error":
        return replace(found, error=value)
    keys = kind.removeprefix(_PARAMETERS).split(".")
    return replace(found, parameters=[*found.parameters, [_nested(keys, item) for item in _meanings(value)]])


def _meanings(value: str) -> list[Any]:
    """Return the possible meanings of a value: the text itself, and the JSON number or boolean that it spells."""
    try:
        read = json.loads(value)
    except (ValueError, RecursionError):
        return [value]
    return [value, read] if isinstance(read, bool | int | float) or read is None else [value]


def _nested(keys: list[str], value: Any) -> Any:
    return reduce(lambda inner, key: {key: inner}, reversed(keys), value)


def read_address(data: Mapping[str, str], now: datetime, *, may_view_payload: bool) -> TaskFilter:
    """Return the filter for the parameters of the list's address.

    Raises ``NotAllowed``, ``Ambiguous``, and ``ValueError`` or ``KeyError`` for invalid values.
    """
    found = read_term(data.get("q", ""), may_view_payload=may_view_payload)
    for name, narrow in _NARROW.items():
        if value := data.get(name):
            found = narrow(found, value, now)
    return found


def _waiting(found: TaskFilter, code: str, _now: datetime) -> TaskFilter:
    return replace(found, kinds=waiting_for(code).kinds, statuses=found.statuses or [Status.QUEUED])


#: Parameter of the address -> the filter narrowed by its value, in this order.
_NARROW: Final[Mapping[str, Callable[[TaskFilter, str, datetime], TaskFilter]]] = {
    "status": lambda found, name, _: replace(found, statuses=statuses_of(name)),
    "priority": lambda found, name, _: replace(found, effective_bands=[_BANDS[name]]),
    "queue": lambda found, name, _: replace(found, queues=[name]),
    "task_type": lambda found, name, _: replace(found, task_types=_both(found.task_types, name)),
    "user": lambda found, name, _: replace(found, user=name),
    "concurrency_key": lambda found, name, _: replace(found, concurrency_key=name),
    "worker_id": lambda found, text, _: replace(found, worker_id=uuid.UUID(text)),
    "since": lambda found, name, now: replace(found, created_after=now - SINCE[name]),
    "ended": lambda found, name, now: replace(found, finished_after=now - ENDED[name]),
    "wait": _waiting,
}


def _both(found: Any, task_type: str) -> list[str]:
    """Return the types that both the search and the filter allow; ``[""]``, which matches no task, for none."""
    return [task_type] if not found or task_type in found else [""]
