"""Queues: what waits and runs in each, their limits, pause and resume."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ActionForm
from django.contrib.admin.utils import quote, unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext_lazy as _lazy

from queue_app.admin.audit_entry import changes_of
from queue_app.admin.live import LiveMixin
from queue_app.admin.mixins import QueueAppAdmin, ReasonForm
from queue_app.core.states import PENDING
from queue_app.dashboard import labels
from queue_app.dashboard.overview import oldest_seconds, summaries
from queue_app.models import Queue, Task
from queue_app.rows.database import atomic
from queue_app.services import pause, resume
from queue_app.services.stats import QueueSummary

UNREACHABLE = "Depth and activity are not known: Redis cannot be reached. Queues and tasks are safe in PostgreSQL."
REASON_LENGTH = 200  # as long as Queue.paused_reason


#: After so many seconds a pause ends by itself.
LENGTHS = (("", "until resumed"), ("900", "15 min"), ("3600", "1 h"), ("14400", "4 h"), ("86400", "24 h"))


class PauseForm(forms.Form):
    """The reason of a pause, which staff read later, and how long it lasts."""

    reason = forms.CharField(required=False, max_length=REASON_LENGTH)
    seconds = forms.ChoiceField(choices=LENGTHS, required=False)

    @property
    def resume_at(self) -> datetime | None:
        """When the pause ends by itself."""
        seconds = self.cleaned_data["seconds"]
        return timezone.now() + timedelta(seconds=int(seconds)) if seconds else None


class QueueActionForm(ActionForm):
    """The list's actions with a reason for a pause, and its length."""

    reason = forms.CharField(label="Reason of a pause:", required=False, max_length=REASON_LENGTH)
    seconds = forms.ChoiceField(label="It lasts:", choices=LENGTHS, required=False)


class QueueChangeList(ChangeList):
    """A page of queues with what the index says of each."""

    def get_results(self, request: HttpRequest) -> None:
        """Read the page, then the index once for each queue of it."""
        super().get_results(request)
        if request.method != "GET":
            return
        found, error = summaries(self.result_list)
        for queue in self.result_list:  # the rows stay cached in it, so the columns find this
            queue.summary = found.get(queue.name)
        if error:
            messages.warning(request, UNREACHABLE)


@admin.register(Queue)
class QueueAdmin(LiveMixin, QueueAppAdmin[Queue]):
    """The queues."""

    action_form = QueueActionForm
    actions = ("pause_selected", "resume_selected")
    fieldsets = (
        (None, {"fields": ("name", "description", "reason")}),
        (
            "Limits",
            {
                "fields": (
                    ("max_concurrent", "max_concurrent_per_user"),
                    ("rate_count", "rate_seconds", "rate_burst"),
                    "min_delay_seconds",
                    ("max_length", "max_pending_per_user"),
                ),
                "description": "They hold from the next claim on.",
            },
        ),
        ("Order", {"fields": ("order", "fair_by", "fair_weights")}),
        ("Attempts", {"fields": (("max_retries", "timeout_seconds"),)}),
        ("Expiry", {"fields": (("stale_after_seconds", "expire_eagerly"),)}),
    )
    form = ReasonForm
    list_display = (
        "name", "state", "depth", "running", "oldest", "max_concurrent", "rate_count", "rate_seconds", "about"
    )  # fmt: skip
    list_editable = ("max_concurrent", "rate_count", "rate_seconds")
    list_per_page = 50
    ordering = ("name",)
    search_fields = ("name", "description")
    sortable_by = ("name", "max_concurrent")

    def formfield_for_dbfield(self, db_field: Any, request: Any, **kwargs: Any) -> Any:
        """Give texts of a few lines no more room than they need."""
        if db_field.name in {"description", "fair_weights"}:
            kwargs["widget"] = forms.Textarea({"rows": 2, "cols": 60})
        return super().formfield_for_dbfield(db_field, request, **kwargs)

    def has_pause_permission(self, request: HttpRequest) -> bool:
        """Say whether the user may pause and resume queues."""
        return request.user.has_perm("queue_app.pause_queue")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[QueueChangeList]:
        """Return the list that asks the index."""
        return QueueChangeList

    def get_readonly_fields(self, request: HttpRequest, obj: Queue | None = None) -> tuple[str, ...]:
        """Keep the name once the queue exists: its tasks refer to it."""
        return ("name",) if obj else ()

    def save_model(self, request: HttpRequest, obj: Queue, form: forms.ModelForm[Queue], change: Any) -> None:
        """Write only what was edited, so that a pause of this very moment is not undone."""
        if change:
            names = [name for name in form.changed_data if name != "reason"]
            obj.save(update_fields=[*names, "updated_at"])
        else:
            super().save_model(request, obj, form, change)

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Protect queues in which something is pending."""
        to_delete, model_count, perms_needed, protected = super().get_deleted_objects(objs, request)
        busy = [
            f"Queue {queue.name}: it has pending tasks. Let them finish, or cancel them, before you delete it."
            for queue in objs
            if _has_pending(queue.name)
        ]
        return to_delete, model_count, perms_needed, [*protected, *busy]

    # -- columns ------------------------------------------------------------------

    @admin.display(description=_lazy("state"))
    def state(self, queue: Queue) -> SafeString:
        """Return running, or paused with by whom, when and why."""
        if not queue.paused:
            return format_html('<span class="tq-label tq-running">{}</span>', "running")
        since = format_html(" {}", labels.ago(queue.paused_at, timezone.now())) if queue.paused_at else ""
        until = format_html("; goes on {}", labels.ago(queue.resume_at, timezone.now())) if queue.resume_at else ""
        return format_html(
            '<span class="tq-label tq-paused">paused</span> <span class="tq-quiet">{}{}{}{}</span>',
            f"by {queue.paused_by}" if queue.paused_by else "by a program",
            since,
            f": {queue.paused_reason}" if queue.paused_reason else "",
            until,
        )

    @admin.display(description=_lazy("queued"))
    def depth(self, queue: Queue) -> SafeString | str:
        """Return the queued tasks of each band."""
        summary = _summary(queue)
        if summary is None:
            return "-"
        waiting = [(labels.band_label(band), stats.depth) for band, stats in summary.bands.items() if stats.depth]
        return format_html_join(" ", '<span class="tq-count">{} {}</span>', waiting) if waiting else "0"

    @admin.display(description=_lazy("running / cap"))
    def running(self, queue: Queue) -> str:
        """Return how many tasks run, of how many that may."""
        summary = _summary(queue)
        cap = "no cap" if queue.max_concurrent is None else str(queue.max_concurrent)
        return f"{'-' if summary is None else summary.active} / {cap}"

    @admin.display(description=_lazy("oldest waits"))
    def oldest(self, queue: Queue) -> str:
        """Return the age of the task that waits longest."""
        seconds = oldest_seconds(_summary(queue))
        return "-" if seconds is None else labels.age(seconds)

    @admin.display(description=_lazy("description"))
    def about(self, queue: Queue) -> str:
        """Return the description's beginning."""
        return Truncator(queue.description).chars(80)

    # -- pause and resume -----------------------------------------------------------

    @admin.action(description=_lazy("Pause selected queues"), permissions=["pause"])
    def pause_selected(self, request: HttpRequest, queryset: QuerySet[Queue]) -> None:
        """Pause those that are not paused yet."""
        form = PauseForm(request.POST)
        if not form.is_valid():
            self.message_user(request, "The reason is too long, or the length unknown.", messages.ERROR)
            return
        names = [queue.name for queue in queryset if not queue.paused]
        self._pause(request, names, form)
        _report(request, "Paused", len(names), queryset.count() - len(names), "already paused")

    @admin.action(description=_lazy("Resume selected queues"), permissions=["pause"])
    def resume_selected(self, request: HttpRequest, queryset: QuerySet[Queue]) -> None:
        """Resume those that are paused."""
        paused = [queue for queue in queryset if queue.paused]
        self._resume(request, paused, "")
        _report(request, "Resumed", len(paused), queryset.count() - len(paused), "not paused")

    def _pause(self, request: HttpRequest, names: list[str], form: PauseForm) -> None:
        reason, resume_at = form.cleaned_data["reason"].strip(), form.resume_at
        for name in names:
            with atomic():
                queue = pause(name, by=request.user.get_username(), reason=reason, resume_at=resume_at)
                after = {"paused": True, "resume_at": resume_at and resume_at.isoformat()}
                self.audit(
                    request, [queue], "Paused.", action="pause", reason=reason, before={"paused": False}, after=after
                )

    def _resume(self, request: HttpRequest, queues: list[Queue], reason: str) -> None:
        for known in queues:
            with atomic():
                before = {"paused": True, "by": known.paused_by, "reason": known.paused_reason}
                queue = resume(known.name)
                self.audit(
                    request, [queue], "Resumed.", action="resume", before=before, after={"paused": False}, reason=reason
                )

    def get_urls(self) -> list[URLPattern]:
        """Put the two actions of a queue's page before Django's own addresses."""
        wrap = self.admin_site.admin_view
        return [
            path("<path:object_id>/pause/", wrap(self.pause_view), name="queue_app_queue_pause"),
            path("<path:object_id>/resume/", wrap(self.resume_view), name="queue_app_queue_resume"),
            *super().get_urls(),
        ]

    def pause_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Pause one queue for the posted reason."""
        return self._set_paused(request, object_id, paused=True)

    def resume_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Resume one queue."""
        return self._set_paused(request, object_id, paused=False)

    def _set_paused(self, request: HttpRequest, object_id: str, *, paused: bool) -> HttpResponse:
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not (self.has_pause_permission(request) and self.has_view_or_change_permission(request)):
            raise PermissionDenied
        queue = self.get_object(request, unquote(object_id))
        if queue is None:
            self.message_user(request, "There is no such queue.", messages.WARNING)
            return HttpResponseRedirect(self.url_of("changelist"))
        form = PauseForm(request.POST)
        if not form.is_valid():
            self.message_user(request, "The reason is too long, or the length unknown.", messages.ERROR)
        elif queue.paused is paused:
            self.message_user(request, f"The queue is {'paused' if paused else 'running'} already.", messages.WARNING)
        else:
            if paused:
                self._pause(request, [queue.name], form)
            else:
                self._resume(request, [queue], form.cleaned_data["reason"].strip())
            self.message_user(request, f"The queue is {'paused' if paused else 'running again'}.", messages.SUCCESS)
        return HttpResponseRedirect(self.url_of("change", quote(queue.name)))

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Show what waits and runs above the form."""
        queue: Queue | None = kwargs.get("obj")
        if queue is not None:
            found, error = summaries([queue])
            summary = found.get(queue.name)
            context |= {
                "summary": summary,
                "oldest_seconds": oldest_seconds(summary),
                "unreachable": UNREACHABLE if error else "",
                "may_pause": self.has_pause_permission(request),
                "state": self.state(queue),
                "quoted": quote(queue.name),
                "may_view_tasks": request.user.has_perm("queue_app.view_task"),
                "lengths": LENGTHS,
                "history": changes_of("queue", queue.name),
                "may_view_audit": request.user.has_perm("queue_app.view_auditentry"),
            }
        return super().render_change_form(request, context, *args, **kwargs)


def _summary(queue: Queue) -> QueueSummary | None:
    summary: QueueSummary | None = getattr(queue, "summary", None)
    return summary


def _has_pending(name: str) -> bool:
    """Say whether something of the queue is pending; one look into the partial index of each state."""
    return any(Task.objects.filter(status=status, queue=name).exists() for status in sorted(PENDING))


def _report(request: HttpRequest, verb: str, done: int, skipped: int, why: str) -> None:
    if done:
        messages.success(request, f"{verb} {done} queue{'' if done == 1 else 's'}.")
    if skipped:
        messages.warning(request, f"Skipped {skipped} ({why}).")
