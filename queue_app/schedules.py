"""Schedules that are declared in code: ``@schedule`` above ``@task``, or ``TASKQUEUE["SCHEDULES"]``.

A declaration is stored when ``migrate`` runs and when a scheduler starts. This module uses no models, so a module of
tasks may be imported while the apps are loading.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.conf import settings
from django.tasks.base import Task

from queue_app import conf, registry
from queue_app.exceptions import InvalidTaskData
from queue_app.registry import AnyTask


@dataclass(frozen=True, slots=True)
class Declaration:
    """A schedule as the code declares it; ``values`` are the fields of ``Schedule``, without those left to defaults."""

    name: str
    values: Mapping[str, Any]


_declared: Final[dict[str, Declaration]] = {}


def schedule[T: AnyTask](
    *,
    name: str | None = None,
    cron: str | None = None,
    every: float | None = None,
    at: datetime | list[datetime] | None = None,
    zone: str | None = None,
    **options: Any,
) -> Callable[[T], T]:
    """Enqueue the decorated task at each tick of ``cron`` or ``every`` (seconds), or at the times ``at``.

    Several may stand above one task; each but one then needs a ``name``. ``options`` are the other fields of a
    schedule: ``args``, ``parameters``, ``instant_parameter``, options of the task such as ``queue`` and ``priority``,
    ``anchor``, ``starts_at``, ``ends_at``, ``jitter``, ``catch_up``, ``catch_up_limit``, ``catch_up_seconds``,
    ``overlap`` and ``notes``.
    """
    given = {"cron": cron, "every": every, "zone": zone, **options}
    if at is not None:
        given["instants"] = at if isinstance(at, list) else [at]

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
        values = {field: value for field, value in given.items() if value is not None}
        _declared[chosen] = Declaration(chosen, values | {"task_type": task_type})
        return task

    return declare


def declared() -> dict[str, Declaration]:
    """Return the declarations of the code and of the settings, by name."""
    registry.discover()
    found = dict(_declared)
    for name, given in conf.get().schedules.items():
        values = {field: value for field, value in given.items() if field not in {"task", "at"}}
        if "task" in given:
            values["task_type"] = given["task"]
        if "at" in given:
            values["instants"] = given["at"] if isinstance(given["at"], list) else [given["at"]]
        found[name] = Declaration(name, values)
    return {
        name: Declaration(name, {"zone": settings.TIME_ZONE, **declaration.values})
        for name, declaration in found.items()
    }
