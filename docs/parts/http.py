"""The addresses of the API, and its errors."""

import re

from parts.markdown import code, summary_of, table
from queue_app.api import errors
from queue_app.api.serializers import tasks, workers
from queue_app.urls import urlpatterns

#: Codes in the entries of `errors`, in addition to those of the table of errors.
FIELD_CODES = {
    "encrypted": "An encrypted task: its values cannot be searched, and a request stream cannot submit it.",
    "batch_too_large": "More tasks in one request than `limit`.",
    "blank": "An empty string where a value is needed.",
    "boolean_expected": "Not true or false.",
    "body_required": "The request has no body.",
    "capability_not_allowed": "The worker's token does not allow this capability. Answered with 403.",
    "conflicting_fields": "Two fields, or a field and a header, contradict each other.",
    "date_out_of_range": "A time outside the bounds in the message.",
    "datetime_expected": "Not a date and time.",
    "duplicate_in_batch": "Two tasks of one request have the same idempotency key.",
    "duplicate_key": "A key occurs twice in one JSON object.",
    "integer_expected": "Not a whole number.",
    "invalid_characters": "Control or invisible characters.",
    "invalid_cursor": "Not a cursor of an earlier page.",
    "invalid_id": "Not a UUID, or not the id of an event.",
    "invalid_json": "The body is not JSON; the message says where.",
    "invalid_name": "Not a name of a queue or capability.",
    "invalid_workflow": "Not a graph that can run; the message says why.",
    "invalid_unicode": "An unpaired surrogate.",
    "invalid_payload": "The payload of a signal does not match what the waiting task declares.",
    "list_expected": "Not a list.",
    "masked_value": "The mask `********` where no masked value was.",
    "non_finite_number": "NaN or an infinity.",
    "not_json": "A value that JSON cannot hold (from Python code).",
    "nul_not_allowed": "A NUL character in a text.",
    "number_expected": "Not a number.",
    "number_out_of_range": "A number that JSON readers would round or refuse; integers go up to ±2^53.",
    "number_too_long": "An integer of more than 20 digits.",
    "object_expected": "Not a JSON object with string keys.",
    "out_of_range": "A number outside its bounds; `limit` holds the upper one.",
    "payload_too_large": "More bytes than `PAYLOAD.MAX_BYTES`, or too large a body. Answered with 413.",
    "queue_not_allowed": "The worker's token does not allow this queue. Answered with 403.",
    "read_only_field": "A field that the queue sets, not the caller.",
    "repeated_parameter": "A query parameter is given twice.",
    "reversed_range": "A range of times that ends before it begins.",
    "required": "A required field is missing.",
    "sensitive_parameter": "A filter by a parameter whose value is masked.",
    "string_expected": "Not a string.",
    "timezone_required": "A time without a time zone.",
    "too_deep": "More levels of nesting than `PAYLOAD.MAX_DEPTH`.",
    "too_many": "More values in one filter than allowed.",
    "too_many_nodes": "More values than `PAYLOAD.MAX_NODES`.",
    "unknown_action": "Not an action for many tasks; the message lists the actions.",
    "invalid_cron": "Not a cron expression, or one that never ticks or ticks every second.",
    "unknown_zone": "Not a time zone.",
    "wrong_arguments": "The function of the task does not take these arguments.",
    "unknown_choice": "Not an allowed value; the message lists the values.",
    "unknown_event": "The `event` of a request in the stream is not `ExecutionRequested`.",
    "unknown_field": "A field that this request does not have; the message suggests the most similar one.",
    "unknown_format": "Not a format of this list; the message lists the formats.",
    "unknown_parameter": "A query parameter that this list does not have.",
    "unknown_priority": "Not the name of a band.",
    "unknown_queue": "No such queue; `near_matches` lists similar names.",
    "unknown_status": "Not the name of a state.",
    "utf8_required": "The body is not plain UTF-8.",
    "user_not_allowed": "A request in the stream names a user that `REQUESTS.USER` does not allow.",
    "unknown_task_type": "No registered task has this type; `near_matches` lists similar names.",
}


def endpoints() -> str:
    """Return the table of addresses."""
    rows = []
    for pattern in urlpatterns:
        if pattern.name == "missing":
            continue
        view = pattern.callback.view_class
        address = re.sub(r"\(\?P<(\w+)>[^)]*\)", r"{\1}", str(pattern.pattern)).removeprefix("^").removesuffix(r"/?\Z")
        for method in ("get", "post", "put", "patch", "delete"):
            if method in view.http_method_names and hasattr(view, method):
                summary = summary_of(getattr(view, method))
                rows.append((code(method.upper()), code(f"/{address}"), summary))
    return table(("method", "address", "does"), rows)


def former_names() -> str:
    """Return the table of the names that requests may still use."""
    bodies = {
        "tasks and schedules: body": tasks.Submission.aliases,
        "tasks: filter, in a query or a body": tasks.TaskFilters.aliases,
        "tasks: a name in `fields`": tasks.FORMER_FIELDS,
        "lists of workflows and ticks: query": tasks.FORMER_PAGE,
        "`/internal/workers/register`": workers.WorkerRegistration.aliases,
        "`/internal/workers/{id}/poll`": workers.Poll.aliases,
    }
    rows = [(where, code(name), code(old)) for where, names in bodies.items() for old, name in names.items()]
    return table(("in", "name", "also accepted"), rows)


def http_errors() -> str:
    """Return the table of errors: status and code of each."""
    rows = {}
    for rule in (*errors.RULES, errors.UNEXPECTED):
        name = rule.code or getattr(rule.error, "code", "")
        rows.setdefault((rule.status, name), rule.detail or summary_of(rule.error))
    del rows[403, "task_queue_error"]  # each error has a code of its own, which the other table lists
    rows[403, "permission_denied"] = "You may not do this; the detail names the missing permission."
    rows[503, "storage_full"] = "The database has no room left."
    return table(
        ("status", "`code`", "says"),
        ((status, code(name), text) for (status, name), text in sorted(rows.items())),
    )


def field_errors() -> str:
    """Return the table of the codes in `errors`."""
    return table(("`code`", "means"), ((code(name), text) for name, text in sorted(FIELD_CODES.items())))
