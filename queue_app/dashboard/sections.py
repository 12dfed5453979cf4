"""The admin's pages in sections, each page with its purpose."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy

from queue_app import conf


class SectionPage(NamedTuple):
    """A page: its model from Django's ``app_list``, and its purpose."""

    model: Mapping[str, Any]
    about: str


class Section(NamedTuple):
    """Pages that belong together."""

    title: str
    pages: list[SectionPage]


_WORK, _RULES, _RECORD, _MACHINERY = _lazy("Work"), _lazy("Rules"), _lazy("Record"), _lazy("Machinery")
#: Name of the overview's entry in the menu; it stands for no model.
OVERVIEW: Final = "Overview"
#: The same of webhook deliveries.
DELIVERIES: Final = "WebhookDelivery"
#: (section, model, purpose), in the order of the page.
_PAGES: Final[tuple[tuple[Any, str, Any], ...]] = (
    (_WORK, "Task", _lazy("find, follow, cancel, retry")),
    (_WORK, "Workflow", _lazy("tasks that wait for each other; the graph, pause, compensate")),
    (_WORK, "TaskStats", _lazy("how often, how long, how many failed; by type, user and key")),
    (_WORK, "DeadLetter", _lazy("tasks that failed for good: replay or discard them")),
    (_WORK, "Queue", _lazy("pause, limit, order")),
    (_WORK, "Worker", _lazy("what each runs; drain")),
    (_RULES, "Schedule", _lazy("what starts when; pause, run now")),
    (_RULES, "Limit", _lazy("limits of task types and concurrency keys")),
    (_RULES, "PriorityPolicy", _lazy("retries, timeouts and promotion of each band")),
    (_RULES, "RuntimeSettings", _lazy("limits over all queues; pause everything")),
    (_RECORD, "AuditEntry", _lazy("who changed what, and why")),
    (_RECORD, "Operation", _lazy("actions on many tasks or dead letters")),
    (_RECORD, "SavedView", _lazy("lists that staff have saved")),
    (_MACHINERY, "ApiKey", _lazy("programs that call the API as a user")),
    (_MACHINERY, "WorkerToken", _lazy("workers on other machines that work over HTTP")),
    (_MACHINERY, "MaintenanceJob", _lazy("when each job succeeded last")),
    (_MACHINERY, "QueueStats", _lazy("a snapshot of each queue per minute")),
    (_MACHINERY, "IndexGeneration", _lazy("the index in Redis")),
)


def _deliveries(tasks: Mapping[str, Any]) -> SectionPage:
    """Return the page of webhook deliveries: the list of tasks with a filter."""
    address = f"{tasks.get('admin_url')}?task_type=queue_app.webhooks.deliver"
    entry = {"name": _("Webhook deliveries"), "object_name": DELIVERIES, "admin_url": address, "add_url": None}
    return SectionPage(dict(tasks) | entry, _("signed calls to other services: what was sent, what is tried again"))


def sections(models: Sequence[Mapping[str, Any]]) -> list[Section]:
    """Return the models of Django's ``app_list`` in sections; other models come last."""
    rest = {str(model["object_name"]): model for model in models if model["object_name"] != OVERVIEW}
    found: dict[str, list[SectionPage]] = {}
    for title, name, about in _PAGES:
        if name in rest:
            found.setdefault(str(title), []).append(page := SectionPage(rest.pop(name), str(about)))
            if name == "Task" and conf.get().webhooks:
                found[str(title)].append(_deliveries(page.model))
    if rest:
        found[_("More")] = [SectionPage(model, "") for model in rest.values()]
    return [Section(title, pages) for title, pages in found.items()]
