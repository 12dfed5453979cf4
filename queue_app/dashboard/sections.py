"""The admin's pages in sections, each with its purpose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy


class Page(NamedTuple):
    """A page: its model from Django's ``app_list``, and its purpose."""

    model: Mapping[str, Any]
    about: str


class Section(NamedTuple):
    """Pages that belong together."""

    title: str
    pages: list[Page]


_SECTIONS: Final[tuple[tuple[Any, dict[str, Any]], ...]] = (
    (
        _lazy("Work"),
        {
            "Task": _lazy("find, follow, cancel, retry"),
            "DeadLetter": _lazy("tasks that failed for good: replay or discard them"),
            "Queue": _lazy("pause, limit, order"),
            "Worker": _lazy("what each runs; drain"),
        },
    ),
    (
        _lazy("Rules"),
        {
            "PriorityPolicy": _lazy("retries, timeouts and promotion of each band"),
            "Limit": _lazy("limits of task types and concurrency keys"),
            "RuntimeSettings": _lazy("limits over all queues; pause everything"),
        },
    ),
    (
        _lazy("Record"),
        {
            "Operation": _lazy("actions on many tasks or dead letters"),
            "AuditEntry": _lazy("who changed what, and why"),
            "SavedView": _lazy("lists that staff have saved"),
        },
    ),
    (
        _lazy("Machinery"),
        {
            "QueueStats": _lazy("a snapshot of each queue per minute"),
            "MaintenanceJob": _lazy("when each job succeeded last"),
            "IndexGeneration": _lazy("the index in Redis"),
        },
    ),
)


def sections(models: Sequence[Mapping[str, Any]]) -> list[Section]:
    """Return the models of Django's ``app_list`` in sections; other models come last."""
    rest = {str(model["object_name"]): model for model in models}
    found: list[Section] = []
    for title, names in _SECTIONS:
        pages = [Page(rest.pop(name), str(about)) for name, about in names.items() if name in rest]
        if pages:
            found.append(Section(str(title), pages))
    if rest:
        found.append(Section(_("More"), [Page(model, "") for model in rest.values()]))
    return found
