"""Workers: who lives, what each can run and what it runs now."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy

from queue_app.admin.audit_entry import changes_of
from queue_app.admin.mixins import TOOLS_IN_CONTENT, CappedPaginator, ReadOnlyAdmin
from queue_app.core.states import Status
from queue_app.dashboard import labels
from queue_app.exceptions import InvalidTaskData, InvalidTransition
from queue_app.models import Task, Worker
from queue_app.models.audit_entry import REASON_LENGTH
from queue_app.models.worker import WorkerStatus
from queue_app.services.enqueue.validate import check_reason
from queue_app.services.repair.workers import request_drain
from queue_app.sql.database import atomic

MAX_RUNNING = 200
LIVE = (WorkerStatus.ACTIVE, WorkerStatus.DRAINING)


def is_late(worker: Worker, now: datetime) -> bool:
    """Say whether a live worker missed more than one heartbeat."""
    silent = (now - worker.last_heartbeat_at).total_seconds()
    return worker.status in LIVE and silent > 2 * worker.heartbeat_seconds


class WorkerChangeList(ChangeList):
    """A page of workers with how many tasks each runs, counted in one query."""

    def get_results(self, request: HttpRequest) -> None:
        """Read the page, then count what its workers run."""
        super().get_results(request)
        workers: list[Worker] = list(self.result_list)
        live = [worker.id for worker in workers if worker.status in LIVE]
        running = Task.objects.filter(status=Status.EXECUTING, worker_id__in=live).values_list("worker_id")
        busy = dict(running.annotate(Count("id"))) if live else {}
        for worker in workers:
            worker.busy = busy.get(worker.id, 0)  # type: ignore[attr-defined]
        self.result_list = workers


@admin.register(Worker)
class WorkerAdmin(ReadOnlyAdmin[Worker]):
    """The workers, youngest first."""

    empty_text = _lazy("No worker has registered yet. Start one with manage.py runworker.")
    actions = ("drain_selected",)
    list_display = ("name", "state", "heartbeat", "slots", "served", "offers", "tasks_done", "process")
    list_filter = ("status",)
    list_per_page = 50
    exact_lookups = ("status", "host")
    ordering = ("-id",)
    paginator = CappedPaginator
    search_fields = ("name", "host")
    show_full_result_count = False
    sortable_by = ("name", "tasks_done")

    def has_drain_permission(self, request: HttpRequest) -> bool:
        """Say whether the user may ask workers to drain."""
        return request.user.has_perm("queue_app.drain_worker")

    @admin.action(description=_lazy("Drain selected workers"), permissions=["drain"])
    def drain_selected(self, request: HttpRequest, queryset: QuerySet[Worker]) -> None:
        """Ask those that are active to finish what runs and leave."""
        asked = [worker for worker in queryset if self._drain(request, worker, "") is None]
        if asked:
            self.message_user(request, _("Asked %(count)d to drain.") % {"count": len(asked)}, messages.SUCCESS)
        if len(asked) < queryset.count():
            skipped = queryset.count() - len(asked)
            left = _("Skipped %(count)d (not active, or asked before).") % {"count": skipped}
            self.message_user(request, left, messages.WARNING)

    def _drain(self, request: HttpRequest, worker: Worker, reason: str) -> str | None:
        """Ask one worker; return why it could not be asked."""
        try:
            with atomic():
                request_drain(worker.pk, by=request.user.get_username())
                self.audit(
                    request, [worker], "Asked to drain.", action="drain", reason=reason,
                    before={"status": worker.status}, after={"drain_requested": True},
                )  # fmt: skip
        except InvalidTransition as error:
            return str(error)
        return None

    def get_urls(self) -> list[URLPattern]:
        """Put the drain before Django's own addresses."""
        wrap = self.admin_site.admin_view
        return [
            path("<uuid:worker_id>/drain/", wrap(self.drain_view), name="queue_app_worker_drain"),
            *super().get_urls(),
        ]

    def drain_view(self, request: HttpRequest, worker_id: uuid.UUID) -> HttpResponse:
        """Ask one worker to drain."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not (self.has_drain_permission(request) and self.has_view_permission(request)):
            raise PermissionDenied
        worker = self.get_object(request, str(worker_id))
        if worker is None:
            self.message_user(request, _("There is no such worker."), messages.WARNING)
            return HttpResponseRedirect(self.url_of("changelist"))
        reason = request.POST.get("reason", "").strip()
        try:
            problem = self._drain(request, worker, check_reason(reason, REASON_LENGTH))
        except InvalidTaskData as error:
            problem = str(error)
        if problem:
            self.message_user(request, problem, messages.ERROR)
        else:
            said = _("The worker was asked to finish what it runs, to take nothing new, and to leave.")
            self.message_user(request, said, messages.SUCCESS)
        return HttpResponseRedirect(self.url_of("change", worker_id))

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[WorkerChangeList]:
        """Return the list that counts what runs."""
        return WorkerChangeList

    @admin.display(description=_lazy("status"))
    def state(self, worker: Worker) -> SafeString:
        """Return the status as a label."""
        label = format_html('<span class="tq-label tq-worker-{}">{}</span>', worker.status, worker.status)
        if worker.drain_requested_at is None or worker.status != WorkerStatus.ACTIVE:
            return label
        asked = _("asked to drain by %(name)s") % {"name": worker.drain_requested_by or _("a program")}
        return format_html('{}<small class="tq-below">{}</small>', label, asked)

    @admin.display(description=_lazy("heartbeat"))
    def heartbeat(self, worker: Worker) -> SafeString:
        """Return how long ago the worker was heard of."""
        now = timezone.now()
        age = labels.ago(worker.last_heartbeat_at, now)
        return format_html('<span class="tq-alert">{} ({})</span>', age, _("late")) if is_late(worker, now) else age

    @admin.display(description=_lazy("busy / slots"))
    def slots(self, worker: Worker) -> str:
        """Return how many slots are in use, of how many."""
        return f"{getattr(worker, 'busy', 0)} / {worker.concurrency}"

    @admin.display(description=_lazy("queues"))
    def served(self, worker: Worker) -> str:
        """Return the queues that it serves."""
        return ", ".join(worker.queues) or _("all")

    @admin.display(description=_lazy("capabilities"), empty_value="-")
    def offers(self, worker: Worker) -> str | None:
        """Return the capabilities that it offers."""
        return ", ".join(worker.capabilities) or None

    @admin.display(description=_lazy("host / pid, version"))
    def process(self, worker: Worker) -> SafeString:
        """Return where the process runs, and which version."""
        return format_html(
            '{} / {}<small class="tq-below">{}</small>', worker.host, worker.pid, worker.version or _("unknown version")
        )

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Show the worker's page, with what it runs now for those who may see tasks."""
        worker: Worker | None = kwargs.get("obj")
        if worker is not None:
            executing = Task.objects.filter(status=Status.EXECUTING, worker_id=worker.id)
            may_view_tasks = request.user.has_perm("queue_app.view_task")
            context |= {
                "title": _("Worker"),
                "tools_in_content": TOOLS_IN_CONTENT,
                "state": self.state(worker),
                "heartbeat": self.heartbeat(worker),
                "busy": executing.count(),
                "may_view_tasks": may_view_tasks,
                "may_drain": self.has_drain_permission(request)
                and worker.status == WorkerStatus.ACTIVE
                and worker.drain_requested_at is None,
                "history": changes_of("worker", str(worker.pk)),
                "may_view_audit": request.user.has_perm("queue_app.view_auditentry"),
                "running": list(executing.order_by("started_at")[:MAX_RUNNING]) if may_view_tasks else [],
            }
        return super().render_change_form(request, context, *args, **kwargs)
