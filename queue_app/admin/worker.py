"""Workers: who lives, what each can run and what it runs now."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from queue_app.admin.mixins import TOOLS_IN_CONTENT, CappedPaginator, ReadOnlyAdmin
from queue_app.core.states import Status
from queue_app.dashboard import labels
from queue_app.models import Task, Worker
from queue_app.models.worker import WorkerStatus

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

    list_display = ("name", "state", "heartbeat", "slots", "served", "offers", "tasks_done", "process")
    list_filter = ("status",)
    list_per_page = 50
    exact_lookups = ("status", "host")
    ordering = ("-id",)
    paginator = CappedPaginator
    search_fields = ("name", "host")
    show_full_result_count = False
    sortable_by = ("name", "tasks_done")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[WorkerChangeList]:
        """Return the list that counts what runs."""
        return WorkerChangeList

    @admin.display(description="status")
    def state(self, worker: Worker) -> SafeString:
        """Return the status as a label."""
        return format_html('<span class="tq-label tq-worker-{}">{}</span>', worker.status, worker.status)

    @admin.display(description="heartbeat")
    def heartbeat(self, worker: Worker) -> SafeString:
        """Return how long ago the worker was heard of."""
        now = timezone.now()
        age = labels.ago(worker.last_heartbeat_at, now)
        return format_html('<span class="tq-alert">{} (late)</span>', age) if is_late(worker, now) else age

    @admin.display(description="busy / slots")
    def slots(self, worker: Worker) -> str:
        """Return how many slots are in use, of how many."""
        return f"{getattr(worker, 'busy', 0)} / {worker.concurrency}"

    @admin.display(description="queues")
    def served(self, worker: Worker) -> str:
        """Return the queues that it serves."""
        return ", ".join(worker.queues) or "all"

    @admin.display(description="capabilities", empty_value="-")
    def offers(self, worker: Worker) -> str | None:
        """Return the capabilities that it offers."""
        return ", ".join(worker.capabilities) or None

    @admin.display(description="host / pid, version")
    def process(self, worker: Worker) -> SafeString:
        """Return where the process runs, and which version."""
        return format_html(
            '{} / {}<small class="tq-below">{}</small>', worker.host, worker.pid, worker.version or "unknown version"
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
                "title": "Worker",
                "tools_in_content": TOOLS_IN_CONTENT,
                "state": self.state(worker),
                "heartbeat": self.heartbeat(worker),
                "busy": executing.count(),
                "may_view_tasks": may_view_tasks,
                "running": list(executing.order_by("started_at")[:MAX_RUNNING]) if may_view_tasks else [],
            }
        return super().render_change_form(request, context, *args, **kwargs)
