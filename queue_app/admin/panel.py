"""A panel for your own admin: the tasks of an object, on the object's page."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from django.db.models import Model
from django.forms import Media
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from queue_app.models import Task
from queue_app.models.querysets import TaskQuerySet
from queue_app.services.read.task_filter import TaskFilter, matching


class TaskPanelMixin:
    """Add a panel with an object's tasks to its change page; name it before ``ModelAdmin``.

    The panel lists the tasks whose parameters name the object::

        @admin.register(Order)
        class OrderAdmin(TaskPanelMixin, admin.ModelAdmin):
            task_panel_parameters = {"order_id": "pk"}
            task_panel_types = ["shop.tasks.send_receipt", "shop.tasks.charge_card"]

    ``task_panel_types`` may stay empty; with many tasks, naming the types makes the search faster.
    For any other selection, override ``task_panel_tasks``. Staff see the panel with the permission
    ``queue_app.view_task``.
    """

    #: Name of a parameter -> attribute of the object. All must be equal.
    task_panel_parameters: ClassVar[Mapping[str, str]] = {}
    task_panel_types: ClassVar[Sequence[str]] = ()
    task_panel_limit = 10

    def task_panel_tasks(self, obj: Model) -> TaskQuerySet:
        """Return the tasks of ``obj``, in any order."""
        wanted = {name: getattr(obj, attribute) for name, attribute in self.task_panel_parameters.items()}
        if not wanted:
            return Task.objects.none()
        texts = {name: value if isinstance(value, int | float | bool) else str(value) for name, value in wanted.items()}
        return matching(TaskFilter(task_types=list(self.task_panel_types), parameters=[[texts]]))

    def task_panel(self, obj: Model) -> SafeString:
        """Return the panel as HTML."""
        found = list(self.task_panel_tasks(obj).with_effective_priority().order_by("-id")[: self.task_panel_limit + 1])
        context = {"tasks": found[: self.task_panel_limit], "more": len(found) > self.task_panel_limit}
        return render_to_string("admin/queue_app/includes/panel.html", context)

    task_panel.short_description = _("Tasks")  # type: ignore[attr-defined]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        fields = super().get_readonly_fields(request, obj)  # type: ignore[misc]
        return [*fields, "task_panel"] if self._shows_panel(request, obj) else fields

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        found = super().get_fieldsets(request, obj)  # type: ignore[misc]
        if not self._shows_panel(request, obj):
            return found
        rest = [
            (name, {**options, "fields": [field for field in options["fields"] if field != "task_panel"]})
            for name, options in found
        ]
        return [*rest, (_("Tasks"), {"fields": ["task_panel"]})]

    def _shows_panel(self, request: HttpRequest, obj: Any) -> bool:
        return obj is not None and request.user.has_perm("queue_app.view_task")

    @property
    def media(self) -> Media:
        own: Media = super().media  # type: ignore[misc]
        return own + Media(css={"all": ["queue_app/admin.css"]})
