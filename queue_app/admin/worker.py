"""The pages of workers."""

from collections.abc import Iterable
from typing import Any

from django.contrib import admin, messages
from django.db.models import Count, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, gettext_lazy as _lazy

from queue_app.admin.filters import LivingFilter
from queue_app.admin.forms import column, permission, two_lines
from queue_app.admin.mixins import ReadOnlyAdmin, action_page
from queue_app.core.states import Status
from queue_app.dashboard import labels
from queue_app.diagnose.live import is_late
from queue_app.models import Task, Worker
from queue_app.models.worker import LIVING, WorkerStatus
from queue_app.services.worker.registration import request_drain

MAX_RUNNING = 200
#: Running tasks of a worker that the list names.
SHOWN_RUNNING = 3


class WorkerAdmin(ReadOnlyAdmin[Worker]):
    empty_text = _lazy("No worker has registered yet. Start one with manage.py runworker.")
    actions = ("drain_selected",)
    list_display = ("named", "state", "slots", "runs_now", "uses", "served", "tasks_done", "process")
    list_display_links = ("named",)
    list_filter = (LivingFilter,)
    exact_lookups = ("status", "host")
    ordering = ("-id",)
    search_fields = ("name", "host")
    shows_changes = True
    sortable_by = ("named", "tasks_done")  # type: ignore[assignment]

    has_drain_permission = permission("drain_worker")
    slots = column(_lazy("busy / slots"), lambda worker: f"{getattr(worker, 'busy', 0)} / {worker.concurrency}")
    named = column(
        _lazy("name"),
        lambda worker: two_lines(worker.name, worker.host if worker.host != worker.name else ""),
        ordering="name",
    )
    served = column(
        _lazy("queues, capabilities"),
        lambda worker: two_lines(", ".join(worker.queues) or _("all"), ", ".join(worker.capabilities)),
    )
    uses = column(_lazy("CPU, memory"), labels.usage, empty_value="-")
    process = column(
        _lazy("version, process"), lambda worker: two_lines(worker.version or _("unknown version"), process_of(worker))
    )

    def annotate_rows(self, request: HttpRequest, rows: Iterable[Any]) -> None:
        live = [worker.id for worker in rows if worker.status in LIVING]
        running = Task.objects.filter(status=Status.EXECUTING, worker_id__in=live).values_list("worker_id")
        busy = dict(running.annotate(Count("id"))) if live else {}
        runs: dict[Any, list[Task]] = {}
        if live and request.user.has_perm("queue_app.view_task"):
            executing = Task.objects.filter(status=Status.EXECUTING, worker_id__in=live).order_by("started_at")
            for task in executing[:MAX_RUNNING]:
                runs.setdefault(task.worker_id, []).append(task)
        for worker in rows:
            worker.busy = busy.get(worker.id, 0)
            worker.runs = runs.get(worker.id, [])

    @admin.action(description=_lazy("Drain selected workers"), permissions=["drain"])
    def drain_selected(self, request: HttpRequest, queryset: QuerySet[Worker]) -> None:
        asked, skipped = self.act_on_each(queryset, lambda worker: self._drain(request, worker, ""))
        if asked:
            self.message_user(request, _("Asked %(count)d to drain.") % {"count": asked}, messages.SUCCESS)
        if skipped:
            text = _("Skipped %(count)d (not active, or asked before).") % {"count": skipped}
            self.message_user(request, text, messages.WARNING)

    @action_page("drain", "drain")
    def drain_view(self, request: HttpRequest, worker: Worker, reason: str) -> str:
        self._drain(request, worker, reason)
        return _("The worker was asked to finish its tasks, to take no new ones, and to exit.")

    def _drain(self, request: HttpRequest, worker: Worker, reason: str) -> None:
        request_drain(worker.pk, by=request.user.get_username())
        self.audit(
            request, [worker], "Asked to drain.", action="drain", reason=reason,
            before={"status": worker.status}, after={"drain_requested": True},
        )  # fmt: skip

    @admin.display(description=_lazy("runs now"), empty_value="-")
    def runs_now(self, worker: Worker) -> SafeString | None:
        """Return links to some of the running tasks, each with how long it has been running."""
        tasks: list[Task] = getattr(worker, "runs", [])
        shown = [
            (
                self.url_of_model("task", "change", task.pk),
                task.task_type.rpartition(".")[2],
                labels.when(task, timezone.now()),
            )
            for task in tasks[:SHOWN_RUNNING]
        ]
        lines = format_html_join("", '<span class="tq-line"><a href="{}">{}</a> {}</span>', shown)
        more = len(tasks) - len(shown)
        return format_html("{}{}", lines, _("and %(n)d more") % {"n": more} if more > 0 else "") if shown else None

    @admin.display(description=_lazy("status"))
    def state(self, worker: Worker) -> SafeString:
        """Return the status with the heartbeat of a living worker, who asked it to drain, or when it ended."""
        label = format_html('<span class="tq-label tq-worker-{}">{}</span>', worker.status, labels.word(worker.status))
        if worker.status not in LIVING:
            return two_lines(label, labels.ago(worker.stopped_at, timezone.now()) if worker.stopped_at else "")
        if worker.drain_requested_at is None or worker.status != WorkerStatus.ACTIVE:
            return two_lines(label, self.heartbeat(worker))
        return two_lines(label, _("asked to drain by %(name)s") % {"name": worker.drain_requested_by or _("a program")})

    @admin.display(description=_lazy("heartbeat"))
    def heartbeat(self, worker: Worker) -> SafeString:
        now = timezone.now()
        age = format_html("{} {}", _("heartbeat"), labels.ago(worker.last_heartbeat_at, now))
        return format_html('<span class="tq-alert">{} ({})</span>', age, _("late")) if is_late(worker, now) else age

    def page_context(self, request: HttpRequest, found: Worker) -> dict[str, Any]:
        executing = Task.objects.filter(status=Status.EXECUTING, worker_id=found.id)
        return super().page_context(request, found) | {
            "title": _("Worker"),
            "state": self.state(found),
            "busy": executing.count(),
            "uses": labels.usage(found),
            "process": process_of(found),
            "may_drain": self.has_drain_permission(request)
            and found.status == WorkerStatus.ACTIVE
            and found.drain_requested_at is None,
            "running": executing.order_by("started_at")[:MAX_RUNNING],  # shown to those who may see tasks
        }


def process_of(worker: Worker) -> str:
    """Return the process of a worker, with its supervisor if it has one."""
    if not worker.pid:
        return _("over HTTP")
    supervisor = _(", supervisor %(pid)d") % {"pid": worker.supervisor_pid} if worker.supervisor_pid else ""
    return _("pid %(pid)d") % {"pid": worker.pid} + supervisor
