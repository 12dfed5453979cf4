"""Turn the body of a request into a ``NewTask``, or into many."""

import hashlib
from typing import Any, Final

from queue_app.api.errors import InvalidInput
from queue_app.api.fields import Reader, json_object, list_of, text
from queue_app.core.parsing import timestamp
from queue_app.core.priorities import Band, parse_band
from queue_app.core.records import NewTask
from queue_app.exceptions import InvalidTaskData
from queue_app.services.enqueue.validate import check_capabilities, check_queue_name

#: Header that may carry the idempotency key instead of the body.
KEY_HEADER: Final = "Idempotency-Key"
KEY_META: Final = "HTTP_IDEMPOTENCY_KEY"  # its name in META; reading ``request.headers`` would parse every header
MAX_TASKS: Final = 1000
MAX_ERRORS: Final = 20
FIELDS: Final = (
    "task_type", "parameters", "queue", "priority", "capabilities", "run_after", "delay", "timeout", "max_retries",
    "idempotency_key", "concurrency_key", "weight",
)  # fmt: skip
READ_ONLY: Final = (
    "args", "attempt", "attempts", "cancel_requested_at", "created_at", "deadline", "failures", "finished_at", "id",
    "options", "queue_position", "queued_at", "replayed", "result", "retry_delay", "started_at", "status", "task_id",
    "user", "worker_id",
)  # fmt: skip


def parse_submission(data: dict[str, Any], *, user: str, key_header: str | None) -> NewTask:
    """Return the task that the body describes; raise every error that is visible without the database."""
    with Reader(data, FIELDS, READ_ONLY) as reader:
        task_type = reader.required("task_type", text, "")
        parameters: dict[str, Any] = {}
        if "parameters" in data:
            parameters = reader.required("parameters", json_object, parameters)
        queue = reader.optional("queue", lambda value, _: check_queue_name(value))
        band = reader.optional("priority", priority)
        capabilities = reader.optional("capabilities", _capabilities)
        run_after = reader.optional("run_after", timestamp)
        # The services check the other fields.
        delay, key = data.get("delay"), data.get("idempotency_key")
        if run_after is not None and delay is not None:
            reader.add_error(InvalidTaskData("delay", "Give run_after or delay, not both.", code="conflicting_fields"))
        if key_header is not None and key is not None and key != key_header:
            message = f"The body and the header {KEY_HEADER} differ."
            reader.add_error(InvalidTaskData("idempotency_key", message, code="conflicting_fields"))
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
    """Return the tasks of a body with ``tasks``; raise the errors of all items together, each with its position.

    A key in the header covers the whole request: each task without its own key gets a key derived from it.
    """
    with Reader(data, ("tasks",)) as reader:
        items: list[Any] = reader.required("tasks", _items, [])
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
    items = list_of(MAX_TASKS, "batch_too_large")(value, name)
    if not items:
        raise InvalidTaskData(name, f"{name} must not be empty.", code="blank")
    return items


def priority(value: Any, name: str) -> Band:
    """Accept the name of a band."""
    return parse_band(text(value, name), field=name)


def _capabilities(value: Any, name: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise InvalidTaskData(name, f"{name} must be a list of names.", code="list_expected")
    return check_capabilities(value)
