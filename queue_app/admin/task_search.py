"""The search of the task list as one filter, which the list and the actions on all that match share."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import reduce
from typing import Any, Final

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy

from queue_app.core.options import FILTERS
from queue_app.core.priorities import Band
from queue_app.core.states import Status
from queue_app.dashboard import labels
from queue_app.diagnose.waits import kinds_that_wait, wait_codes
from queue_app.encryption import check_search
from queue_app.exceptions import InvalidTaskData
from queue_app.models import Worker, Workflow
from queue_app.services.read.search import find, known_types, meanings, named, workflows_named
from queue_app.services.read.task_filter import TaskFilter, seeks_hidden

SEARCH_HELP = _lazy(
    "What you see of a task: its short id, part of its type, its queue, worker, user, schedule, workflow, words of its"
    " error, the value of a parameter. To combine conditions: type: queue: worker: user: key: schedule: workflow:"
    " error: parameters.KEY:VALUE"
)
#: Maximum number of names in the type filter. The search finds the others.
MAX_TYPES: Final = 200
MAX_WORKERS: Final = 200
MAX_WORKFLOWS: Final = 200
SINCE: Final = {
    "15m": timedelta(minutes=15),
    "1h": timedelta(hours=1),
    "24h": timedelta(hours=24),
    "7d": timedelta(days=7),
}
ENDED: Final = {"1m": timedelta(minutes=1), **SINCE}
#: The status of the filter that finds all tasks that failed for good; the tile "Failed per minute" counts them.
FAILED_ANY: Final = "failed_any"
_STATUSES: Final = {FAILED_ANY: (Status.FAILED, Status.DEAD_LETTER)}
BANDS: Final = {band.label: band for band in Band}
_PARAMETERS = "parameters."
_KINDS = ("user:", "type:", "queue:", "worker:", "key:", "schedule:", "workflow:", "error:", _PARAMETERS)


class NotAllowed(Exception):
    """The user may not search for this."""


def read_term(term: str, *, may_view_payload: bool) -> tuple[TaskFilter, list[str]]:
    """Return the filter for a search term, and what the page says about the search.

    Raises ``NotAllowed``. Only users who may read parameters and errors can search in them, and no one can find secrets
    by guessing.
    """
    term = term.strip()
    if not term:
        return TaskFilter(), []
    if meant_id := labels.id_of(term):
        of_workflow = Workflow.objects.filter(pk=meant_id).exists()
        return TaskFilter(workflow_ids=[meant_id]) if of_workflow else TaskFilter(ids=[meant_id]), []
    found, notes = TaskFilter(), list[str]()
    for kind, value in _parts(term):
        if kind:
            found = _add(found, kind, value, may_view_payload=may_view_payload)
        else:
            meant = find(value, may_view_payload=may_view_payload)
            found, notes = meant.as_filter(), meant.notes
    if any(seeks_hidden(contained, found.task_types) for group in found.parameters for contained in group):
        raise NotAllowed(_("Hidden values cannot be searched."))
    if found.parameters or found.error is not None:
        try:
            check_search("q", found.task_types)
        except InvalidTaskData as error:
            raise NotAllowed(error.message) from None
    return found, notes


def _parts(term: str) -> list[tuple[str, str]]:
    """Split a term at the words that name a kind; other words belong to the value before them, or to no kind."""
    parts: list[tuple[str, str]] = []
    for word in term.split():
        if word.startswith(_KINDS) and ":" in word:
            kind, _separator, value = word.partition(":")
            parts.append((kind, value))
        elif parts:
            parts[-1] = (parts[-1][0], f"{parts[-1][1]} {word}".strip())
        else:
            parts.append(("", word))
    return parts


def _add(found: TaskFilter, kind: str, value: str, *, may_view_payload: bool) -> TaskFilter:
    if kind in _NAMED:
        return _NAMED[kind](found, value)
    if not may_view_payload:
        raise NotAllowed(_("Searching in parameters and errors needs the permission queue_app.view_payload."))
    if kind == "error":
        return replace(found, error=value)
    keys = kind.removeprefix(_PARAMETERS).split(".")
    return replace(found, parameters=[*found.parameters, [_nested(keys, item) for item in meanings(value)]])


def _of_type(found: TaskFilter, value: str) -> TaskFilter:
    types = [name for name in known_types() if value.lower() in name.lower()]
    return replace(found, task_types=types) if types else replace(found, any_of={"type_prefixes": [value]})


def _of_worker(found: TaskFilter, value: str) -> TaskFilter:
    ids = Worker.objects.filter(name__icontains=value).order_by("-id").values_list("id", flat=True)[:MAX_WORKERS]
    return replace(found, any_of={"worker_ids": [str(worker_id) for worker_id in ids]})


def _of_workflow(found: TaskFilter, value: str) -> TaskFilter:
    return replace(found, workflow_ids=list(workflows_named(value).values_list("id", flat=True)[:MAX_WORKFLOWS]))


def _exactly(option: str) -> Callable[..., TaskFilter]:
    return lambda found, value, *_: replace(found, **{option: value})


#: Word before a colon -> the filter narrowed by the value after it.
_NAMED: Final[Mapping[str, Callable[[TaskFilter, str], TaskFilter]]] = {
    **{name: _exactly(name) for name in FILTERS},
    "type": _of_type,
    "queue": lambda found, value: replace(found, queues=named(value)["queues"] or [value]),
    "key": lambda found, value: replace(found, concurrency_key=value),
    "schedule": lambda found, value: replace(found, schedule=value),
    "worker": _of_worker,
    "workflow": _of_workflow,
}


def _nested(keys: list[str], value: Any) -> Any:
    return reduce(lambda inner, key: {key: inner}, reversed(keys), value)


def read_address(data: Mapping[str, str], now: datetime, *, may_view_payload: bool) -> TaskFilter:
    """Return the filter for the parameters of the list's address.

    Raises ``NotAllowed``, ``Ambiguous``, and ``ValueError`` or ``KeyError`` for invalid values.
    """
    found, _notes = read_term(data.get("q", ""), may_view_payload=may_view_payload)
    if unknown := {name.removesuffix("__exact") for name in data} - {*NARROW, *_PLACE}:
        raise ValueError(_("An action on all that match knows no filter by %(name)s.") % {"name": min(unknown)})
    for name, narrow in NARROW.items():
        if value := data.get(name):
            found = narrow(found, value, now)
    return found


def _waiting(found: TaskFilter, code: str, _now: datetime) -> TaskFilter:
    """Add that the tasks wait for a reason now. Raises ``LookupError`` for an unknown one."""
    if code not in wait_codes():
        raise LookupError(code)
    return replace(found, kinds=kinds_that_wait(code), statuses=found.statuses or [Status.QUEUED])


#: Parameters of the address that do not change which tasks the list contains.
_PLACE: Final = ("q", "p", "o", "e", "sort", "all", "_changelist_filters", "_facets", "_popup", "_to_field")
#: Parameter of the address -> the filter narrowed by its value, in this order.
NARROW: Final[Mapping[str, Callable[[TaskFilter, str, datetime], TaskFilter]]] = {
    "status": lambda found, name, _: replace(found, statuses=_STATUSES.get(name, (name,))),
    "priority": lambda found, name, _: replace(found, effective_bands=[BANDS[name]]),
    "queue": lambda found, name, _: replace(found, queues=[name]),
    "task_type": lambda found, name, _: replace(found, task_types=_both(found.task_types, name, [""])),
    **{name: _exactly(name) for name in FILTERS},
    "worker_id": lambda found, text, _: replace(found, worker_id=uuid.UUID(text)),
    "workflow_id": lambda found, text, _: replace(found, workflow_ids=_both(found.workflow_ids, uuid.UUID(text), [])),
    "since": lambda found, name, now: replace(found, created_after=now - SINCE[name]),
    "schedule": lambda found, name, _: replace(found, schedule=name),
    "error_class": lambda found, name, _: replace(found, error_class=name),
    "ended": lambda found, name, now: replace(found, finished_after=now - ENDED[name]),
    "wait": _waiting,
}


def _both[T](searched: Sequence[T] | None, chosen: T, nothing: list[T]) -> list[T]:
    """Return what both the search and the filter allow; ``nothing``, which matches no task, if they differ."""
    return [chosen] if searched in (None, ()) or chosen in searched else nothing
