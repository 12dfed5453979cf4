"""Replay and discard dead letters: one, a selection, or all that match a filter."""

import uuid
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy
from django.utils.translation import ngettext, ngettext_lazy

from queue_app.admin.bulk import OperationsMixin
from queue_app.admin.causes import cause_text, named
from queue_app.admin.columns import counted, permission
from queue_app.admin.edit_parameters import EditParametersMixin
from queue_app.admin.forms import read_action
from queue_app.admin.mixins import COUNT_LIMIT, action_page, object_page, page
from queue_app.core.redaction import redact
from queue_app.exceptions import InvalidTaskData
from queue_app.models import DeadLetter
from queue_app.models.dead_letter import OPEN_NAME
from queue_app.models.operation import OperationKind
from queue_app.services.control.audit import ADMIN, record
from queue_app.services.lifecycle.replay import discard, discard_many, discard_open, replay
from queue_app.services.operations.request import MAX_RATE, MIN_RATE, Action, OperationOptions, ReplayOptions
from queue_app.services.operations.run import carry_out
from queue_app.services.read.dead_letters import DeadLetterFilter, groups, preview
from queue_app.sql.database import atomic

#: A larger selection continues in the background: its first replays run alone, and the rest waits for their success.
AT_ONCE = 100
REPLAY = Action(kind=OperationKind.REPLAY)
#: What an action did, with the number of dead letters.
REPLAYED: Any = ngettext_lazy("Replayed %(count)d dead letter.", "Replayed %(count)d dead letters.", "count")
DISCARDED: Any = ngettext_lazy("Discarded %(count)d dead letter.", "Discarded %(count)d dead letters.", "count")
SKIPPED: Any = ngettext_lazy(
    "Skipped %(count)d dead letter (replayed or discarded before, or the task was purged).",
    "Skipped %(count)d dead letters (replayed or discarded before, or the task was purged).",
    "count",
)
#: Fields of a filter in the form.
_FIELDS = ("fingerprint", "queue", "task_type", "exception_class", "user", "text")


class DeadLetterActionsMixin(EditParametersMixin[DeadLetter], OperationsMixin[DeadLetter]):
    """Actions that call the services; staff never edit the rows themselves."""

    change_form_template = "admin/queue_app/deadletter/change_form.html"
    has_replay_permission = permission("replay_deadletter")
    has_discard_permission = permission("discard_deadletter")

    # -- on a selection -------------------------------------------------------------

    @admin.action(description=_lazy("Replay selected dead letters"), permissions=["replay"])
    def replay_selected(self, request: HttpRequest, queryset: QuerySet[DeadLetter]) -> None:
        """Queue the tasks again: a small selection at once; a large one, or one with a rate, in the background."""
        selected, reason, options = self._posted(request, queryset)
        if not selected:
            return
        wanted = DeadLetterFilter(ids=list(selected))
        if options.rate is not None or len(selected) > AT_ONCE:
            self._start_replay(request, wanted, options, reason)
            return
        with atomic():
            _operation, changed = carry_out(
                REPLAY, wanted, OperationOptions(), by=request.user.get_username(), reason=reason
            )
            self._audit_many(
                request, [letter for letter in selected.values() if letter.id in changed], "replay", reason
            )
        self._report(request, REPLAYED, len(changed), len(selected))

    @admin.action(description=_lazy("Discard selected dead letters"), permissions=["discard"])
    def discard_selected(self, request: HttpRequest, queryset: QuerySet[DeadLetter]) -> None:
        selected, reason, _options = self._posted(request, queryset)
        if not selected:
            return
        with atomic():
            done = discard_open(list(selected), by=request.user.get_username(), reason=reason)
            self._audit_many(request, [selected[letter_id] for letter_id in done], "discard", reason)
        self._report(request, DISCARDED, len(done), len(selected))

    def _posted(
        self, request: HttpRequest, queryset: QuerySet[DeadLetter]
    ) -> tuple[dict[uuid.UUID, DeadLetter], str, ReplayOptions]:
        """Return the selection, oldest first, the reason and the options; an empty selection if one is invalid."""
        try:
            reason, options = read_action(request.POST)
        except InvalidTaskData as error:
            self.refuse(request, error)
            return {}, "", ReplayOptions()
        selected = {letter.id: letter for letter in queryset.order_by("died_at")[: COUNT_LIMIT + 1]}
        if len(selected) > COUNT_LIMIT:
            self.refuse(
                request, _("More than %(n)s dead letters match. Narrow the list first.") % {"n": f"{COUNT_LIMIT:,}"}
            )
            return {}, "", options
        return selected, reason, options

    def _start_replay(
        self, request: HttpRequest, wanted: DeadLetterFilter, options: ReplayOptions, reason: str
    ) -> None:
        operation = self.start(request, REPLAY, wanted, reason, options)
        text = ngettext("Replaying %(n)d dead letter:", "Replaying %(n)d dead letters:", operation.total)
        self.tell_of(request, operation, text % {"n": operation.total}, _("see the progress"))

    def _audit_many(self, request: HttpRequest, letters: list[DeadLetter], action: str, reason: str) -> None:
        done = "Replayed" if action == "replay" else "Discarded"
        self.audit(
            request, letters, f"{done}.", action=action, before={"state": OPEN_NAME}, after={"state": done.lower()},
            reason=reason,
        )  # fmt: skip

    def _report(self, request: HttpRequest, text: Any, done: int, selected: int) -> None:
        if done:
            self.message_user(request, text % {"count": done}, messages.SUCCESS)
        if skipped := selected - done:
            self.message_user(request, SKIPPED % {"count": skipped}, messages.WARNING)

    # -- on one ---------------------------------------------------------------------

    @action_page("replay", "replay")
    def replay_view(self, request: HttpRequest, letter: DeadLetter, reason: str) -> str:
        replay(letter.pk, by=request.user.get_username())
        self._audit_many(request, [letter], "replay", reason)
        return _("The task is queued again.")

    @action_page("discard", "discard")
    def discard_view(self, request: HttpRequest, letter: DeadLetter, reason: str) -> str:
        discard(letter.pk, by=request.user.get_username(), reason=reason)
        self._audit_many(request, [letter], "discard", reason)
        return _("The dead letter is discarded.")

    def has_edit_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may see parameters, and replay tasks with others."""
        return self.may_view_payload(request) and self.has_replay_permission(request)

    @object_page("edit", "edit")
    def edit_view(self, request: HttpRequest, letter: DeadLetter) -> HttpResponse:

        def act(edited: dict[str, Any], reason: str) -> tuple[str, uuid.UUID]:
            replay(letter.pk, by=request.user.get_username(), **edited)
            self.audit(
                request, [letter], "Replayed with parameters edited.", action="replay_edited", reason=reason,
                before={"state": letter.state}, after={"state": "replayed", "parameters": "edited"},
            )  # fmt: skip
            return _("The task is queued again, with these parameters."), letter.pk

        return self.edit_parameters(
            request, letter, letter.task_id, act, title=_("Replay with edited parameters"),
            submit=_("Replay"),
            explanation=_("The task will run again with these parameters. Its errors and attempts are kept."),
        )  # fmt: skip

    def gone(self, request: HttpRequest, pk: str) -> HttpResponse:
        self.message_user(
            request, _("There is no dead letter %(id)s, or its task was purged.") % {"id": pk}, messages.WARNING
        )
        return HttpResponseRedirect(self.url_of("changelist"))

    def page_context(self, request: HttpRequest, found: DeadLetter) -> dict[str, Any]:
        may_replay = found.state == OPEN_NAME and self.has_replay_permission(request)
        return {
            "may_replay": may_replay,
            "may_edit": may_replay and self.has_edit_permission(request),
            "may_discard": found.state == OPEN_NAME and self.has_discard_permission(request),
        }

    # -- by cause, or by filter -------------------------------------------------------

    @page("causes/", "groups", permission="view")
    def groups_view(self, request: HttpRequest) -> HttpResponse:
        rows = named(request, groups())
        may_act = self.has_replay_permission(request) or self.has_discard_permission(request)
        return self.own_page(request, "deadletter/groups.html", _("Dead letters by cause"), rows=rows, may_act=may_act)

    @page("matching/", "matching", permission="view")
    def matching_view(self, request: HttpRequest) -> HttpResponse:
        """Show what a filter matches now; replay or discard all of it once the user confirms."""
        data = request.POST if request.method == "POST" else request.GET
        values = {name: data.get(name, "").strip() for name in _FIELDS}
        of_cause = values["fingerprint"] and "\x00" not in values["fingerprint"]
        if (values["text"] or values["exception_class"]) and not self.may_view_payload(request):
            raise PermissionDenied  # otherwise staff could guess messages word by word
        wanted = DeadLetterFilter(**{name: value for name, value in values.items() if value})  # type: ignore[arg-type]
        if "\x00" in "".join(values.values()):
            self.message_user(request, _("The filter contains an invalid value."), messages.ERROR)
            return HttpResponseRedirect(self.url_of("changelist"))
        act = request.POST.get("act", "")
        if act in {"replay", "discard"} and self._act_on_all(request, act, wanted):
            return HttpResponseRedirect(self.url_of("groups"))
        dry_run = preview(wanted)
        sample = list(DeadLetter.objects.filter(pk__in=dry_run.sample).order_by("died_at"))
        self.annotate_rows(request, sample)
        for letter in sample:
            letter.shown = redact(letter.message, letter.secrets)
        return self.own_page(
            request,
            "deadletter/matching.html",
            _("Replay or discard all that match"),
            values=values,
            cause=cause_text(request, values["fingerprint"]) if of_cause else "",
            count=dry_run.count,
            sample=sample,
            may_replay=self.has_replay_permission(request),
            may_discard=self.has_discard_permission(request),
            rates=(MIN_RATE, MAX_RATE),
        )

    def _act_on_all(self, request: HttpRequest, act: str, wanted: DeadLetterFilter) -> bool:
        """Replay or discard what a filter matches; return false, with a message, if the form is invalid."""
        if not (self.has_replay_permission(request) if act == "replay" else self.has_discard_permission(request)):
            raise PermissionDenied
        try:
            reason, options = read_action(request.POST)
        except InvalidTaskData as error:
            self.refuse(request, error)
            return False
        if act == "replay":
            self._start_replay(request, wanted, options, reason)
            return True
        by = request.user.get_username()
        with atomic():
            sample = list(DeadLetter.objects.filter(pk__in=preview(wanted).sample[:1]))
            count = discard_many(wanted, by=by, reason=reason)
            logged = f"Discarded {counted(count, 'dead letter')} by filter {wanted.as_json()}."
            if sample:
                self.log_action_of(request, sample, logged, reason)
            record(
                "deadletter.discard_many", "deadletter", by=by, via=ADMIN, count=count, reason=reason,
                after={"filter": wanted.as_json()},
            )  # fmt: skip
        self.message_user(request, DISCARDED % {"count": count}, messages.SUCCESS)
        return True
