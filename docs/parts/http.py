"""The addresses of the API, and its errors."""

import re

from parts.markdown import code, summary_of, table
from queue_app.api import errors
from queue_app.api.serializers import tasks
from queue_app.remote import serializers as workers
from queue_app.urls import urlpatterns


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
