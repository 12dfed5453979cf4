"""Schedules that are declared in code: ``@schedule`` above ``@task``, or ``TASKQUEUE["SCHEDULES"]``.

A declaration is stored when ``migrate`` runs and when a scheduler starts. This module uses no models, so a module of
tasks may be imported while the apps are loading.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Unpack

from django.conf import settings
from django.tasks.base import Task

from queue_app import conf, registry
from queue_app.core.options import OptionValues
from queue_app.exceptions import InvalidTaskData
from queue_app.registry import AnyTask


@dataclass(frozen=True, slots=True)
class Declaration:
    """A schedule as the code declares it; ``values`` are the fields of ``Schedule``, without those left to defaults."""

    name: str
    values: Mapping[str, Any]


class ScheduleOptions(OptionValues, total=False):
    """The options of a schedule; those of the task that are missing or ``None`` are the registered task's."""

    cron: str | None
    every: float | None  # seconds
    at: datetime | list[datetime] | None
    zone: str | None
    anchor: datetime | None
    starts_at: datetime | None
    ends_at: datetime | None
    jitter: float
    args: Sequence[Any]
    parameters: Mapping[str, Any]
    instant_parameter: str
    grace_seconds: float
    catch_up: str
    catch_up_limit: int
    catch_up_seconds: float
    overlap: str
    notes: str
    queue: str | None
    priority: int | str | None


_declared: Final[dict[str, Declaration]] = {}


def fields_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as fields of ``Schedule``, without those left to defaults."""
    given = {name: value for name, value in options.items() if value is not None}
    fields = {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}
    if "at" in fields:
        at = fields.pop("at")
        fields["instants"] = at if isinstance(at, list) else [at]
    return fields


def schedule[T: AnyTask](*, name: str | None = None, **options: Unpack[ScheduleOptions]) -> Callable[[T], T]:
    """Enqueue the decorated task at each tick of ``cron`` or ``every`` (seconds), or at the times ``at``.

    Several may stand above one task; each but one then needs a ``name``. ``options`` are the other fields of a
    schedule: ``zone``, ``args``, ``parameters``, ``instant_parameter``, options of the task such as ``queue`` and
    ``priority``, ``anchor``, ``starts_at``, ``ends_at``, ``jitter``, ``grace_seconds``, ``catch_up``,
    ``catch_up_limit``, ``catch_up_seconds``, ``overlap`` and ``notes``.
    """

    def declare(task: T) -> T:
        if not isinstance(task, Task):
            raise TypeError("@schedule goes above @task, not below it.")
        task_type = registry.type_of(task)
        chosen = name or task.func.__name__
        known = _declared.get(chosen)
        if known is not None and known.values["task_type"] != task_type:
            raise InvalidTaskData(
                "name", f"{known.values['task_type']} has a schedule {chosen!r} too; give one of them a name."
            )
        _declared[chosen] = Declaration(chosen, fields_of(options) | {"task_type": task_type})
        return task

    return declare


def declared() -> dict[str, Declaration]:
    """Return the declarations of the code and of the settings, by name."""
    registry.discover()
    found = dict(_declared)
    for name, given in conf.get().schedules.items():
        values = {"task_type" if option == "task" else option: value for option, value in given.items()}
        found[name] = Declaration(name, fields_of(values))
    return {
        name: Declaration(name, {"zone": settings.TIME_ZONE, **declaration.values})
        for name, declaration in found.items()
    }
