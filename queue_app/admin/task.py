"""Tasks: found, read, cancelled and reprioritised; never edited by hand."""

from __future__ import annotations

from typing import Any, cast

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy

from queue_app.admin.mixins import TOOLS_IN_CONTENT, CappedPaginator, ReadOnlyAdmin
from queue_app.admin.saved_views import SavedViewsMixin
from queue_app.admin.task_actions import PRIORITY_ACTIONS, TaskActionsMixin
from queue_app.admin.task_detail import load_detail
from queue_app.admin.task_list import (
    BandFilter,
    QueueFilter,
    SinceFilter,
    StatusFilter,
    TaskChangeList,
    TypeFilter,
    search,
)
from queue_app.admin.task_live import TaskLiveMixin
from queue_app.admin.task_search import SEARCH_HELP, Ambiguous, NotAllowed, read_term
from queue_app.core.priorities import Band
from queue_app.dashboard import labels
from queue_app.models import Task
from queue_app.models.audit_entry import REASON_LENGTH
from queue_app.models.querysets import TaskQuerySet
from queue_app.services.read.task_filter import matching


@admin.register(Task)
class TaskAdmin(SavedViewsMixin[Task], TaskActionsMixin, TaskLiveMixin, ReadOnlyAdmin[Task]):
    """The tasks, newest first."""

    empty_text = _lazy("No task yet. Code enqueues them with .enqueue(), other programs over the API.")
    actions = ("cancel_selected", "retry_selected", "run_now_selected", *PRIORITY_ACTIONS)
    exact_lookups = ("user", "worker_id")
    list_display = ("short_id", "type", "state", "band", "when", "where")
    list_display_links = ("short_id", "type")
    list_filter = (StatusFilter, BandFilter, QueueFilter, TypeFilter, SinceFilter)
    list_per_page = 50
    ordering = ("-id",)  # ids are UUIDv7: newest first, by the primary key alone
    paginator = CappedPaginator
    search_fields = ("id", "task_type", "user")  # shows the box; get_search_results decides
    search_help_text = SEARCH_HELP
    show_full_result_count = False
    sortable_by = ()  # any other order would sort the whole table

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[TaskChangeList]:
        """Return the list that knows the workers of its page."""
        return TaskChangeList

    def get_queryset(self, request: HttpRequest) -> QuerySet[Task]:
        """Return the tasks with the bands that their ages give them."""
        return cast("TaskQuerySet", super().get_queryset(request)).with_effective_priority()

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Task], search_term: str
    ) -> tuple[QuerySet[Task], bool]:
        """Search by id, beginning of the type, user, error, or a parameter."""
        try:
            wanted = read_term(search_term, may_view_payload=self.may_view_payload(request))
        except NotAllowed as error:
            self.message_user(request, str(error), messages.WARNING)
            return queryset.none(), False
        except Ambiguous:
            return search(queryset, search_term), False
        return matching(wanted, cast("TaskQuerySet", queryset)), False

    @admin.display(description=_lazy("id"))
    def short_id(self, task: Task) -> SafeString:
        """Return the part of the id that differs between neighbours."""
        return format_html('<code title="{}">{}</code>', task.id, labels.short_id(task.id))

    @admin.display(description=_lazy("task type"))
    def type(self, task: Task) -> SafeString:
        """Return the function's name with its module beneath."""
        return labels.type_label(task.task_type)

    @admin.display(description=_lazy("priority"))
    def band(self, task: Task) -> SafeString:
        """Return the band as a label, with its own where promotion raised it."""
        return labels.priority_label(task)

    @admin.display(description=_lazy("status, attempt"))
    def state(self, task: Task) -> SafeString:
        """Return the status as a label, and which attempt it is when that tells something."""
        label = labels.status_label(task)
        if task.attempt <= 1 and not task.failures:
            return label
        said = _("attempt %(n)d") % {"n": task.attempt}
        if task.failures:
            said = _("attempt %(n)d, %(failed)d failed") % {"n": task.attempt, "failed": task.failures}
        return format_html('{}<small class="tq-below">{}</small>', label, said)

    @admin.display(description=_lazy("time, worker"))
    def when(self, task: Task) -> SafeString:
        """Return how long it waits, runs or ran, and a link to the worker that runs it or ran it last."""
        text = labels.when(task, timezone.now())
        name: str | None = getattr(task, "worker_name", None)
        if name is None:
            return text
        url = reverse("admin:queue_app_worker_change", args=[task.worker_id], current_app=self.admin_site.name)
        return format_html('{}<small class="tq-below"><a href="{}">{}</a></small>', text, url, name)

    @admin.display(description=_lazy("queue, user"))
    def where(self, task: Task) -> SafeString | str:
        """Return the queue, and on whose behalf it runs."""
        return format_html('{}<small class="tq-below">{}</small>', task.queue, task.user) if task.user else task.queue

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Show the task's page, with what belongs to it."""
        task: Task | None = kwargs.get("obj")
        if task is not None:
            context |= {
                "title": _("Task"),
                "reason_length": REASON_LENGTH,
                "tools_in_content": TOOLS_IN_CONTENT,
                "detail": load_detail(task, timezone.now(), may_view_payload=self.may_view_payload(request)),
                "bands": [(band.label, band.value == task.priority) for band in Band],
                **self.buttons(request, task),
                "may_view_workers": request.user.has_perm("queue_app.view_worker"),
                "may_view_queues": request.user.has_perm("queue_app.view_queue"),
                "may_view_letters": request.user.has_perm("queue_app.view_deadletter"),
            }
        return super().render_change_form(request, context, *args, **kwargs)
