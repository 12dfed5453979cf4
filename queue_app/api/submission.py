"""From the body of a request to a ``NewTask``."""

from __future__ import annotations

import hashlib
from typing import Any, Final

from queue_app.api.errors import InvalidInput
from queue_app.api.fields import Reader, json_object, text
from queue_app.core.parsing import timestamp
from queue_app.core.priorities import Band, parse_band
from queue_app.core.records import NewTask
from queue_app.exceptions import InvalidTaskData
from queue_app.services.enqueue.validate import check_capabilities, check_queue_name

#: The header that may carry the idempotency key instead of the body.
KEY_HEADER: Final = "Idempotency-Key"
KEY_META: Final = "HTTP_IDEMPOTENCY_KEY"  # where a request has it; its ``headers`` would be built for this one alone
MAX_TASKS: Final = 1000
MAX_ERRORS: Final = 20
FIELDS: Final = (
    "task_type",
    "parameters",
    "queue",
    "priority",
    "capabilities",
    "run_after",
    "delay",
    "timeout",
    "max_retries",
    "idempotency_key",
    "concurrency_key",
    "weight",
)
READ_ONLY: Final = (
    "args",
    "attempt",
    "attempts",
    "cancel_requested_at",
    "created_at",
    "deadline",
    "failures",
    "finished_at",
    "id",
    "options",
    "queue_position",
    "queued_at",
    "replayed",
    "result",
    "retry_delay",
    "started_at",
    "status",
    "task_id",
    "user",
    "worker_id",
)


def parse_submission(data: dict[str, Any], *, user: str, key_header: str | None) -> NewTask:
    """Return what the body asks for; raise every error in it that can be seen without the database."""
    reader = Reader(data)
    reader.refuse_others(FIELDS, READ_ONLY)
    task_type = reader.required("task_type", text, "")
    parameters: dict[str, Any] = {}
    if "parameters" in data:
        parameters = reader.required("parameters", json_object, parameters)
    queue = reader.optional("queue", lambda value, _: check_queue_name(value))
    band = reader.optional("priority", priority)
    capabilities = reader.optional("capabilities", _capabilities)
    run_after = reader.optional("run_after", timestamp)
    delay = reader.optional("delay", _anything)
    if run_after is not None and delay is not None:
        reader.note(InvalidTaskData("delay", "Give run_after or delay, not both.", code="conflicting_fields"))
    key = reader.optional("idempotency_key", _anything)
    if key_header is not None and key is not None and key != key_header:
        reader.note(
            InvalidTaskData(
                "idempotency_key", f"The body and the header {KEY_HEADER} differ.", code="conflicting_fields"
            )
        )
    reader.finish()
    return NewTask(
        task_type=task_type,
        parameters=parameters,
        user=user,
        queue=queue,
        priority=band,
        capabilities=capabilities,
        run_after=run_after,
        delay=delay,
        timeout=data.get("timeout"),
        max_retries=data.get("max_retries"),
        concurrency_key=data.get("concurrency_key"),
        weight=data.get("weight"),
        idempotency_key=key_header if key is None else key,
    )


def parse_many(data: dict[str, Any], *, user: str, key_header: str | None) -> list[NewTask]:
    """Return what a body with ``tasks`` asks for; the errors of all its items are raised at once, each with its place.

    A key in the header stands for the whole request: each task without one of its own gets one that is made of it.
    """
    reader = Reader(data)
    reader.refuse_others(("tasks",))
    items: list[Any] = reader.required("tasks", _items, [])
    reader.finish()
    submissions: list[NewTask] = []
    errors: list[InvalidTaskData] = []
    base = None if key_header is None else hashlib.sha256(key_header.encode(errors="replace")).hexdigest()[:48]
    for position, item in enumerate(items):
        key = None if base is None else f"{base}-{position}"
        try:
            given = json_object(item, "")
            own = given.get("idempotency_key")
            submissions.append(parse_submission(given, user=user, key_header=key if own is None else None))
        except (InvalidTaskData, InvalidInput) as error:
            for part in [error] if isinstance(error, InvalidTaskData) else error.errors:
                part.field = f"tasks[{position}].{part.field}".rstrip(".")
                errors.append(part)
            if len(errors) >= MAX_ERRORS:
                break
    if errors:
        raise errors[0] if len(errors) == 1 else InvalidInput(errors[:MAX_ERRORS])
    return submissions


def _items(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidTaskData(name, f"{name} must be a list of tasks.", code="list_expected")
    if not value:
        raise InvalidTaskData(name, f"{name} must not be empty.", code="blank")
    if len(value) > MAX_TASKS:
        raise InvalidTaskData(
            name, f"{name} holds {len(value)} tasks; the limit is {MAX_TASKS}.", code="batch_too_large", limit=MAX_TASKS
        )
    return value


def priority(value: Any, name: str) -> Band:
    """Accept a band's name."""
    return parse_band(text(value, name), field=name)


def _capabilities(value: Any, name: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise InvalidTaskData(name, f"{name} must be a list of names.", code="list_expected")
    return check_capabilities(value)


def _anything(value: Any, _: str) -> Any:
    """Leave the check to the services, which are as strict."""
    return value
