"""Callbacks: tasks and webhooks that follow when a task ends, stored in the transaction that ends it.

Their names travel with the task's metadata, so every process that ends a task knows them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from django.tasks.base import Task

from queue_app import registry
from queue_app.core.signatures import check_arguments
from queue_app.core.states import FAILURES, Status
from queue_app.exceptions import InvalidTaskData, WrongArguments, suggestion

#: State of an ended task -> the option that names what follows. Nothing follows a cancelled task.
OPTIONS: Final = {Status.COMPLETED: "on_success", **dict.fromkeys(FAILURES, "on_failure")}
#: Part of metadata that name a callback.
MARK: Final = '"on_'
#: Before the name of an endpoint of the setting ``WEBHOOKS``.
WEBHOOK: Final = "webhook:"
_NAMES: Final = tuple(sorted(set(OPTIONS.values())))
#: Keys of metadata that belong to the queue; hooks cannot set them.
RESERVED: Final = frozenset(_NAMES) | {registry.KEY}


def name_of(given: Any, option: str) -> str:
    """Return the name of a callback: a task, its type, or ``"webhook:<endpoint>"``; raise ``InvalidTaskData``."""
    if isinstance(given, str) and given:
        return given
    if not isinstance(given, Task):
        raise InvalidTaskData(option, f"{option} is a task, the name of one, or 'webhook:…', not {given!r:.60}.")
    try:
        check_arguments(given, ["task_id"], {})
    except WrongArguments as error:
        raise InvalidTaskData(option, f"{option} is called with the id of the task. {error}") from None
    return registry.type_of(given)


def declared_by(task: registry.AnyTask | None) -> dict[str, str]:
    """Return the callbacks that a task declares, for its metadata."""
    return {name: given for name in _NAMES if (given := getattr(task, name, None))}


def follows(task: Any, status: Status, metadata: str | None) -> tuple[str, list[Any]] | None:
    """Return (task type, arguments) of the callback of a task that ended in a state; ``None`` without one."""
    option = OPTIONS.get(status)
    if option is None or metadata is None or MARK not in metadata:
        return None
    name: str | None = json.loads(metadata).get(option)
    if name is None:
        return None
    if not name.startswith(WEBHOOK):
        return name, [str(task.id)]
    facts = {"task_id": str(task.id), "task_type": task.task_type, "status": status.value}
    return registry.DELIVER, [name.removeprefix(WEBHOOK), f"task.{status.value}", facts]


def inherited(metadata: str | None) -> dict[str, Any]:
    """Return the metadata that a callback gets from the task before it: what hooks added."""
    found: dict[str, Any] = json.loads(metadata or "{}")
    return {name: value for name, value in found.items() if name not in RESERVED}


def reserved(task: registry.AnyTask | None) -> dict[str, Any]:
    """Return the metadata of a task's own: its version, unless it is 1, and its callbacks."""
    version = registry.of(task)
    return declared_by(task) | ({} if version == 1 else {registry.KEY: version})


def problems(endpoints: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield which callbacks of known tasks are no task, and no endpoint with an address."""
    for task_type in registry.known_types():
        for option, name in declared_by(registry.known(task_type)).items():
            endpoint = name.removeprefix(WEBHOOK) if name.startswith(WEBHOOK) else None
            if endpoint is not None and endpoint not in endpoints:
                meant = suggestion(endpoint, endpoints)
                yield f"{option} of {task_type}: TASKQUEUE WEBHOOKS has no {endpoint!r}.{meant}"
            elif endpoint is not None and not endpoints[endpoint].get("url"):
                yield f"{option} of {task_type}: TASKQUEUE WEBHOOKS {endpoint} has no `url`, which a callback needs."
            elif endpoint is None and registry.find(name) is None:
                meant = suggestion(name, registry.known_types())
                yield f"{option} of {task_type}: no task is registered as {name!r}.{meant}"
