"""The Django admin of the queue; works with the plain ``django.contrib.admin`` site.

Django imports this package in every process. The classes of the pages are imported when the site is asked for its
addresses or checked, so workers and commands do without them.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from django.apps import apps
from django.contrib import admin
from django.db.models import Model
from django.utils.functional import SimpleLazyObject
from django.utils.module_loading import import_string

from queue_app.admin.site import group_menu, limit_logins, show_verdict, translate_names
from queue_app.core import rooms

if TYPE_CHECKING:
    from queue_app.admin.panel import TaskPanelMixin

__all__ = ["TaskPanelMixin"]

#: {model: module and class of its pages}; rooms have more.
PAGES: Final = {
    "ApiKey": "credentials.ApiKeyAdmin",
    "AuditEntry": "audit_entry.AuditEntryAdmin",
    "DeadLetter": "dead_letter.DeadLetterAdmin",
    "IndexGeneration": "stats.IndexGenerationAdmin",
    "Limit": "policy.LimitAdmin",
    "MaintenanceJob": "stats.MaintenanceJobAdmin",
    "Operation": "operation.OperationAdmin",
    "PriorityPolicy": "policy.PriorityPolicyAdmin",
    "Queue": "queue.QueueAdmin",
    "QueueStats": "stats.QueueStatsAdmin",
    "RuntimeSettings": "policy.RuntimeSettingsAdmin",
    "SavedView": "audit_entry.SavedViewAdmin",
    "Task": "task.TaskAdmin",
    "TaskStats": "stats.TaskStatsAdmin",
    "Worker": "worker.WorkerAdmin",
}


def _imported_later(path: str) -> Callable[[type[Model], admin.AdminSite], Any]:
    return lambda model, site: SimpleLazyObject(lambda: import_string(path)(model, site))


_own = {name: f"{__name__}.{path}" for name, path in PAGES.items()}
for name, path in (_own | rooms.paths("pages")).items():
    admin.site.register(apps.get_model("queue_app", name), _imported_later(path))  # type: ignore[arg-type]
translate_names()
group_menu(admin.site)
limit_logins(admin.site)
show_verdict(admin.site)


def __getattr__(name: str) -> Any:
    if name in __all__:
        return import_string(f"{__name__}.panel.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
