"""Dead letters by cause: one row a mistake, with actions on all of its dead letters."""

from __future__ import annotations

from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from queue_app.admin.dead_letter_actions import DeadLetterActionsMixin
from queue_app.admin.dead_letter_form import read_action
from queue_app.admin.task_detail import displayed_payload
from queue_app.core.redaction import redact
from queue_app.exceptions import InvalidTaskData
from queue_app.models import DeadLetter, TaskPayload
from queue_app.models.audit_entry import REASON_LENGTH
from queue_app.services.control.audit import ADMIN, record
from queue_app.services.lifecycle.replay import discard_many
from queue_app.services.operations.request import MAX_RATE, MIN_RATE
from queue_app.services.read.dead_letters import DeadLetterFilter, groups, preview
from queue_app.sql.database import atomic

#: Fields of a filter that the form offers beside the cause.
_FIELDS = ("fingerprint", "queue", "task_type", "exception_class", "user", "text")


class DeadLetterGroupsMixin(DeadLetterActionsMixin):
    """The page of causes, and what is done to one of them or to a filter: always after a dry run."""

    def get_urls(self) -> list[URLPattern]:
        """Put them before Django's own addresses."""
        wrap = self.admin_site.admin_view
        return [
            path("causes/", wrap(self.groups_view), name="queue_app_deadletter_groups"),
            path("matching/", wrap(self.matching_view), name="queue_app_deadletter_matching"),
            *super().get_urls(),
        ]

    def groups_view(self, request: HttpRequest) -> HttpResponse:
        """Show the open dead letters by cause."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        may_view = request.user.has_perm("queue_app.view_payload")
        found = groups()
        payloads = TaskPayload.objects.in_bulk([group.latest.task_id for group in found]) if may_view else {}
        rows = []
        for group in found:
            secrets = displayed_payload(group.latest.task_type, payloads.get(group.latest.task_id))[0]
            rows.append((group, redact(group.latest.message, secrets)[:200] if may_view else ""))
        context = self.admin_site.each_context(request) | {
            "title": _("Dead letters by cause"),
            "opts": self.opts,
            "media": self.media,
            "rows": rows,
            "may_view_payload": may_view,
            "may_act": self.has_replay_permission(request) or self.has_discard_permission(request),
        }
        return TemplateResponse(request, "admin/queue_app/deadletter/groups.html", context)

    def matching_view(self, request: HttpRequest) -> HttpResponse:
        """Say what a filter means now (a dry run), and replay or discard all of it once that is confirmed."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        data = request.POST if request.method == "POST" else request.GET
        values = {name: data.get(name, "").strip() for name in _FIELDS}
        if values["text"] and not request.user.has_perm("queue_app.view_payload"):
            raise PermissionDenied  # or messages could be guessed
        wanted = DeadLetterFilter(**{name: value for name, value in values.items() if value})  # type: ignore[arg-type]
        if "\x00" in "".join(values.values()):
            self.message_user(request, _("Something in the filter is no valid value."), messages.ERROR)
            return HttpResponseRedirect(self.url_of("changelist"))
        act = request.POST.get("act", "") if request.method == "POST" else ""
        if act in {"replay", "discard"} and self._act_on_all(request, act, wanted):
            return HttpResponseRedirect(self.url_of("groups"))
        dry = preview(wanted)
        context = self.admin_site.each_context(request) | {
            "title": _("Replay or discard all that match"),
            "opts": self.opts,
            "media": self.media,
            "values": values,
            "count": dry.count,
            "sample": DeadLetter.objects.filter(pk__in=dry.sample).order_by("died_at"),
            "may_replay": self.has_replay_permission(request),
            "may_discard": self.has_discard_permission(request),
            "reason_length": REASON_LENGTH,
            "rates": (MIN_RATE, MAX_RATE),
        }
        return TemplateResponse(request, "admin/queue_app/deadletter/matching.html", context)

    def _act_on_all(self, request: HttpRequest, act: str, wanted: DeadLetterFilter) -> bool:
        """Do it; return false, with a message, when the form is wrong."""
        allowed = self.has_replay_permission(request) if act == "replay" else self.has_discard_permission(request)
        if not allowed:
            raise PermissionDenied
        try:
            reason, options = read_action(request.POST)
        except InvalidTaskData as error:
            self.message_user(request, _("%(error)s Nothing was changed.") % {"error": error.message}, messages.ERROR)
            return False
        if act == "replay":
            self.begin_replay(request, wanted, options, reason)
            return True
        by = request.user.get_username()
        with atomic():
            sample = list(DeadLetter.objects.filter(pk__in=preview(wanted).sample[:1]))
            count = discard_many(wanted, by=by, reason=reason)
            said = f"Discarded {count} dead letters by filter {wanted.as_json()}" + (f": {reason}" if reason else ".")
            if sample:
                LogEntry.objects.log_actions(request.user.pk, sample, CHANGE, said)  # type: ignore[arg-type]
            record(
                "deadletter.discard_many", "deadletter", by=by, via=ADMIN, count=count, reason=reason,
                after={"filter": wanted.as_json()},
            )  # fmt: skip
        text = ngettext("Discarded %(count)d dead letter.", "Discarded %(count)d dead letters.", count)
        self.message_user(request, text % {"count": count}, messages.SUCCESS)
        return True
