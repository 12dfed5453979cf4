"""The pages of tasks. Staff never edit a task by hand; they cancel, reprioritise or run it again."""

import uuid
from collections.abc import Iterable
from typing import Any, Final, cast

from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.forms.widgets import Script
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy

from queue_app.admin.columns import column, two_lines
from queue_app.admin.filters import (
    SORTED,
    BandFilter,
    EndedFilter,
    ErrorClassFilter,
    QueueFilter,
    ScheduleFilter,
    SinceFilter,
    SortFilter,
    StatusFilter,
    TypeFilter,
    WaitFilter,
    WorkerFilter,
    WorkflowFilter,
)
from queue_app.admin.mixins import RECENT, ReadOnlyAdmin, page, with_workers
from queue_app.admin.saved_views import SavedViewsMixin
from queue_app.admin.signals import TaskSignalMixin
from queue_app.admin.task_actions import TaskActionsMixin
from queue_app.admin.task_detail import load_detail, progress_and_logs
from queue_app.admin.task_search import SEARCH_HELP, NotAllowed, read_term
from queue_app.core.options import FILTERS
from queue_app.core.priorities import Band
from queue_app.dashboard import labels
from queue_app.displayed_payload import displayed_payload
from queue_app.models import AuditEntry, Task, TaskPayload, Workflow
from queue_app.models.querysets import TaskQuerySet
from queue_app.services.read.inspect import set_effective_bands
from queue_app.services.read.search import listed, named

#: Parameters of the list's address that may leave few tasks, for whose ended ones there are indexes.
NARROW: Final = frozenset({"queue", "task_type", "worker_id", *FILTERS, "q"}) - {"user"}
#: Maximum number of suggestions of the search.
SUGGESTED: Final = 20


class TaskChangeList(ChangeList):
    """A page of tasks with their effective bands."""

    def get_queryset(self, request: HttpRequest, *args: Any, **kwargs: Any) -> QuerySet[Any]:
        """Sort as asked, and add the bands that promotion gives the tasks."""
        found = cast("TaskQuerySet", super().get_queryset(request, *args, **kwargs))
        if not NARROW.isdisjoint(request.GET):
            found = found.pending_or_ended()
        if order := SORTED.get(request.GET.get("sort", "")):
            found = cast("TaskQuerySet", order(found))
        return found.with_effective_priority()


class TaskAdmin(SavedViewsMixin[Task], TaskActionsMixin, TaskSignalMixin, ReadOnlyAdmin[Task]):
    empty_text = _lazy("No task yet. Code enqueues tasks with .enqueue(), other programs with the API.")
    actions = ("cancel_selected", "retry_selected", "run_now_selected", "reprioritise_selected")
    exact_lookups = ("worker_id", *FILTERS)
    list_display = ("short_id", "type", "state", "band", "when", "where")
    list_display_links = ("short_id",)
    list_filter = (
        StatusFilter, BandFilter, QueueFilter, TypeFilter, WorkerFilter, WaitFilter, SinceFilter, EndedFilter,
        WorkflowFilter, ScheduleFilter, ErrorClassFilter, SortFilter,
    )  # fmt: skip
    suggestions = True
    ordering = ("-id",)  # ids are UUIDv7: the primary key alone sorts them, newest first
    search_fields = ("id", "task_type", "user")  # shows the box; get_search_results searches
    search_help_text = SEARCH_HELP

    band = column(_lazy("priority"), labels.priority_label)

    class Media:
        js = (
            Script("queue_app/task_live.js", defer=True),
            Script("queue_app/morph.js", defer=True),
            Script("queue_app/lists.js", defer=True),
        )

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return TaskChangeList

    def annotate_rows(self, request: HttpRequest, rows: Iterable[Any]) -> None:
        rows = with_workers(request, list(rows))
        flows: dict[uuid.UUID, str] = {}
        if request.user.has_perm("queue_app.view_workflow"):
            ids = {task.workflow_id for task in rows if task.workflow_id is not None}
            flows = dict(Workflow.objects.filter(pk__in=ids).values_list("pk", "name")) if ids else {}
        for task in rows:
            task.workflow_name = flows.get(task.workflow_id)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Task], search_term: str
    ) -> tuple[QuerySet[Task], bool]:
        try:
            wanted, notes = read_term(search_term, may_view_payload=self.may_view_payload(request))
        except NotAllowed as error:
            self.message_user(request, str(error), messages.WARNING)
            return queryset.none(), False
        found, more = listed(wanted, cast("TaskQuerySet", queryset))
        request.taskqueue_notes = notes + more  # type: ignore[attr-defined]  # shown below the search
        return found, False

    @admin.display(description=_lazy("task type"))
    def type(self, task: Task) -> SafeString:
        """Return the function's name as a link to the task, above its module as a link to the page of the type."""
        module, _dot, name = task.task_type.rpartition(".")
        return format_html(
            '<span class="tq-type"><a href="{}">{}</a><small><a href="{}">{}</a></small></span>',
            self.url_of("change", task.pk), labels.breakable(name or task.task_type),
            self.url_of_model("taskstats", "type", task.task_type), module or _("all of this type"),
        )  # fmt: skip

    @admin.display(description=_lazy("queue, user, workflow"))
    def where(self, task: Any) -> SafeString:
        below = []
        if getattr(task, "workflow_name", None):
            below.append((self.url_of_model("workflow", "change", task.workflow_id), task.workflow_name))
        return self.place_of(task, below)

    @admin.display(description=_lazy("id"))
    def short_id(self, task: Task) -> SafeString:
        """Return the end of the id; the beginning is the same for tasks of about the same time."""
        return format_html('<code title="{}">{}</code>', task.id, labels.short_id(task.id))

    @admin.display(description=_lazy("status, attempt"))
    def state(self, task: Task) -> SafeString:
        label = labels.status_label(task)
        if task.failures:
            attempt = _("attempt %(n)d, %(failed)d failed") % {"n": task.attempt, "failed": task.failures}
        elif task.attempt > 1:
            attempt = _("attempt %(n)d") % {"n": task.attempt}
        else:
            return label
        return two_lines(label, attempt)

    @admin.display(description=_lazy("time, worker"))
    def when(self, task: Task) -> SafeString:
        text = labels.when(task, timezone.now())
        name: str | None = getattr(task, "worker_name", None)
        if name is None:
            return text
        url = self.url_of_model("worker", "change", task.worker_id)
        return two_lines(text, format_html('<a href="{}">{}</a>', url, name))

    def page_context(self, request: HttpRequest, found: Task) -> dict[str, Any]:
        set_effective_bands([found])
        letter_id = labels.id_of(request.GET.get("letter", ""))
        may_view = self.may_view_payload(request)
        detail = load_detail(found, timezone.now(), may_view_payload=may_view, letter_id=letter_id)
        of_letter = Q(target="deadletter", target_id=str(detail["letter"].pk)) if detail["letter"] else Q(pk__in=())
        changes = AuditEntry.objects.filter(Q(target="task", target_id=str(found.pk)) | of_letter)[:RECENT]
        may_view_audit = request.user.has_perm("queue_app.view_auditentry")
        return {
            "title": _("Task"),
            "detail": detail,
            "history": self.history_of(changes) if may_view_audit else [],
            "bands": [(band.label, band.value == found.priority) for band in Band],
            **self.buttons(request, found, detail["letter"]),
        }

    @page("suggest/", "suggest", permission="view")
    def suggest_view(self, request: HttpRequest) -> HttpResponse:
        text = request.GET.get("q", "").strip()[:100]
        found = named(text) if text and "\x00" not in text else {}
        names = [name for each in found.values() for name in each][:SUGGESTED]
        return JsonResponse({"names": names}, headers={"Cache-Control": "no-store"})

    @page("<uuid:pk>/live/", "live", permission="view")
    def live_view(self, request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
        """Return a task's progress and log lines as HTML, and its status in a header, for the page's script."""
        if not self.may_view_payload(request):
            raise PermissionDenied
        task = self.get_object(request, str(pk))
        if task is None:
            raise Http404
        secrets = displayed_payload(task.task_type, TaskPayload.objects.filter(pk=task.pk).first())[0]
        progress, logs = progress_and_logs(task, secrets)
        context: dict[str, Any] = {"detail": {"progress": progress, "logs": logs}}
        response = render(request, "admin/queue_app/includes/task_progress.html", context)
        response["Cache-Control"] = "no-store"
        response["X-Task-Status"] = task.status
        return response
