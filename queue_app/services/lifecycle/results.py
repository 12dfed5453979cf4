"""Put the results of other tasks into the arguments of tasks that refer to them, when an attempt starts.

The arguments keep the references, so a result is stored once, encrypted if its task is. A worker with access to the
rows reads the results itself; for a remote worker, the server does it when it grants the task.

Crash points: nothing is written. A worker that dies meanwhile leaves executing tasks, as after every claim.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from queue_app import conf
from queue_app.core.payload import ADDED, MARK, chosen, dump_json, filled, stored_in
from queue_app.core.records import ClaimedTask, Outcome, TaskFailure
from queue_app.exceptions import InputTooLarge, PayloadTooLarge, ResultMissing
from queue_app.services.lifecycle.finish import finish
from queue_app.sql import workflow_store

#: Each result was checked when it was stored.
UNLIMITED: Final = 1 << 40


def refers(task: ClaimedTask) -> bool:
    """Return whether the arguments of a task may refer to results of others."""
    return task.workflow_id is not None and (MARK in task.args or MARK in task.parameters)


def with_results(task: ClaimedTask) -> ClaimedTask:
    """Return a task with results in the places of references; raise ``ResultMissing`` or ``InputTooLarge``."""
    if task.workflow_id is None or not refers(task):
        return task
    args, parameters = _texts(task.workflow_id, json.loads(task.args), json.loads(task.parameters))
    return replace(task, args=args, parameters=parameters)


def with_results_for_remote(
    tasks: Sequence[ClaimedTask], give_back: Callable[[list[ClaimedTask]], object]
) -> list[ClaimedTask]:
    """Return granted tasks with results in the places of references; fail those for which that is impossible.

    Gives back the tasks after those whose results make the answer too long.
    """
    ready: list[ClaimedTask] = []
    room = conf.get().workflows.max_input_bytes
    for place, task in enumerate(tasks):
        try:
            ready.append(with_results(task))
        except (ResultMissing, InputTooLarge) as error:
            failure = TaskFailure(f"queue_app.exceptions.{type(error).__name__}", str(error), "", retriable=False)
            finish([Outcome(task, task.started_at, task.started_at, failure=failure)])
            continue
        room -= len(ready[-1].args) + len(ready[-1].parameters)
        if room < 0:
            give_back(list(tasks[place + 1 :]))
            break
    return ready


def filled_in(workflow_id: uuid.UUID, args: Any, parameters: Any) -> tuple[Any, Any]:
    """Return stored arguments of a task with results in the places of references; raise as ``with_results`` does."""
    texts = _texts(workflow_id, args, parameters)
    return json.loads(texts[0]), json.loads(texts[1])


def input_text(value: Any, field: str) -> str:
    """Return arguments that hold results as JSON text; raise ``InputTooLarge``."""
    most = conf.get().workflows.max_input_bytes
    limits = replace(conf.get().payload, max_bytes=most, max_nodes=UNLIMITED)
    try:
        return dump_json(value, field=field, limits=limits)
    except PayloadTooLarge as error:
        raise _too_large(most) from error


def _texts(workflow_id: uuid.UUID, args: Any, parameters: Any) -> tuple[str, str]:
    """Return (args, parameters) as JSON text, with the results of tasks of the same workflow."""
    found = list(stored_in([args, parameters]))
    makers = {reference.ids[0] for reference in found if reference.kind == ADDED}
    added = workflow_store.added_by(makers, [workflow_id]) if makers else {}
    wanted = {task_id for reference in found if reference.kind != ADDED for task_id in reference.ids}
    wanted.update(task_id for ids in added.values() for task_id in ids)
    most = conf.get().workflows.max_input_bytes
    if len(wanted) * conf.get().payload.max_bytes > most and workflow_store.size(wanted) > most:
        raise _too_large(most)
    results = workflow_store.results(wanted, [workflow_id]) if wanted else {}
    values = {task_id: json.loads(text) for task_id, text in results.items()}
    args, parameters = (filled(part, lambda reference: chosen(reference, values, added)) for part in (args, parameters))
    return input_text(args, "args"), input_text(parameters, "parameters")


def _too_large(most: int) -> InputTooLarge:
    return InputTooLarge(
        f"The results that flow into this task take more than {most} bytes (TASKQUEUE WORKFLOWS MAX_INPUT_BYTES). Join"
        " them in several steps, or let the tasks store their data elsewhere and return its key."
    )
