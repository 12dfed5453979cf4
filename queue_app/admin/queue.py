"""The pages of queues, and what all pages with limits and pauses share."""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, ClassVar, Final

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ActionForm
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.db.models import Case, Q, QuerySet, When
from django.forms.widgets import Script
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as _, gettext_lazy as _lazy

from queue_app.admin.dead_letter import causes_of
from queue_app.admin.forms import ReasonForm, column, posted_reason
from queue_app.admin.mixins import NO_STORE, QueueAppAdmin, action_page, page, with_workers
from queue_app.admin.pickers import Picker
from queue_app.admin.stats import named_changes
from queue_app.core import rooms
from queue_app.core.shared import Shared
from queue_app.core.states import PENDING, Status
from queue_app.dashboard import charts, labels
from queue_app.diagnose import live
from queue_app.diagnose.overview import LENGTHS, of_one_queue, overview_context
from queue_app.exceptions import InvalidTaskData, InvalidTransition, TaskQueueError
from queue_app.models import DeadLetter, Limit, Queue, RuntimeSettings, Schedule, Task, Worker
from queue_app.models.fields import TYPE_LENGTH
from queue_app.models.operation import REASON_LENGTH
from queue_app.models.worker import WorkerStatus
from queue_app.services.control import audit
from queue_app.services.control.advice import dismiss
from queue_app.services.control.pause import BY_KIND, EVERYTHING
from queue_app.services.upkeep.task_stats import compare_queue
from queue_app.sql.database import atomic

# Pause and resume queues, task types, keys or everything, from a list or a page.

ADAPTIVE = ("adaptive", "min_concurrent", "varies_by", "probe")
ADAPTIVE_FIELDSET: Any = (_lazy("Adaptive"), {
    "fields": (ADAPTIVE[:2], ADAPTIVE[2:]),
    "description": _lazy(
        "Two adaptive limits on one service settle too high together. Give tasks that use one service the same"
        " concurrency key, and make the limit of that key adaptive."
    ),
    "classes": ("collapse",),
})  # fmt: skip
LIMITS_NOTE = _lazy("A change applies from the next claim on. Times have a unit, such as 30 s, 10 min or 7 days.")
HELP: Final = {
    "adaptive": _lazy(
        "Algorithm that finds the limit by run times and failures, between the least and the most tasks at the same"
        " time. Empty: the limit is the most."
    ),
    "rate_seconds": _lazy("The period in which that many tasks start, such as 1 min."),
    "min_delay_seconds": _lazy("Least time from one start to the next, such as 2 s. Empty: none."),
}


class PauseForm(forms.Form):
    reason = forms.CharField(label=_lazy("Reason:"), required=False, max_length=REASON_LENGTH)
    seconds = forms.ChoiceField(label=_lazy("A pause lasts:"), choices=LENGTHS, required=False)

    @property
    def resume_at(self) -> datetime | None:
        """Time at which the scheduler ends the pause."""
        seconds = self.cleaned_data["seconds"]
        return timezone.now() + timedelta(seconds=int(seconds)) if seconds else None


class PauseActionForm(PauseForm, ActionForm):
    """The list's actions with the reason of a pause, and its length."""


class PausingAdmin[M: Queue | Limit | RuntimeSettings | Schedule](QueueAppAdmin[M]):
    """A page with a button to pause or resume the object, and a list with actions for both."""

    action_form = PauseActionForm
    actions: Any = ("pause_selected", "resume_selected")
    object_route = "<path:object_id>"
    pause_permission = "queue_app.pause_limit"
    change_form_template = "admin/queue_app/includes/pausable.html"
    #: Fields that staff cannot change once the object exists.
    fixed_fields: tuple[str, ...] = ()
    #: Fields that a form shows in two lines.
    low_textareas: tuple[str, ...] = ()
    #: {field: kinds of names that staff pick in it}.
    pickers: ClassVar[Mapping[str, tuple[str, ...]]] = {"probe": ("probe",)}
    shows_changes = True

    def has_pause_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(self.pause_permission)

    def get_readonly_fields(self, request: HttpRequest, obj: M | None = None) -> Any:
        return [*super().get_readonly_fields(request, obj), *(self.fixed_fields if obj else ())]

    def formfield_for_dbfield(self, db_field: Any, request: Any, **kwargs: Any) -> Any:
        if db_field.name in self.low_textareas:
            kwargs["widget"] = forms.Textarea({"rows": 2, "cols": 60})
        if kinds := self.pickers.get(db_field.name):
            kwargs["widget"] = Picker(request.user, *kinds)
        return super().formfield_for_dbfield(db_field, request, **kwargs)

    def save_model(self, request: HttpRequest, obj: M, form: Any, change: Any) -> None:
        """Write only edited fields, so that the form does not undo a pause made meanwhile."""
        if change:
            names = [name for name in form.changed_data if name != "reason"]
            obj.save(update_fields=[*names, "updated_at"])
        else:
            super().save_model(request, obj, form, change)

    @admin.display(description=_lazy("state"))
    def state(self, found: M) -> SafeString:
        if not found.paused:
            return SafeString("-")
        now = timezone.now()
        by = _("by %(name)s") % {"name": found.paused_by} if found.paused_by else _("by a program")
        return format_html(
            '<span class="tq-label tq-paused">{}</span> <span class="tq-quiet tq-pause">{}{}{}{}</span>',
            _("paused"),
            by,
            format_html(" {}", labels.ago(found.paused_at, now)) if found.paused_at else "",
            f": {found.paused_reason}" if found.paused_reason else "",
            format_html("; {} {}", _("resumes"), labels.ago(found.resume_at, now)) if found.resume_at else "",
        )

    # -- many ----------------------------------------------------------------------

    @admin.action(description=_lazy("Pause selected"), permissions=["pause"])
    def pause_selected(self, request: HttpRequest, queryset: QuerySet[M]) -> None:
        self._set_many(request, queryset, paused=True)

    @admin.action(description=_lazy("Resume selected"), permissions=["pause"])
    def resume_selected(self, request: HttpRequest, queryset: QuerySet[M]) -> None:
        self._set_many(request, queryset, paused=False)

    def _set_many(self, request: HttpRequest, queryset: QuerySet[M], *, paused: bool) -> None:
        try:
            _posted(request)
        except InvalidTaskData as error:
            self.refuse(request, error)
            return
        changed, skipped = self.act_on_each(queryset, lambda found: self._toggle(request, found, paused=paused))
        if changed:
            done = _("Paused: %(count)d.") if paused else _("Resumed: %(count)d.")
            self.message_user(request, done % {"count": changed}, messages.SUCCESS)
        if skipped:
            text = _("Skipped %(count)d (already paused).") if paused else _("Skipped %(count)d (not paused).")
            self.message_user(request, text % {"count": skipped}, messages.WARNING)

    # -- one -----------------------------------------------------------------------

    @action_page("pause", "pause")
    def pause_view(self, request: HttpRequest, found: M, _reason: str) -> str:
        return self.pause(request, found)

    def pause(self, request: HttpRequest, found: M) -> str:
        """Pause an object as the posted form says; return what that means."""
        self._toggle(request, found, paused=True)
        return _("Paused: running tasks finish, and no new task starts.")

    @action_page("resume", "pause")
    def resume_view(self, request: HttpRequest, found: M, _reason: str) -> str:
        self._toggle(request, found, paused=False)
        return _("It is no longer paused.")

    def _toggle(self, request: HttpRequest, found: M, *, paused: bool) -> None:
        """Pause or resume an object as the posted form says, and record it. Raises ``InvalidTransition``."""
        if found.paused is paused:
            text = _("It is paused already.") if paused else _("It is not paused.")
            raise InvalidTransition(text, status="paused" if paused else "running")
        form = _posted(request)
        reason = form.cleaned_data["reason"].strip()
        until = form.resume_at if paused else None
        before = {"paused": found.paused, "by": found.paused_by, "reason": found.paused_reason}
        after = {"paused": paused} | ({"resume_at": until.isoformat()} if until else {})
        pause_it, resume_it = self.how_to_pause(found)
        if paused:
            row = pause_it(by=request.user.get_username(), reason=reason, resume_at=until)
            found = found if found.pk else row  # a task type had no limits before
            self.audit(request, [found], "Paused.", action="pause", before=before, after=after, reason=reason)
        else:
            resume_it()
            self.audit(request, [found], "Resumed.", action="resume", before=before, after=after, reason=reason)

    def how_to_pause(self, found: M) -> tuple[Callable[..., Any], Callable[[], Any]]:
        """Return the services that pause and resume an object."""
        kind, names = _kind(found)
        pause_it, resume_it = BY_KIND[kind]
        return partial(pause_it, *names), partial(resume_it, *names)

    def page_context(self, request: HttpRequest, found: M) -> dict[str, Any]:
        parts = () if isinstance(found, Schedule) else rooms.each("limit_parts")
        return (
            super().page_context(request, found)
            | {name: value for part in parts for name, value in part(found).items()}
            | {
                "state": self.state(found) if found.paused else "",
                "is_paused": found.paused,
                "may_pause": self.has_pause_permission(request),
                "toggle_url": self.url_of("resume" if found.paused else "pause", quote(found.pk)),
                "lengths": LENGTHS,
            }
        )


def _posted(request: HttpRequest) -> PauseForm:
    form = PauseForm(request.POST)
    if not form.is_valid():
        raise InvalidTaskData("reason", _("The reason is too long, or the length of the pause is unknown."))
    return form


def _kind(found: Any) -> tuple[str, list[str]]:
    """Return the kind of an object for the services, and its name if it has one."""
    if isinstance(found, RuntimeSettings):
        return EVERYTHING, []
    return ("queue" if isinstance(found, Queue) else found.scope), [found.name]


def _wait(row: live.QueueRow) -> SafeString | str:
    """Return how long the oldest task of a queue waits; red if that is longer than the target of its band."""
    if not row.depth:
        return "-"
    wait = labels.age(row.oldest)
    return format_html('<span class="tq-alert tq-nowrap">{}<br>({})</span>', wait, _("late")) if row.is_late else wait


def _depth(row: live.QueueRow) -> SafeString | str:
    waiting = [(labels.band_label(part.band), part.depth) for part in row.bands]
    return format_html_join(" ", '<span class="tq-count">{} {}</span>', waiting) or "0"


def _column_of_now(title: Any, text: Callable[[live.QueueRow], Any]) -> Any:
    """Return a column of the list that shows the state of a queue now."""
    return column(title, lambda queue: text(queue.now) if queue.now else "-")


#: Maximum number of running tasks on the page of a queue.
MAX_RUNNING: Final = 20
#: A queue, compared with times before; viewers share it.
_compared: Final = Shared(compare_queue, lambda _: 30.0)
#: For themes that show the buttons of a form outside of it.
NO_FORM: Final = dict.fromkeys(
    ("show_save", "show_save_and_continue", "show_save_and_add_another", "show_delete"), False
)


class QueueAdmin(PausingAdmin[Queue]):
    change_form_template = "admin/queue_app/queue/change_form.html"
    empty_text = _lazy("No queue yet. The first enqueued task creates one.")
    fieldsets = (
        (None, {"fields": ("name", "description")}),
        (
            _lazy("Limits"),
            {
                "fields": (
                    "max_concurrent",
                    "max_concurrent_per_user",
                    "rate_count",
                    "rate_seconds",
                    "rate_burst",
                    "min_delay_seconds",
                    "max_length",
                    "max_pending_per_user",
                ),
                "description": LIMITS_NOTE,
            },
        ),
        ADAPTIVE_FIELDSET,
        (_lazy("Order"), {"fields": ("order", "fair_by", "fair_weights")}),
        (_lazy("Attempts"), {"fields": (("max_retries", "timeout_seconds"),)}),
        (_lazy("Expiry"), {"fields": (("stale_after_seconds", "expire_eagerly"),)}),
        (None, {"fields": ("reason",)}),
    )
    field_help = HELP | {
        "description": _lazy("What the queue is for. Lists show it below the name."),
        "timeout_seconds": _lazy(
            "The worker stops an attempt that runs longer, unless the task has its own timeout. Empty: by the policy of"
            " the band."
        ),
        "stale_after_seconds": _lazy(
            "A task that has been queued for longer may expire without running, such as 7 days. Empty: never; in a full"
            " queue with its own limit of waiting tasks, after an hour."
        ),
    }
    fixed_fields = ("name",)  # tasks refer to it
    form = ReasonForm
    low_textareas = ("description", "fair_weights")
    lead = _lazy("Queues whose oldest task waits longer than the target of its priority come first.")
    list_display = ("named", "state", "depth", "running", "oldest", "rate", "max_concurrent")
    list_display_links = ("named",)
    list_editable = ("max_concurrent",)
    list_per_page = 50
    pause_permission = "queue_app.pause_queue"
    search_fields = ("name", "description")
    sortable_by = ("named", "max_concurrent")

    class Media:
        css = {"all": ("queue_app/vendor/uplot/uPlot.min.css",)}  # noqa: RUF012 - read by Django as it is
        js = tuple(
            Script(f"queue_app/{name}.js", defer=True)
            for name in ("vendor/uplot/uPlot.iife.min", "morph", "charts", "live")
        )

    depth = _column_of_now(_lazy("queued"), _depth)
    running = _column_of_now(_lazy("running"), lambda row: row.active)
    oldest = _column_of_now(_lazy("oldest wait"), _wait)
    rate = column(_lazy("rate"), labels.rate)

    def get_ordering(self, request: HttpRequest) -> Any:
        """Put the late queues first, the latest of them on top."""
        late = sorted((row for row in live.current().queues if row.is_late), key=lambda row: -row.oldest)
        places = [When(name=row.queue.name, then=place) for place, row in enumerate(late)]
        return [*([Case(*places, default=len(places)).asc()] if places else []), "name"]

    def annotate_rows(self, request: HttpRequest, rows: Iterable[Any]) -> None:
        """Add the state of each of the page's queues."""
        now = live.current()
        known = {row.queue.name: row for row in now.queues}
        for queue in rows:
            queue.now = known.get(queue.name)
        if request.method == "GET" and (error := now.why_of_rows):
            messages.warning(request, labels.translate(error))

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        to_delete, model_count, perms_needed, protected = super().get_deleted_objects(objs, request)
        text = _("Queue %(name)s has pending tasks. Let them finish, or cancel them, before you delete it.")
        busy = [text % {"name": queue.name} for queue in objs if _has_pending(queue.name)]
        return to_delete, model_count, perms_needed, [*protected, *busy]

    @admin.display(description=_lazy("name"), ordering="name")
    def named(self, queue: Queue) -> SafeString:
        about = Truncator(queue.description).chars(80)
        return format_html('<span class="tq-type">{}<small>{}</small></span>', queue.name, about)

    def page_context(self, request: HttpRequest, found: Queue) -> dict[str, Any]:
        shows_settings = request.method == "POST" or request.GET.get("tab") == "settings"
        return super().page_context(request, found) | {
            "title": _("Queue"),
            "tab": "settings" if shows_settings else "now",
            "may_pause": not shows_settings and self.has_pause_permission(request),
            **({} if shows_settings else NO_FORM | self._now(request, found)),
            "live": live.current(),
            "causes": causes_of(request, DeadLetter.objects.filter(queue=found.name)),
            "compared": [] if shows_settings else named_changes(_compared.get(found.name)),
        }

    def _now(self, request: HttpRequest, found: Queue) -> dict[str, Any]:
        """Return what waits, runs and serves the queue at this moment."""
        now = live.current()
        return {
            "original": found,
            "row": next((row for row in now.queues if row.queue.name == found.name), None),
            "unreachable": labels.translate(now.why_of_rows),
            "reasons": of_one_queue(found.name),
            "workers": Worker.objects.filter(status=WorkerStatus.ACTIVE)
            .filter(Q(queues=[]) | Q(queues__contains=[found.name]))
            .defer("task_types")
            .order_by("name")[: live.MAX_WORKERS],
            "running": self._running(request, found),
        }

    @page("<path:object_id>/now/", "now", permission="view")
    def now_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Return the part of a queue's page that changes all the time, for its script."""
        found = self.get_object(request, unquote(object_id))
        if found is None:
            raise Http404
        return TemplateResponse(request, "admin/queue_app/queue/now.html", self._now(request, found), headers=NO_STORE)

    def _running(self, request: HttpRequest, queue: Queue) -> list[Task]:
        """Return the running tasks of a queue, the longest first."""
        if not request.user.has_perm("queue_app.view_task"):
            return []
        running = Task.objects.filter(status=Status.EXECUTING, queue=queue.name)
        return with_workers(request, list(running.order_by("started_at")[:MAX_RUNNING]))

    # -- the overview -------------------------------------------------------------

    @page("live/", "live", permission="view")
    def live_view(self, request: HttpRequest) -> HttpResponse:
        """Return the live part of the overview as HTML, for the overview's script."""
        context = overview_context(request.user)
        return TemplateResponse(request, "admin/queue_app/includes/live.html", context, headers=NO_STORE)

    @page("advice/dismiss/", "dismiss", post=True)
    def dismiss_view(self, request: HttpRequest) -> HttpResponse:
        """Hide a suggestion of the overview from everybody for a while."""
        if not request.user.has_perms(["queue_app.change_queue", "queue_app.view_queuestats"]):
            raise PermissionDenied
        try:
            reason = posted_reason(request)
            key = request.POST.get("key", "")[:TYPE_LENGTH]
            with atomic():
                found = dismiss(key, by=request.user.get_username(), via=audit.ADMIN, reason=reason)
                self.log_action_of(request, Queue.objects.filter(pk=found.queue), "Dismissed a suggestion.", reason)
        except TaskQueueError as error:
            self.message_user(request, labels.translate_error(error), messages.ERROR)
        else:
            self.message_user(request, _("The suggestion is hidden for 30 days."), messages.SUCCESS)
        return HttpResponseRedirect(reverse("admin:app_list", args=["queue_app"], current_app=self.admin_site.name))

    @page("charts/", "charts", permission="view")
    def charts_view(self, request: HttpRequest) -> HttpResponse:
        try:
            name = request.GET.get("range", charts.DEFAULT)
            data = charts.chart_data(name, request.GET.get("queue", "")[:100])
            if request.user.has_perm("queue_app.view_auditentry"):
                data |= {"marks": charts.marks(name)}
        except KeyError:
            return JsonResponse({"error": f"range must be one of {', '.join(charts.RANGES)}."}, status=400)
        return JsonResponse(data, headers=NO_STORE)


def _has_pending(name: str) -> bool:
    """Return whether a queue has pending tasks, from the partial index of each state."""
    return any(Task.objects.filter(status=status, queue=name).exists() for status in sorted(PENDING))
