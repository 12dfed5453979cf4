"""Rooms: folders of ``queue_app`` that hold one feature each, and hang on the kernel at the points named here.

The ``room.py`` of a room says what it adds, as paths inside its folder. The kernel imports no room; it imports what a
path names when it comes to that point. A room whose folder is missing adds nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, Final

#: The folders, in the order in which the kernel asks them.
NAMES: Final = ("schedules", "adaptive", "what_if", "workflows", "remote", "webhooks", "rows")

type Paths = tuple[str, ...]
type Named = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Room:
    """What a room adds: paths of modules, or of what is in them, such as ``views.ADDRESSES``."""

    name: str
    #: Modules to import once the app is ready: system checks and receivers, which register themselves.
    at_start: Paths = ()
    #: Functions that take the scheduler's settings, and return jobs of the scheduler that leads.
    jobs: Paths = ()
    #: The same for jobs that every scheduler does, whether it leads or not.
    jobs_of_all: Paths = ()
    #: {question: expression} that the jobs ask ``sql.upkeep`` together.
    questions: Named = field(default_factory=dict)

    # What people call.

    #: Lists of addresses for ``queue_app.urls``.
    addresses: Paths = ()
    #: {model: class of its pages in the admin}.
    pages: Named = field(default_factory=dict)
    #: {verb of ``manage.py taskqueue``: module}.
    verbs: Named = field(default_factory=dict)
    #: Functions that take a task, and return what its page in the admin shows besides.
    task_details: Paths = ()
    #: {name: function that returns the condition on tasks that wait for people for this reason}.
    task_filters: Named = field(default_factory=dict)
    #: {name: what services, backends, contexts of tasks and the testing kit hand out for the room}; see ``part``.
    parts: Named = field(default_factory=dict)

    # What is found out.

    #: Functions that take a case of ``explain``, and yield reasons why its task does not run.
    reasons: Paths = ()
    #: Checks of the doctor, on tables.
    findings: Paths = ()
    #: {variable of the overview's template: its ``OverviewPart``}.
    overview: Named = field(default_factory=dict)
    #: Functions that ask PostgreSQL, and return {metric: {labels: value}}.
    metrics: Paths = ()
    #: Functions that yield suggestions to staff (``services.control.advice.Advice``), the most important first.
    suggestions: Paths = ()
    #: Functions that take scope and name of a gate, and return the value of its limit now, if it moves by itself.
    limit_values: Paths = ()
    #: Functions that take a limit, and return what the template of its page gets.
    limit_parts: Paths = ()

    # What operations do.

    #: {kind of an operation: function that applies it to a page}.
    operation_kinds: Named = field(default_factory=dict)
    #: {target of an operation: function that returns its next page}.
    operation_targets: Named = field(default_factory=dict)

    #: Functions that a test calls before it runs tasks, as the scheduler would from time to time.
    in_tests: Paths = ()

    # What happens with a transition, in the transaction of the caller.

    #: Functions that take the ids of ended tasks that are queued again.
    queued_again: Paths = ()
    #: Functions that are called before ended tasks are deleted.
    before_deletion: Paths = ()
    #: Functions that take a locked row (and the time, if a caller set it) before its pause ends or another replaces it.
    pause_ends: Paths = ()


@cache
def present() -> tuple[Room, ...]:
    """Return the rooms whose folders are there."""
    found = []
    for name in NAMES:
        try:
            found.append(import_module(f"queue_app.{name}.room").ROOM)
        except ModuleNotFoundError as error:
            if error.name not in {f"queue_app.{name}", f"queue_app.{name}.room"}:
                raise
    return tuple(found)


@cache
def each(point: str) -> tuple[Any, ...]:
    """Return what the rooms add at a point, imported."""
    return tuple(_imported(room, path) for room in present() for path in getattr(room, point))


def call(point: str, *values: Any) -> None:
    """Call what the rooms add at a point, in the transaction of the caller."""
    for function in each(point):
        function(*values)


def paths(point: str) -> dict[str, str]:
    """Return what the rooms add at a point by name, as paths, for what is imported when its name is used."""
    return {key: f"queue_app.{room.name}.{path}" for room in present() for key, path in getattr(room, point).items()}


@cache
def named(point: str) -> dict[str, Any]:
    """Return what the rooms add at a point by name, imported."""
    return {key: _imported(room, path) for room in present() for key, path in getattr(room, point).items()}


@cache
def part(name: str) -> Any:
    """Return a part of a room by its name; raise ``LookupError`` if its room is not there."""
    for room in present():
        if name in room.parts:
            return _imported(room, room.parts[name])
    raise LookupError(f"{name} belongs to a room of queue_app that is not installed.")


def _imported(room: Room, path: str) -> Any:
    module, _, attribute = path.partition(".")
    found = import_module(f"queue_app.{room.name}.{module}")
    return getattr(found, attribute) if attribute else found
