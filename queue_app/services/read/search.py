"""Find tasks by what a person sees of them: a word may be part of an id, a type, a queue, a worker, a user, an error.

The answer is a filter of plain values, so that lists, counts and actions on all that match mean the same tasks. What is
found in errors, parameters and ticks is named by the ids of the newest such tasks, and a note says so.
"""

import json
import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, Final

from django.db.models import Q, QuerySet
from django.utils.translation import gettext as _

from queue_app import registry
from queue_app.core.payload import MAX_SAFE_INTEGER
from queue_app.core.redaction import redact
from queue_app.core.signatures import taken_by
from queue_app.models import Queue, Schedule, ScheduleTick, Task, TaskPayload, TaskStats, Worker, Workflow
from queue_app.models.querysets import TaskQuerySet
from queue_app.models.stats import StatsKind
from queue_app.models.worker import LIVING
from queue_app.services.read.dead_letters import secrets_by_task
from queue_app.services.read.task_filter import TaskFilter, matching, seeks_hidden
from queue_app.sql import search as rows
from queue_app.sql.database import alias

#: Maximum number of names of one kind that a word finds, and of tasks that are found by what is stored beside them.
MAX_NAMES: Final = 50
MAX_TASKS: Final = 300
MAX_WORKERS: Final = 200
#: Number of newest workflows whose names are searched.
WORKFLOWS_READ: Final = 10_000
_DIGITS: Final = re.compile(r"[0-9a-f]{6,32}")
_SPELLED: Final = re.compile(r"true|false|null|-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,20})?", re.ASCII)
#: Kind of names -> the field of a filter that means the same when nothing else is found.
_PLAIN: Final = {"task_types": "task_types", "queues": "queues"}


@dataclass(slots=True)
class Found:
    """What a text may mean, by kind: names, or ids of tasks; and what the page says about the search."""

    any_of: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, kind: str, names: Iterable[object]) -> None:
        if texts := [str(name) for name in names]:
            self.any_of.setdefault(kind, []).extend(texts)

    def as_filter(self) -> TaskFilter:
        """Return the filter; the plainest one, for which there are indexes."""
        [only] = self.any_of if len(self.any_of) == 1 else [""]
        if only in _PLAIN:
            return TaskFilter(**{_PLAIN[only]: self.any_of[only]})  # type: ignore[arg-type]
        if only == "users" and len(self.any_of["users"]) == 1:
            return TaskFilter(user=self.any_of["users"][0])
        if only == "ids":
            return TaskFilter(ids=[uuid.UUID(text) for text in self.any_of["ids"]])
        return TaskFilter(any_of=self.any_of)


def known_types() -> list[str]:
    """Return the task types that this process, a live worker or the statistics know, without a query over the tasks."""
    names = set(registry.known_types())
    live = Worker.objects.using(alias()).filter(status__in=LIVING)
    for types in live.order_by("-id").values_list("task_types", flat=True)[:MAX_WORKERS]:
        names.update(types)
    stored = TaskStats.objects.using(alias()).filter(kind=StatsKind.TYPE).order_by()
    names.update(stored.values_list("name", flat=True).distinct()[:1000])
    return sorted(names)


def named(text: str) -> dict[str, list[str]]:
    """Return the names of each kind that contain a text: for suggestions, and as a part of the search."""
    lower = text.lower()
    types = [name for name in known_types() if lower in name.lower()] or _types_of_code_that_is_gone(lower)
    queues = Queue.objects.using(alias()).filter(name__icontains=text).values_list("name", flat=True)
    workers = Worker.objects.using(alias()).filter(Q(name__icontains=text) | Q(host__icontains=text))
    schedules = Schedule.objects.using(alias()).filter(name__icontains=text).values_list("name", flat=True)
    stats = TaskStats.objects.using(alias()).filter(name__istartswith=text).order_by()
    users, keys = (
        list(stats.filter(kind=kind).values_list("name", flat=True).distinct()[:MAX_NAMES])
        for kind in (StatsKind.USER, StatsKind.KEY)
    )
    if text not in users and Task.objects.using(alias()).filter(user=text).exclude(user="").exists():
        users.append(text)
    return {
        "task_types": types[:MAX_NAMES],
        "queues": list(queues[:MAX_NAMES]),
        "workers": list(dict.fromkeys(workers.order_by("-id").values_list("name", flat=True)[:MAX_NAMES])),
        "users": users,
        "keys": keys,
        "schedules": list(schedules[:MAX_NAMES]),
        "workflows": list(dict.fromkeys(workflows_named(text).values_list("name", flat=True)[:MAX_NAMES])),
    }


def workflows_named(text: str) -> QuerySet[Workflow]:
    """Return those of the newest workflows whose names contain a text, newest first."""
    newest = Workflow.objects.using(alias()).order_by("-id").values("id")[:WORKFLOWS_READ]
    return Workflow.objects.using(alias()).filter(pk__in=newest, name__icontains=text).order_by("-id")


def _types_of_code_that_is_gone(lower: str) -> list[str]:
    pending = Task.objects.using(alias()).pending().filter(task_type__icontains=lower).order_by()
    names = {name for name in rows.types_of_ended() if lower in name.lower()}
    return sorted(names.union(pending.values_list("task_type", flat=True).distinct()[:MAX_NAMES]))


def find(text: str, *, may_view_payload: bool) -> Found:
    """Return what a text without a prefix may mean."""
    found = Found()
    names = named(text)
    for kind in ("task_types", "queues", "users", "keys"):
        found.add(kind, names[kind])
    if names["workers"]:
        workers = Worker.objects.using(alias()).filter(name__in=names["workers"]).order_by("-id")
        found.add("worker_ids", workers.values_list("id", flat=True)[:MAX_NAMES])
    if names["workflows"]:
        found.add("workflow_ids", workflows_named(text).values_list("id", flat=True)[:MAX_NAMES])
    if names["schedules"]:
        ticks = ScheduleTick.objects.using(alias()).filter(schedule__name__in=names["schedules"], task_id__isnull=False)
        more = _("Of the tasks of these schedules, only the newest %(n)d were read.")
        _add_tasks(found, more, ticks.order_by("-instant").values_list("task_id", flat=True))
    digits = text.lower().replace("-", "")
    if _DIGITS.fullmatch(digits):
        found.add("ids", rows.ids_that_end_in(digits, MAX_NAMES))
        note = _("The end of the id was looked for among the newest %(n)s tasks.")
        found.notes.append(note % {"n": f"{rows.IDS_READ:,}"})
    if not may_view_payload:
        note = _("Errors and arguments were not searched: that needs the permission queue_app.view_payload.")
        found.notes.append(note)
        return found
    more = _("Of the tasks with such an error, only the newest %(n)d were read.")
    _add_tasks(found, more, _with_error(text))
    parameters = _parameter_names()
    more = _("Of the tasks with this argument, only the newest %(n)d were read.")
    _add_tasks(found, more, _with_parameter(text, parameters[:MAX_NAMES]))
    if len(parameters) > MAX_NAMES:
        note = _("%(n)d of %(total)d names of arguments were read; parameters.NAME:VALUE reads one.")
        found.notes.append(note % {"n": MAX_NAMES, "total": len(parameters)})
    return found


def _add_tasks(found: Found, more: str, ids: Any) -> None:
    tasks = list(dict.fromkeys(ids[: MAX_TASKS + 1]))
    if len(tasks) > MAX_TASKS:
        found.notes.append(more % {"n": MAX_TASKS})
    found.add("ids", tasks[:MAX_TASKS])


def _with_error(text: str) -> list[uuid.UUID]:
    """Return tasks whose errors have the words where they are displayed: a guess must not reveal a secret."""
    words = rows.words_of(text)
    failed = rows.failed_with(words, MAX_TASKS + 1) if words else []
    secrets = secrets_by_task([each.task_id for each in failed])
    found = []
    for each in failed:
        displayed = redact(f"{each.exception_class} {each.message}", secrets.get(each.task_id, ()))
        parts = [word.lower() for word in rows.split(displayed)]
        if all(any(part.startswith(word) for part in parts) for word in words):
            found.append(each.task_id)
    return found


def listed(wanted: TaskFilter, tasks: TaskQuerySet) -> tuple[TaskQuerySet, list[str]]:
    """Return the tasks that match, for a list, and what the page says: a list reads only the newest errors."""
    if wanted.error is None:
        return matching(wanted, tasks), []
    found = matching(replace(wanted, error=None), tasks).filter(rows.newest_with_error(wanted.error))
    if not rows.has_older_errors():
        return found, []
    note = _(
        "The errors of the newest %(n)s failed attempts were read. A search without error: also finds words of older"
        " ones, and actions on all that match read all."
    )
    return found, [note % {"n": f"{rows.ERRORS_READ:,}"}]


def _parameter_names() -> list[str]:
    """Return the names of the parameters that functions of the project take."""
    names = set[str]()
    for task in filter(None, map(registry.known, registry.known_types())):
        taken = taken_by(task.func, takes_context=task.takes_context)
        names |= taken.allowed if taken else frozenset()
    return sorted(names)


def _with_parameter(text: str, names: Sequence[str]) -> list[uuid.UUID]:
    """Return the tasks in which one of these parameters has this value, by name or by its position."""
    contained, found = Q(), set[uuid.UUID]()
    for value in meanings(text):
        shown = [name for name in names if not seeks_hidden({name: value}, ())]
        for name in shown:
            contained |= Q(parameters__contains={name: value})
        found.update(rows.tasks_at_places(registry.places_of(shown), [value], MAX_TASKS + 1))
    if contained:
        payloads = TaskPayload.objects.using(alias()).filter(contained).order_by("-task_id")
        found.update(payloads.values_list("task_id", flat=True)[: MAX_TASKS + 1])
    return sorted(found, reverse=True)


def meanings(value: str) -> list[Any]:
    """Return the possible meanings of a value: the text itself, and the JSON number, boolean or null that it spells."""
    if not _SPELLED.fullmatch(value):
        return [value]
    read = json.loads(value)
    return [value, read] if read is None or abs(read) <= MAX_SAFE_INTEGER else [value]


def nested(keys: Sequence[str], value: Any) -> Any:
    """Return an object that has a value below some keys."""
    return reduce(lambda inner, key: {key: inner}, reversed(keys), value)
