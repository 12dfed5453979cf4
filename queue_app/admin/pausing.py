"""Pages of what can be paused besides queues: buttons, permissions, audit."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _lazy

from queue_app.admin.mixins import QueueAppAdmin
from queue_app.admin.queue import LENGTHS, PauseForm
from queue_app.dashboard import labels
from queue_app.models import Limit, RuntimeSettings
from queue_app.models.limit import Scope
from queue_app.rows.database import atomic
from queue_app.services.pause import (
    describe,
    pause_everything,
    pause_key,
    pause_type,
    resume_everything,
    resume_key,
    resume_type,
)


class PausingAdmin[M: Limit | RuntimeSettings](QueueAppAdmin[M]):
    """A page with buttons to pause and resume what it shows."""

    pause_permission = "queue_app.pause_limit"
    change_form_template = "admin/queue_app/includes/pausable.html"

    def has_pause_permission(self, request: HttpRequest) -> bool:
        """Say whether the user may pause and resume it."""
        return request.user.has_perm(self.pause_permission)

    @admin.display(description=_lazy("state"))
    def state(self, found: M) -> SafeString:
        """Return running, or paused with by whom, when, why and until when."""
        if not found.paused:
            return format_html('<span class="tq-label tq-running">{}</span>', "running")
        now = timezone.now()
        return format_html(
            '<span class="tq-label tq-paused">paused</span> <span class="tq-quiet">by {}{}{}{}</span>',
            found.paused_by or "a program",
            format_html(" {}", labels.ago(found.paused_at, now)) if found.paused_at else "",
            f": {found.paused_reason}" if found.paused_reason else "",
            format_html("; goes on {}", labels.ago(found.resume_at, now)) if found.resume_at else "",
        )

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
        return self._answer(request, object_id, paused=True)

    def resume_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Resume it."""
        return self._answer(request, object_id, paused=False)

    def _answer(self, request: HttpRequest, object_id: str, *, paused: bool) -> HttpResponse:
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not (self.has_pause_permission(request) and self.has_view_or_change_permission(request)):
            raise PermissionDenied
        found = self.get_object(request, unquote(object_id))
        if found is None:
            self.message_user(request, "There are no such limits.", messages.WARNING)
            return HttpResponseRedirect(self.url_of("changelist"))
        form = PauseForm(request.POST)
        if not form.is_valid():
            self.message_user(request, "The reason is too long, or the length unknown.", messages.ERROR)
        else:
            self.set_paused(request, found, form, paused=paused)
            state = "is paused" if paused else "goes on"
            self.message_user(request, f"{describe(found).capitalize()} {state}.", messages.SUCCESS)
        return HttpResponseRedirect(self.url_of("change", quote(found.pk)))

    def set_paused(self, request: HttpRequest, found: M, form: PauseForm, *, paused: bool) -> None:
        """Pause or resume it, with an entry of the audit log."""
        reason = form.cleaned_data["reason"].strip()
        options = {"by": request.user.get_username(), "reason": reason, "resume_at": form.resume_at}
        before = {"paused": found.paused, "by": found.paused_by, "reason": found.paused_reason}
        with atomic():
            if isinstance(found, RuntimeSettings):
                pause_everything(**options) if paused else resume_everything()
            elif found.scope == Scope.TYPE:
                pause_type(found.name, **options) if paused else resume_type(found.name)
            else:
                pause_key(found.name, **options) if paused else resume_key(found.name)
            self.audit(
                request,
                [found],
                "Paused." if paused else "Resumed.",
                action="pause" if paused else "resume",
                before=before,
                after={"paused": paused},
                reason=reason,
            )

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Show the state and the buttons above the form."""
        found: M | None = kwargs.get("obj")
        if found is not None:
            name, quoted = f"queue_app_{self.opts.model_name}", quote(found.pk)
            context |= {
                "state": self.state(found),
                "is_paused": found.paused,
                "may_pause": self.has_pause_permission(request),
                "pause_url": self.url_of("pause", quoted),
                "resume_url": self.url_of("resume", quoted),
                "lengths": LENGTHS,
                "model_url_name": name,
            }
        return super().render_change_form(request, context, *args, **kwargs)
