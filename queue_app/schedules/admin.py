"""The pages of schedules: the list with what ran, the form with what comes, backfill, and the week ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import batched
from typing import Any, ClassVar, Final

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import quote
from django.contrib.admin.widgets import AdminSplitDateTime
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, gettext_lazy as _lazy

from queue_app import registry
from queue_app.admin.arguments import argument_fields, arguments_of
from queue_app.admin.forms import ReasonField, ReasonForm, column, permission, two_lines
from queue_app.admin.mixins import action_page, object_page, page
from queue_app.admin.queue import PausingAdmin
from queue_app.core.redaction import unmask
from queue_app.dashboard import labels
from queue_app.encryption.displayed import displayed_payload
from queue_app.exceptions import ChangedMeanwhile, InvalidTaskData
from queue_app.models import Schedule
from queue_app.models.fields import NAME_LENGTH
from queue_app.schedules import edit, sql as schedule_health, week as pages
from queue_app.schedules.backfill import preview_backfill, run_schedule, start_backfill
from queue_app.schedules.pause import pause_schedule, resume_schedule
from queue_app.schedules.repeat import FIELDS as REPEAT, RepeatForm, fields_of
from queue_app.schedules.tick import failures_in_a_row, last_success, recent
from queue_app.services.enqueue.validate import check_text
from queue_app.services.operations.request import MAX_RATE, MIN_RATE, OperationOptions

# The forms of a schedule, its preview, and its backfill.

PAYLOAD: Final = ("args", "parameters")
_SPLIT: Final = dict.fromkeys(("anchor", "starts_at", "ends_at"), forms.SplitDateTimeField)

CHANGED: Final = _lazy(
    "The schedule was changed meanwhile, by someone else or by a program. Nothing of yours was stored: open the page"
    " again, and repeat your change."
)


class WhenForm(RepeatForm, forms.ModelForm):  # type: ignore[type-arg]  # generic in the stubs only
    """When a schedule ticks, for its preview."""

    class Meta:
        model = Schedule
        fields = [name for name in edit.WHEN if name != "jitter"]  # noqa: RUF012 - read by Django as it is
        field_classes = _SPLIT
        widgets = dict.fromkeys(_SPLIT, AdminSplitDateTime)


class ScheduleForm(RepeatForm, ReasonForm):
    """A schedule; what is left empty of the task's options is that of the registered task."""

    #: The version of the schedule that the form showed.
    version = forms.CharField(label="", required=False, widget=forms.HiddenInput)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk is not None:
            self.initial["version"] = edit.version_of(self.instance)
        for name in edit.TASK_OPTIONS:
            if name in self.fields:
                self.fields[name].required = False
        self.shown: dict[str, Any] = {"args": [], "parameters": {}}
        if self.instance.pk is None:
            zone = timezone.get_default_timezone_name()
            usual = {"zone": zone, "repeats": "daily", "at": "02:00", "priority": None, "weight": None}
            self.initial = {**usual, **self.initial}
            if "task_type" in self.fields:
                self.fields["task_type"].widget.attrs["data-tq-again"] = ""
                self.fields["task_type"].help_text = _("Each of its arguments gets a field.")
        else:
            self.initial.update(fields_of(self.instance.cron, self.instance.every))
            self.shown = _displayed(self.instance)
        if "zone" in self.fields:
            self.fields["zone"].help_text = ""
        if "parameters" in self.fields:
            task_type = self.data.get("task_type") or self.initial.get("task_type") or ""
            found = argument_fields(str(task_type), **self.shown)
            self.fields |= {name: field for name, field in found.items() if name in self.fields}
            self.initial = {name: value for name, value in self.initial.items() if name not in PAYLOAD}

    def clean(self) -> dict[str, Any]:
        """Check the schedule as the service does, so that the form can show what is wrong."""
        values: dict[str, Any] = super().clean() or {}
        if self.instance.pk is not None and values.get("version") != edit.version_of(self.instance):
            self.add_error(None, CHANGED)
        if "cron" in self.fields and (when := self.recurrence(values)) is not None:
            written = [name for name in ("cron", "every", "instants") if name in self.changed_data]
            if any(values.get(name) not in (None, "", [], when[name]) for name in written):
                self.add_error("repeats", _("You wrote something under More too. Choose one of both."))
            values |= when
            self.changed_data += [name for name in when if when[name] != getattr(self.instance, name)]
        self._check_names(values)
        if self.errors:
            return values
        given = {name: values[name] for name in edit.FIELDS if name in values}
        now = edit.from_json(edit.values_of(self.instance)) if self.instance.pk else {}
        try:
            if "name" in values:
                check_text(values["name"], "name", NAME_LENGTH)
            for name in PAYLOAD if self.instance.pk else ():
                if name in given:
                    given[name] = unmask(given[name], self.shown[name], now[name], name)
            empty = {name for name in edit.TASK_OPTIONS if given.get(name) in (None, "", [])}
            known = {name: value for name, value in (now | given).items() if name not in empty}
            filled = edit.with_options(known)
            edit.check_values(filled, is_new=not self.instance.pk or any(now[n] != filled[n] for n in edit.WHEN))
        except InvalidTaskData as error:
            self.add_error(error.field if error.field in self.fields else None, error.message)
            return values
        return values | {name: filled[name] for name in given if name in filled}

    def _check_names(self, values: Mapping[str, Any]) -> None:
        """Refuse names of queues and capabilities that nothing has; those of the task itself are right."""
        task = registry.find(values.get("task_type") or self.instance.task_type or "")
        known = {getattr(task, "queue_name", ""), *getattr(task, "capabilities", ())}
        for field, kind in (("queue", "queue"), ("capabilities", "capability")):
            given = values.get(field) or [] if field in self.changed_data else []
            for name in [given] if isinstance(given, str) else given:
                try:
                    if name not in known:
                        self.fields[field].widget.check(kind, name)
                except forms.ValidationError as error:
                    self.add_error(field, error)


class BackfillForm(forms.Form):
    start = forms.SplitDateTimeField(label=_lazy("From"), widget=AdminSplitDateTime)
    end = forms.SplitDateTimeField(label=_lazy("Until, not included"), widget=AdminSplitDateTime)
    rate = forms.FloatField(
        label=_lazy("Tasks per second"), required=False, min_value=MIN_RATE, max_value=MAX_RATE,
        help_text=_lazy("Empty: as fast as possible."),
    )  # fmt: skip
    reason = ReasonField()


def _displayed(schedule: Schedule) -> dict[str, Any]:
    """Return the payload of a schedule without secrets."""
    return dict(zip(PAYLOAD, displayed_payload(schedule.task_type, schedule, hide_encrypted=True)[1:], strict=True))


def preview(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the next ticks of a posted form in words and as a list, or what is wrong with it."""
    form = WhenForm(data)
    form.full_clean()
    values = form.cleaned_data | (form.recurrence(form.cleaned_data) or {})
    for name in (each for each in REPEAT if each in form.errors):
        return {"problem": f"{form.fields[name].label}: {form.errors[name][0]}"}
    try:
        given = {name: values[name] for name in edit.WHEN if values.get(name) is not None}
        recurrence = Schedule(**given | {"instants": edit.times(values.get("instants") or [])}).recurrence
        recurrence.check()
    except InvalidTaskData as error:
        return {"problem": error.message}
    return {"words": labels.translate(recurrence.words), "coming": pages.coming(recurrence, timezone.now())}


#: Schedules that the week shows.
MAX_IN_WEEK: Final = 1000


def _folded(title: Any, *fields: Any, about: Any = "") -> Any:
    """Return a part of the form that is folded until staff open it."""
    return title, {"fields": fields, "description": about, "classes": ("collapse",)}


class ScheduleAdmin(PausingAdmin[Schedule]):
    change_form_template = "admin/queue_app/schedule/change_form.html"
    change_list_template = "admin/queue_app/schedule/change_list.html"
    empty_text = _lazy("No schedule yet. Add one here, or declare one in code with @schedule.")
    fieldsets = (
        (None, {"fields": ("task_type", "name", *PAYLOAD)}),
        (_lazy("When"), {"fields": ((*REPEAT, "zone"),)}),
        _folded(
            _lazy("More: cron, times, bounds"),
            "cron", ("every", "anchor"), "instants", ("starts_at", "ends_at"), "jitter", "instant_parameter",
            about=_lazy("Fill in one of cron, every and instants, if it repeats otherwise."),
        ),
        _folded(
            _lazy("If it is late, or overlaps"),
            "grace_seconds", ("catch_up", "catch_up_limit", "catch_up_seconds"), "overlap",
        ),
        _folded(
            _lazy("Options of the task"), *batched(edit.TASK_OPTIONS, 3),
            about=_lazy("What you leave empty is taken from the task."),
        ),
        (None, {"fields": ("notes", "reason", "version")}),
    )  # fmt: skip
    fixed_fields = ("name",)
    form = ScheduleForm
    low_textareas = (*PAYLOAD, "instants", "notes")
    list_display = ("named", "state", "coming", "outcomes", "lateness", "run_now")
    list_display_links = ("named",)
    list_filter = ("paused", "overlap", "catch_up")
    list_per_page = 50
    ordering = ("due_at",)
    pause_permission = "queue_app.pause_schedule"
    payload_fields = PAYLOAD
    pickers: ClassVar = {
        "task_type": ("task_type",), "queue": ("queue",), "user": ("user",), "concurrency_key": ("concurrency_key",),
        "capabilities": ("capability",), "zone": ("zone",),
    }  # fmt: skip
    search_fields = ("name", "task_type", "notes")
    sortable_by = ("named", "coming")

    has_run_permission = permission("run_schedule")
    outcomes = column(_lazy("last 20"), lambda schedule: pages.strip(schedule.recent))
    lateness = column(
        _lazy("late by"), lambda found: labels.duration(found.recent[0].tick.late_seconds) if found.recent else "-"
    )

    def how_to_pause(self, found: Schedule) -> tuple[Callable[..., Schedule], Callable[[], Schedule]]:
        return partial(pause_schedule, found.name), partial(resume_schedule, found.name)

    def annotate_rows(self, request: HttpRequest, rows: Iterable[Any]) -> None:
        schedules = list(rows)
        found = recent(schedules)
        failing = {each.name: each.times for each in schedule_health.failing(schedule_health.MANY_FAILURES)}
        for schedule in schedules:
            schedule.recent = found[schedule.pk]
            schedule.failing = failing.get(schedule.name)
            schedule.may_run = self.has_run_permission(request)

    @admin.display(description=_lazy("state"))
    def state(self, found: Schedule) -> SafeString:
        """Return that it fails again and again, if it does and is not paused."""
        failing: str | None = getattr(found, "failing", None)
        if failing is None:
            plain = format_html("{}", labels.word("active" if found.due_at else "-"))
            return super().state(found) if found.paused else plain
        label = format_html('<span class="tq-label tq-status-failed">{}</span>', _("failing"))
        return two_lines(label, _("%(times)s times in a row") % {"times": failing})

    @admin.display(description=_lazy("name"), ordering="name")
    def named(self, schedule: Schedule) -> SafeString:
        words = labels.translate(schedule.recurrence.words)
        task = schedule.task_type.rpartition(".")[2]
        return format_html('<span class="tq-type">{}<small>{}: {}</small></span>', schedule.name, task, words)

    @admin.display(description=_lazy("next"), ordering="due_at")
    def coming(self, schedule: Schedule) -> SafeString | str:
        if schedule.paused:
            return "-"
        return labels.ago(schedule.due_at, timezone.now()) if schedule.due_at else _("ended")

    @admin.display(description=_lazy("run"))
    def run_now(self, schedule: Schedule) -> SafeString | str:
        """Return a button that runs the schedule; it sends the form of the list, with its reason."""
        if not schedule.may_run:  # type: ignore[attr-defined]
            return "-"
        return format_html(
            '<button type="submit" class="button tq-small" name="next" value="list" formmethod="post" formaction="{}"'
            ' aria-label="{}">{}</button>',
            self.url_of("run", quote(schedule.pk)), _("Run %(name)s now") % {"name": schedule.name}, _("Run now"),
        )  # fmt: skip

    # -- the form ------------------------------------------------------------------

    def get_fieldsets(self, request: HttpRequest, obj: Schedule | None = None) -> Any:
        """Leave positional arguments out if it has none and its parameters have fields."""
        found = super().get_fieldsets(request, obj)
        task_type = obj.task_type if obj else request.POST.get("task_type") or request.GET.get("task_type", "")
        has_no_fields = task_type and arguments_of(task_type, [], {}) is None
        if "args" in request.POST or (obj and obj.args) or has_no_fields:
            return found
        return [(title, options | {"fields": [each for each in options["fields"] if each != "args"]})
                for title, options in found]  # fmt: skip

    def displayed_value(self, found: Schedule, name: str) -> Any:
        return _displayed(found).get(name, getattr(found, name))

    def save_model(self, request: HttpRequest, obj: Schedule, form: Any, change: Any) -> None:
        values = {name: form.cleaned_data[name] for name in edit.FIELDS if name in form.cleaned_data}
        if change:
            changes = {name: values[name] for name in form.changed_data if name in values}
            edit.update_schedule(obj.name, changes, version=form.cleaned_data["version"])
        else:
            obj.pk = edit.create_schedule(obj.name, {n: v for n, v in values.items() if v is not None}).pk

    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Refuse an edit of a schedule that another edit reached first."""
        try:
            return super().changeform_view(request, object_id, form_url, extra_context)
        except ChangedMeanwhile:
            self.message_user(request, CHANGED, messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())

    def construct_change_message(self, request: HttpRequest, form: Any, formsets: Any, add: bool = False) -> Any:  # noqa: FBT001, FBT002 - Django's signature
        """Leave parameters out of the history, whose readers may not be allowed to read them."""
        form.changed_data = [name for name in form.changed_data if name not in {*PAYLOAD, "version"}]
        return super().construct_change_message(request, form, formsets, add)

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Protect schedules that the code declares: they would come back. The history goes with a schedule."""
        declared = [_("%(name)s is declared in the code: delete it there, or pause it here.") % {"name": found.name}
                    for found in objs if found.is_declared]  # fmt: skip
        names = [str(found) for found in objs]
        return names, {str(self.opts.verbose_name_plural): len(names)}, set(), declared

    def delete_model(self, request: HttpRequest, obj: Schedule) -> None:
        edit.delete_schedule(obj.name)

    def delete_queryset(self, request: HttpRequest, queryset: Any) -> None:
        for found in queryset:
            edit.delete_schedule(found.name)

    def page_context(self, request: HttpRequest, found: Schedule) -> dict[str, Any]:
        ticks, now = recent([found], schedule_health.SOUGHT)[found.pk], timezone.now()
        failures = failures_in_a_row(ticks)
        return super().page_context(request, found) | {
            "words": labels.translate(found.recurrence.words),
            "coming": [] if found.paused else pages.coming(found.recurrence, now),
            "ticks": [(each, labels.exact_moment(each.tick.instant)) for each in ticks[: schedule_health.RECENT]],
            "failures": schedule_health.times(failures) if failures >= schedule_health.MANY_FAILURES else "",
            "last_success": last_success(ticks),
            "overridden": edit.overridden(found),
            "may_run": self.has_run_permission(request),
        }

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        context |= {"preview_url": self.url_of("preview")}
        return super().render_change_form(request, context, *args, **kwargs)

    @page("preview/", "preview")
    def preview_view(self, request: HttpRequest) -> HttpResponse:
        if not (self.has_add_permission(request) or self.has_change_permission(request)):
            raise PermissionDenied
        context = preview(request.POST)
        if request.headers.get("X-Requested-With") == "fetch":
            return render(request, "admin/queue_app/schedule/includes/preview.html", context)
        return self.own_page(request, "schedule/preview.html", _("The next ten ticks"), **context)

    @action_page("run", "run")
    def run_view(self, request: HttpRequest, schedule: Schedule, reason: str) -> str:
        tick = run_schedule(schedule.name, by=request.user.get_username())
        self.audit(request, [schedule], "Run.", action="run", after={"task": str(tick.task_id)}, reason=reason)
        return _("Enqueued the task %(id)s.") % {"id": tick.task_id}

    @action_page("give_back", "change")
    def give_back_view(self, request: HttpRequest, schedule: Schedule, reason: str) -> str:
        """Undo what staff changed of a declared schedule."""
        before = {"overridden": edit.overridden(schedule)}
        edit.give_back(schedule.name)
        self.audit(request, [schedule], "Given back.", action="give_back", before=before, reason=reason)
        return _("It is as the code declares it again.")

    @object_page("backfill", "run")
    def backfill_view(self, request: HttpRequest, found: Schedule) -> HttpResponse:
        """Show the form, then the number of tasks, then start the operation."""
        form = BackfillForm(request.POST or None)
        title = _("Backfill %(name)s") % {"name": found.name}
        show = partial(self.own_page, request, "schedule/backfill.html", title, original=found, form=form)

        def act(values: dict[str, Any]) -> HttpResponse:
            if "start_it" in request.POST:
                return self._start(request, found, values)
            instants = preview_backfill(found, values["start"], values["end"])
            return show(total=len(instants), sample=instants[: pages.PREVIEWED], is_preview=True)

        return self.act_by_form(request, form, act) or show()

    def _start(self, request: HttpRequest, found: Schedule, values: Mapping[str, Any]) -> HttpResponse:
        by, reason = request.user.get_username(), values["reason"]
        options = OperationOptions(rate=values["rate"])
        operation = start_backfill(found.name, values["start"], values["end"], options, by=by, reason=reason)
        self.audit(request, [found], "Backfill.", action="backfill", after=operation.filter, reason=reason)
        self.message_user(
            request, _("A scheduler enqueues %(count)d tasks.") % {"count": operation.total}, messages.SUCCESS
        )
        if request.user.has_perm("queue_app.view_operation"):
            return HttpResponseRedirect(self.url_of_model("operation", "change", operation.pk))
        return HttpResponseRedirect(self.url_of("change", quote(found.pk)))

    @page("week/", "week", permission="view")
    def week_view(self, request: HttpRequest) -> HttpResponse:
        found = Schedule.objects.filter(due_at__isnull=False)[:MAX_IN_WEEK]
        week = pages.week(found, timezone.now())
        return self.own_page(request, "schedule/week.html", _("The week ahead"), week=week)
