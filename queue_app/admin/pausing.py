"""Pause and resume queues, task types, keys or everything, from a list or a page."""

from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ActionForm
from django.contrib.admin.utils import quote
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy

from queue_app.admin.mixins import QueueAppAdmin, action_page
from queue_app.dashboard import labels
from queue_app.dashboard.adaptive import adaptive_context
from queue_app.diagnose.overview import LENGTHS
from queue_app.exceptions import InvalidTaskData, InvalidTransition
from queue_app.models import Limit, Queue, RuntimeSettings, Schedule
from queue_app.models.audit_entry import REASON_LENGTH
from queue_app.services.control.pause import BY_KIND, EVERYTHING

ADAPTIVE = ("adaptive", "min_concurrent", "varies_by", "probe")
ADAPTIVE_FIELDSET: Any = (_lazy("Adaptive"), {"fields": (ADAPTIVE[:2], ADAPTIVE[2:]), "classes": ("collapse",)})
LIMITS_NOTE = _lazy("A change applies from the next claim on.")


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
    shows_changes = True

    def has_pause_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(self.pause_permission)

    def get_readonly_fields(self, request: HttpRequest, obj: M | None = None) -> Any:
        return [*super().get_readonly_fields(request, obj), *(self.fixed_fields if obj else ())]

    def formfield_for_dbfield(self, db_field: Any, request: Any, **kwargs: Any) -> Any:
        if db_field.name in self.low_textareas:
            kwargs["widget"] = forms.Textarea({"rows": 2, "cols": 60})
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
            return format_html('<span class="tq-quiet">{}</span>', _("not paused"))
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
        kind, names = _kind(found)
        pause_it, resume_it = BY_KIND[kind]
        if paused:
            pause_it(*names, by=request.user.get_username(), reason=reason, resume_at=until)
            self.audit(request, [found], "Paused.", action="pause", before=before, after=after, reason=reason)
        else:
            resume_it(*names)
            self.audit(request, [found], "Resumed.", action="resume", before=before, after=after, reason=reason)

    def page_context(self, request: HttpRequest, found: M) -> dict[str, Any]:
        adaptive = {} if isinstance(found, Schedule) else adaptive_context(found)
        return (
            super().page_context(request, found)
            | adaptive
            | {
                "state": self.state(found),
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


def _kind(found: Queue | Limit | RuntimeSettings | Schedule) -> tuple[str, list[str]]:
    """Return the kind of an object for the services, and its name if it has one."""
    if isinstance(found, RuntimeSettings):
        return EVERYTHING, []
    if isinstance(found, Schedule):
        return "schedule", [found.name]
    return ("queue" if isinstance(found, Queue) else found.scope), [found.name]
