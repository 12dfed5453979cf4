"""Put the results of other tasks into the arguments of claimed tasks that refer to them.

Crash points: a worker that dies meanwhile leaves executing tasks, as after every claim. A task whose reference cannot
be resolved fails here, in a transaction of its own, and is not retried.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from queue_app import conf
from queue_app.core.payload import dump_json
from queue_app.core.records import ClaimedTask, Outcome, TaskFailure
from queue_app.core.references import ADDED, MARK, Reference, chosen, filled, stored_in
from queue_app.exceptions import InvalidTaskData, ResultMissing
from queue_app.services.lifecycle.finish import finish
from queue_app.sql import workflow_results as rows


def with_results(tasks: Sequence[ClaimedTask]) -> list[ClaimedTask]:
    """Return claimed tasks with results in the places of references; fail those for which that is impossible."""
    referring = {
        task.id: (json.loads(task.args), json.loads(task.parameters))
        for task in tasks
        if task.workflow_id is not None and (MARK in task.args or MARK in task.parameters)
    }
    if not referring:
        return list(tasks)
    results = _Results([(task.workflow_id, referring[task.id]) for task in tasks if task.id in referring])
    ready: list[ClaimedTask] = []
    for task in tasks:
        if task.id not in referring:
            ready.append(task)
            continue
        try:
            args, parameters = results.filled(referring[task.id])
            ready.append(replace(task, args=args, parameters=parameters))
        except (ResultMissing, InvalidTaskData) as error:
            failure = TaskFailure(f"queue_app.exceptions.{type(error).__name__}", str(error), "", retriable=False)
            finish([Outcome(task, task.started_at, task.started_at, failure=failure)])
    return ready


def filled_in(workflow_id: uuid.UUID, args: Any, parameters: Any) -> tuple[Any, Any]:
    """Return stored arguments of a task with results in the places of references; raise ``ResultMissing``."""
    texts = _Results([(workflow_id, (args, parameters))]).filled((args, parameters))
    return json.loads(texts[0]), json.loads(texts[1])


class _Results:
    """The results that some calls refer to, of tasks of the same workflow."""

    def __init__(self, calls: Collection[tuple[uuid.UUID | None, tuple[Any, Any]]]) -> None:
        found = [reference for _, call in calls for reference in stored_in(list(call))]
        workflows = {workflow_id for workflow_id, _ in calls if workflow_id is not None}
        makers = {reference.ids[0] for reference in found if reference.kind == ADDED}
        self._added = rows.added_by(makers, workflows) if makers else {}
        wanted = {task_id for reference in found if reference.kind != ADDED for task_id in reference.ids}
        wanted.update(task_id for added in self._added.values() for task_id in added)
        self._texts = rows.results(wanted, workflows) if wanted else {}
        self._values = {task_id: json.loads(text) for task_id, text in self._texts.items()}

    def filled(self, call: tuple[Any, Any]) -> tuple[str, str]:
        """Return (args, parameters) as JSON text; raise ``ResultMissing``, or ``InvalidTaskData`` if too large."""
        limits = conf.get().payload
        args, parameters = (filled(part, self._chosen) for part in call)
        return dump_json(args, field="args", limits=limits), dump_json(parameters, field="parameters", limits=limits)

    def _chosen(self, reference: Reference) -> Any:
        return chosen(reference, self._values, self._added)
