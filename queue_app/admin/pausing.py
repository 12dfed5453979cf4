"""What can be paused: queues, task types, keys, everything; by button or by list, with a reason and a length."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ActionForm
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy

from queue_app.admin.mixins import QueueAppAdmin
from queue_app.dashboard import labels
from queue_app.models import Limit, Queue, RuntimeSettings
from queue_app.models.limit import Scope
from queue_app.services.control.pause import (
    pause,
    pause_everything,
    pause_key,
    pause_type,
    resume,
    resume_everything,
    resume_key,
    resume_type,
)
from queue_app.sql.database import atomic

REASON_LENGTH = 200  # as long as paused_reason
#: After so many seconds a pause ends by itself.
LENGTHS = (
    ("", _lazy("until resumed")),
    ("900", _lazy("for 15 min")),
    ("3600", _lazy("for 1 h")),
    ("14400", _lazy("for 4 h")),
    ("86400", _lazy("for 24 h")),
)


class PauseForm(forms.Form):
    """The reason of a pause, which staff read later, and how long it lasts."""

    reason = forms.CharField(required=False, max_length=REASON_LENGTH)
    seconds = forms.ChoiceField(choices=LENGTHS, required=False)

    @property
    def resume_at(self) -> datetime | None:
        """When the pause ends by itself."""
        seconds = self.cleaned_data["seconds"]
        return timezone.now() + timedelta(seconds=int(seconds)) if seconds else None


class PauseActionForm(ActionForm):
    """The list's actions with a reason for a pause, and its length."""

    reason = forms.CharField(label=_lazy("Reason:"), required=False, max_length=REASON_LENGTH)
    seconds = forms.ChoiceField(label=_lazy("A pause lasts:"), choices=LENGTHS, required=False)


class PausingAdmin[M: Queue | Limit | RuntimeSettings](QueueAppAdmin[M]):
    """A page with buttons to pause and resume what it shows, and a list with actions for the same."""

    action_form = PauseActionForm
    actions: Any = ("pause_selected", "resume_selected")
    pause_permission = "queue_app.pause_limit"
    change_form_template = "admin/queue_app/includes/pausable.html"

    def has_pause_permission(self, request: HttpRequest) -> bool:
        """Say whether the user may pause and resume it."""
        return request.user.has_perm(self.pause_permission)

    def save_model(self, request: HttpRequest, obj: M, form: Any, change: Any) -> None:
        """Write only what was edited, so that a pause of this very moment is not undone."""
        if change:
            names = [name for name in form.changed_data if name != "reason"]
            obj.save(update_fields=[*names, "updated_at"])
        else:
            super().save_model(request, obj, form, change)

    @admin.display(description=_lazy("state"))
    def state(self, found: M) -> SafeString:
        """Return running, or paused with by whom, when, why and until when."""
        if not found.paused:
            return format_html('<span class="tq-label tq-running">{}</span>', _("running"))
        now = timezone.now()
        by = _("by %(name)s") % {"name": found.paused_by} if found.paused_by else _("by a program")
        return format_html(
            '<span class="tq-label tq-paused">{}</span> <span class="tq-quiet tq-pause">{}{}{}{}</span>',
            _("paused"),
            by,
            format_html(" {}", labels.ago(found.paused_at, now)) if found.paused_at else "",
            f": {found.paused_reason}" if found.paused_reason else "",
            format_html("; {} {}", _("goes on"), labels.ago(found.resume_at, now)) if found.resume_at else "",
        )

    # -- many ----------------------------------------------------------------------

    @admin.action(description=_lazy("Pause selected"), permissions=["pause"])
    def pause_selected(self, request: HttpRequest, queryset: QuerySet[M]) -> None:
        """Pause those that are not paused yet."""
        self._set_many(request, queryset, paused=True)

    @admin.action(description=_lazy("Resume selected"), permissions=["pause"])
    def resume_selected(self, request: HttpRequest, queryset: QuerySet[M]) -> None:
        """Resume those that are paused."""
        self._set_many(request, queryset, paused=False)

    def _set_many(self, request: HttpRequest, queryset: QuerySet[M], *, paused: bool) -> None:
        form = self._form(request)
        if form is None:
            return
        found = list(queryset)
        chosen = [one for one in found if one.paused is not paused]
        for one in chosen:
            self.set_paused(request, one, form, paused=paused)
        if chosen:
            done = _("Paused: %(count)d.") if paused else _("Resumed: %(count)d.")
            self.message_user(request, done % {"count": len(chosen)}, messages.SUCCESS)
        if skipped := len(found) - len(chosen):
            left = _("Skipped %(count)d (already paused).") if paused else _("Skipped %(count)d (not paused).")
            self.message_user(request, left % {"count": skipped}, messages.WARNING)

    # -- one -----------------------------------------------------------------------

    def get_urls(self) -> list[URLPattern]:
        """Put pause and resume before Django's own addresses."""
        wrap, name = self.admin_site.admin_view, f"queue_app_{self.opts.model_name}"
        return [
            path("<path:object_id>/pause/", wrap(self.pause_view), name=f"{name}_pause"),
            path("<path:object_id>/resume/", wrap(self.resume_view), name=f"{name}_resume"),
            *super().get_urls(),
        ]

    def pause_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Pause it for the posted reason and time."""
        return self._set_one(request, object_id, paused=True)

    def resume_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Resume it."""
        return self._set_one(request, object_id, paused=False)

    def _set_one(self, request: HttpRequest, object_id: str, *, paused: bool) -> HttpResponse:
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not (self.has_pause_permission(request) and self.has_view_or_change_permission(request)):
            raise PermissionDenied
        found = self.get_object(request, unquote(object_id))
        if found is None:
            self.message_user(request, _("It is gone: somebody deleted it."), messages.WARNING)
            return HttpResponseRedirect(self.url_of("changelist"))
        form = self._form(request)
        if form is not None and found.paused is paused:
            said = _("It is paused already.") if paused else _("It is running already.")
            self.message_user(request, said, messages.WARNING)
        elif form is not None:
            self.set_paused(request, found, form, paused=paused)
            said = _("Paused: what runs finishes, nothing new starts.") if paused else _("It is running again.")
            self.message_user(request, said, messages.SUCCESS)
        return HttpResponseRedirect(self.url_of("change", quote(found.pk)))

    def _form(self, request: HttpRequest) -> PauseForm | None:
        """Return the posted reason and length; say what is wrong with them."""
        form = PauseForm(request.POST)
        if form.is_valid():
            return form
        self.message_user(request, _("The reason is too long, or the length unknown."), messages.ERROR)
        return None

    def set_paused(self, request: HttpRequest, found: M, form: PauseForm, *, paused: bool) -> None:
        """Pause or resume it, with an entry of the audit log."""
        reason = form.cleaned_data["reason"].strip()
        until = form.resume_at if paused else None
        with atomic():
            if paused:
                _pause(found, by=request.user.get_username(), reason=reason, resume_at=until)
            else:
                _resume(found)
            self.audit(
                request,
                [found],
                "Paused." if paused else "Resumed.",
                action="pause" if paused else "resume",
                before={"paused": found.paused, "by": found.paused_by, "reason": found.paused_reason},
                after={"paused": paused} | ({"resume_at": until.isoformat()} if until else {}),
                reason=reason,
            )

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Show the state and the buttons above the form."""
        found: M | None = kwargs.get("obj")
        if found is not None:
            quoted = quote(found.pk)
            context |= {
                "state": self.state(found),
                "is_paused": found.paused,
                "may_pause": self.has_pause_permission(request),
                "pause_url": self.url_of("pause", quoted),
                "resume_url": self.url_of("resume", quoted),
                "lengths": LENGTHS,
                "reason_length": REASON_LENGTH,
            }
        return super().render_change_form(request, context, *args, **kwargs)


def _pause(found: Queue | Limit | RuntimeSettings, **options: Any) -> None:
    if isinstance(found, Queue):
        pause(found.name, **options)
    elif isinstance(found, RuntimeSettings):
        pause_everything(**options)
    elif found.scope == Scope.TYPE:
        pause_type(found.name, **options)
    else:
        pause_key(found.name, **options)


def _resume(found: Queue | Limit | RuntimeSettings) -> None:
    if isinstance(found, Queue):
        resume(found.name)
    elif isinstance(found, RuntimeSettings):
        resume_everything()
    elif found.scope == Scope.TYPE:
        resume_type(found.name)
    else:
        resume_key(found.name)
