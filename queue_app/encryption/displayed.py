"""The payload of a task without its secrets, for every page and answer that displays it."""

import inspect
import json
from collections import defaultdict
from contextlib import suppress
from typing import Any, Protocol
from uuid import UUID

from django.apps import apps

from queue_app import registry
from queue_app.core.payload import Reference, chosen, filled, stored_in
from queue_app.core.records import ClaimedTask
from queue_app.core.redaction import (
    MASK,
    Secrets,
    is_sealed,
    is_secret,
    redact_value,
    same,
    secret_parts,
    secrets_of,
    unmask,
)
from queue_app.core.signatures import taken_by
from queue_app.core.states import Status
from queue_app.encryption import call_of, hides
from queue_app.exceptions import ResultMissing


class Payload(Protocol):
    """Arguments and parameters of a task: a ``TaskPayload``, or the same without the cost of a model."""

    @property
    def args(self) -> Any:
        """Return the positional arguments."""

    @property
    def parameters(self) -> Any:
        """Return the parameters."""


def displayed_payload(
    task_type: str, payload: Payload | None, *, hide_encrypted: bool = False
) -> tuple[Secrets, Any, dict[str, Any]]:
    """Return the secrets of a task, to redact its texts, and its arguments and parameters without them.

    ``hide_encrypted`` also hides a decrypted payload of an encrypted task type, such as that of a schedule.
    """
    names = registry.sensitive_names(task_type)
    if payload is None:
        return Secrets((), names), [], {}
    # What a person writes in the place of the displayed parameters replaces them all.
    if is_sealed(payload.args) or (hide_encrypted and hides(task_type)):
        return Secrets((), names), [], {"encrypted": MASK}
    named = _named(task_type, payload.args, names)
    secrets = secrets_of(_with_secret_results(payload, [payload.parameters, named], names), names)
    return secrets, redact_value(named, secrets), redact_value(payload.parameters, secrets)


def _with_secret_results(payload: Payload, value: Any, names: frozenset[str]) -> Any:
    """Return arguments with the results that references under secret names stand for: texts may repeat them."""
    found, task_id = list(stored_in(list(secret_parts(value, names)))), getattr(payload, "task_id", None)
    if not found or task_id is None:
        return value
    workflow_nodes, tasks = (apps.get_model("queue_app", name).objects for name in ("WorkflowNode", "Task"))

    named = {each for reference in found for each in reference.ids}
    added: dict[UUID, list[UUID]] = defaultdict(list)
    nodes: Any = workflow_nodes.filter(added_by__in=named).order_by("task_id")
    for maker, each in nodes.values_list("added_by", "task_id"):
        added[maker].append(each)
    together = tasks.filter(workflow_id__in=tasks.filter(pk=task_id).values("workflow_id"))
    completed = together.filter(pk__in=named.union(*added.values()), status=Status.COMPLETED)
    values = {each: result for each, result in completed.values_list("pk", "outcome__value") if not is_sealed(result)}
    results: dict[Reference, Any] = {}
    for reference in found:
        with suppress(ResultMissing):
            results[reference] = chosen(reference, values, added)
    return filled(value, results.get)


def edited_payload(
    task_type: str, payload: Payload, *, args: list[Any] | None = None, parameters: dict[str, Any] | None = None
) -> tuple[list[Any], dict[str, Any]]:
    """Return arguments and parameters of a task as edited from the displayed ones; ``None`` leaves them as they are.

    A value that is still masked keeps its true value. The caller has checked the depth of what was edited. Raises
    ``InvalidTaskData`` with the path of a misplaced mask, and for another call of a task of the app itself.
    """
    _secrets, shown_args, shown = displayed_payload(task_type, payload)
    stored_args, stored = call_of(task_type, payload.args, payload.parameters)
    positions = list(shown_args.values()) if isinstance(shown_args, dict) else shown_args
    edited = (
        stored_args if args is None else unmask(args, positions, stored_args, "args"),
        stored if parameters is None else unmask(parameters, shown, stored),
    )
    if not same(list(edited), [stored_args, stored]):
        registry.check_for_caller(task_type)
    return edited


def argument_names(task_type: str, count: int) -> list[str]:
    """Return the names of a function's first ``count`` parameters; empty if no code knows them all."""
    task = registry.known(task_type)
    taken = taken_by(task.func, takes_context=task.takes_context) if task else None
    names = list(taken.signature.parameters)[:count] if taken else []
    return names if len(names) == count else []


def secrets_of_call(task: ClaimedTask) -> Secrets:
    """Return the secrets of a task that a worker holds; never raises."""
    names = registry.sensitive_names(task.task_type)
    try:
        return secrets_of([json.loads(task.parameters), _named(task.task_type, json.loads(task.args), names)], names)
    except (ValueError, TypeError, RecursionError):
        return Secrets(names=names)


def _named(task_type: str, args: list[Any], sensitive: frozenset[str]) -> Any:
    """Return positional arguments by name if one of them has a secret name, else unchanged."""
    if not args:
        return args
    try:
        task = registry.get(task_type)
        names = list(inspect.signature(task.func).parameters)[int(task.takes_context) :]
    except Exception:  # noqa: BLE001 - a broken task module of the project must not break the page
        return args
    if not any(is_secret(name, sensitive) for name in names[: len(args)]):
        return args
    labels = [names[i] if i < len(names) else f"argument {i + 1}" for i in range(len(args))]
    return dict(zip(labels, args, strict=True))
