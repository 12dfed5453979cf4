"""The call that undoes a task of a workflow, as it is stored with the task."""

from collections.abc import Mapping, Sequence
from typing import Any

from queue_app.core.nodes import call_options
from queue_app.core.records import TaskSpec
from queue_app.core.references import Reference, marked
from queue_app.core.signatures import check_arguments
from queue_app.exceptions import WrongArguments
from queue_app.registry import AnyTask
from queue_app.sql.workflow_store import compensation_text


def undoing(task: AnyTask, spec: TaskSpec, args: Sequence[Any], kwargs: Mapping[str, Any], result: Reference) -> str:
    """Return the call of a compensation: with the arguments of what it undoes, and its result if it takes one.

    Raises ``WrongArguments``.
    """
    try:
        check_arguments(task, args, {**kwargs, "result": result})
        kwargs = {**kwargs, "result": result}
    except WrongArguments:
        check_arguments(task, args, kwargs)
    found: list[Reference] = []
    call = {"args": marked(list(args), found), "parameters": marked(dict(kwargs), found)}
    return compensation_text(call_options(spec) | call)
