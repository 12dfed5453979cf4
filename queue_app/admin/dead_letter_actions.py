"""Replay and discard dead letters from the admin: a selection, or one, also with edited parameters."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import ADDITION, LogEntry
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _lazy

from queue_app.admin.dead_letter_form import EditForm, read_action
from queue_app.admin.mixins import COUNT_LIMIT, QueueAppAdmin
from queue_app.admin.task_detail import displayed_payload, pretty
from queue_app.exceptions import DeadLetterNotFound, InvalidTaskData, InvalidTransition
from queue_app.models import DeadLetter, TaskPayload
from queue_app.models.audit_entry import REASON_LENGTH
from queue_app.models.dead_letter import OPEN_NAME
from queue_app.services.control.audit import ADMIN, record
from queue_app.services.enqueue.validate import check_reason
from queue_app.services.lifecycle.replay import discard, discard_open, replay, replay_open
from queue_app.services.operations.request import ReplayOptions, start_replay
from queue_app.services.read.dead_letters import DeadLetterFilter, displayed_parameters
from queue_app.sql.database import atomic

#: More than these are replayed as an operation, whose first ones go ahead.
AT_ONCE = 100
TOO_MANY = (
    f"More than {COUNT_LIMIT:,} dead letters match. Narrow the list by a filter or a search first. Nothing was changed."
)


class DeadLetterActionsMixin(QueueAppAdmin[DeadLetter]):
    """Actions that call the services; the rows themselves are never edited."""

    change_form_template = "admin/queue_app/deadletter/change_form.html"

    def has_replay_permission(self, request: HttpRequest) -> bool:
        """Say whether the user may replay dead letters."""
        return request.user.has_perm("queue_app.replay_deadletter")

    def has_discard_permission(self, request: HttpRequest) -> bool:
        """Say whether the user may discard dead letters."""
        return request.user.has_perm("queue_app.discard_deadletter")

    # -- on a selection -------------------------------------------------------

    @admin.action(description=_lazy("Replay selected dead letters"), permissions=["replay"])
    def replay_selected(self, request: HttpRequest, queryset: QuerySet[DeadLetter]) -> None:
        """Queue the tasks again: a few at once, many (or with a pace) as an operation."""
        selected, reason, options = self._posted(request, queryset)
        if not selected:
            return
        if options.rate is None and len(selected) <= AT_ONCE:
            with atomic():
                moved = replay_open(list(selected), by=request.user.get_username())
                self.audit(
                    request, [selected[letter_id] for letter_id, _ in moved], "Replayed.", action="replay",
                    before={"state": "open"}, after={"state": "replayed"}, reason=reason,
                )  # fmt: skip
            self._report(request, "Replayed", len(moved), len(selected))
            return
        self.begin_replay(request, DeadLetterFilter(ids=list(selected)), options, reason)

    def begin_replay(self, request: HttpRequest, wanted: DeadLetterFilter, options: ReplayOptions, reason: str) -> None:
        """Begin an operation that replays what a filter means."""
        by = request.user.get_username()
        with atomic():
            operation = start_replay(wanted, options, by=by, reason=reason)
            message = _logged(f"Began to replay {operation.total} dead letters", reason)
            LogEntry.objects.log_actions(request.user.pk, [operation], ADDITION, message)  # type: ignore[arg-type]
            record(
                "deadletter.replay_many", "operation", [operation.pk], by=by, via=ADMIN, reason=reason,
                after={"filter": operation.filter, "rate": options.rate}, count=operation.total,
            )  # fmt: skip
        url = reverse("admin:queue_app_operation_change", args=[operation.pk], current_app=self.admin_site.name)
        self.message_user(
            request,
            format_html('Replaying {} dead letters; <a href="{}">see how far it has come</a>.', operation.total, url),
            messages.SUCCESS,
        )

    @admin.action(description=_lazy("Discard selected dead letters"), permissions=["discard"])
    def discard_selected(self, request: HttpRequest, queryset: QuerySet[DeadLetter]) -> None:
        """Close them for good."""
        selected, reason, _options = self._posted(request, queryset)
        if not selected:
            return
        with atomic():
            done = discard_open(list(selected), by=request.user.get_username(), reason=reason)
            self.audit(
                request, [selected[letter_id] for letter_id in done], "Discarded.", action="discard",
                before={"state": "open"}, after={"state": "discarded"}, reason=reason,
            )  # fmt: skip
        self._report(request, "Discarded", len(done), len(selected))

    def _posted(
        self, request: HttpRequest, queryset: QuerySet[DeadLetter]
    ) -> tuple[dict[uuid.UUID, DeadLetter], str, ReplayOptions]:
        """Return the selection, oldest first, with the reason and how to replay; none, with a message, when wrong."""
        try:
            reason, options = read_action(request.POST)
        except InvalidTaskData as error:
            self.message_user(request, f"{error.message} Nothing was changed.", messages.ERROR)
            return {}, "", ReplayOptions()
        selected = {letter.id: letter for letter in queryset.order_by("died_at")[: COUNT_LIMIT + 1]}
        if len(selected) > COUNT_LIMIT:
            self.message_user(request, TOO_MANY, messages.ERROR)
            return {}, "", options
        return selected, reason, options

    def _report(self, request: HttpRequest, verb: str, done: int, selected: int) -> None:
        if done:
            self.message_user(request, f"{verb} {_letters(done)}.", messages.SUCCESS)
        if done < selected:
            why = "replayed or discarded before, or the task was purged"
            self.message_user(request, f"Skipped {_letters(selected - done)} ({why}).", messages.WARNING)

    # -- on one -----------------------------------------------------------------

    def get_urls(self) -> list[URLPattern]:
        """Put the actions of a dead letter's page before Django's own addresses."""
        wrap = self.admin_site.admin_view
        return [
            path("<uuid:letter_id>/replay/", wrap(self.replay_view), name="queue_app_deadletter_replay"),
            path("<uuid:letter_id>/edit/", wrap(self.edit_view), name="queue_app_deadletter_edit"),
            path("<uuid:letter_id>/discard/", wrap(self.discard_view), name="queue_app_deadletter_discard"),
            *super().get_urls(),
        ]

    def replay_view(self, request: HttpRequest, letter_id: uuid.UUID) -> HttpResponse:
        """Replay one dead letter."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        return self._act(
            request, letter_id, "Replayed", lambda by, _: replay(letter_id, by=by), allowed=self.has_replay_permission
        )

    def discard_view(self, request: HttpRequest, letter_id: uuid.UUID) -> HttpResponse:
        """Discard one dead letter."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        return self._act(
            request,
            letter_id,
            "Discarded",
            lambda by, reason: discard(letter_id, by=by, reason=reason),
            allowed=self.has_discard_permission,
        )

    def edit_view(self, request: HttpRequest, letter_id: uuid.UUID) -> HttpResponse:
        """Replay one dead letter with other parameters; the form begins with what is shown, masks and all."""
        if not request.user.has_perm("queue_app.view_payload"):
            raise PermissionDenied
        letter = self._visible(request, letter_id, self.has_replay_permission)
        shown = displayed_parameters(letter.task_id) if letter is not None else None
        if letter is None or shown is None:
            return self._gone(request, letter_id)
        form = EditForm(request.POST or None, initial={"parameters": pretty(shown[1])})
        if form.is_valid():
            parameters, reason = form.cleaned_data["parameters"], form.cleaned_data["reason"]
            try:
                with atomic():
                    check_reason(reason, REASON_LENGTH)
                    replay(letter_id, by=request.user.get_username(), parameters=parameters)
                    self.audit(
                        request, [letter], "Replayed with parameters edited.", action="replay_edited", reason=reason,
                        before={"state": letter.state}, after={"state": "replayed", "parameters": "edited"},
                    )  # fmt: skip
            except InvalidTaskData as error:
                form.add_error("reason" if error.field == "reason" else "parameters", error.message)
            except (InvalidTransition, DeadLetterNotFound) as error:
                self.message_user(request, str(error), messages.ERROR)
                return HttpResponseRedirect(self.url_of("change", letter_id))
            else:
                self.message_user(request, "The task is queued again, with these parameters.", messages.SUCCESS)
                return HttpResponseRedirect(self.url_of("change", letter_id))
        args = displayed_payload(letter.task_type, TaskPayload.objects.filter(pk=letter.task_id).first())[1]
        context = self.admin_site.each_context(request) | {
            "title": "Replay with edited parameters",
            "opts": self.opts,
            "original": letter,
            "form": form,
            "args": pretty(args) if args else "",
            "media": self.media,
        }
        return TemplateResponse(request, "admin/queue_app/deadletter/edit.html", context)

    def _act(
        self,
        request: HttpRequest,
        letter_id: uuid.UUID,
        done: str,
        action: Callable[[str, str], object],
        *,
        allowed: Callable[[HttpRequest], bool],
    ) -> HttpResponse:
        letter = self._visible(request, letter_id, allowed)
        if letter is None:
            return self._gone(request, letter_id)
        reason = request.POST.get("reason", "").strip()
        try:
            with atomic():
                check_reason(reason, REASON_LENGTH)
                action(request.user.get_username(), reason)
                self.audit(
                    request, [letter], f"{done}.", action="replay" if done == "Replayed" else "discard",
                    before={"state": letter.state}, after={"state": done.lower()}, reason=reason,
                )  # fmt: skip
        except (InvalidTaskData, InvalidTransition, DeadLetterNotFound) as error:
            self.message_user(request, str(error), messages.ERROR)
        else:
            said = "The task is queued again." if done == "Replayed" else "The dead letter is discarded."
            self.message_user(request, said, messages.SUCCESS)
        return HttpResponseRedirect(self.url_of("change", letter_id))

    def _visible(
        self, request: HttpRequest, letter_id: uuid.UUID, allowed: Callable[[HttpRequest], bool]
    ) -> DeadLetter | None:
        if not (allowed(request) and self.has_view_permission(request)):
            raise PermissionDenied
        return self.get_object(request, str(letter_id))

    def _gone(self, request: HttpRequest, letter_id: uuid.UUID) -> HttpResponse:
        self.message_user(request, f"There is no dead letter {letter_id}, or its task was purged.", messages.WARNING)
        return HttpResponseRedirect(self.url_of("changelist"))

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Show the buttons above the record, to those who may."""
        letter: DeadLetter | None = kwargs.get("obj")
        if letter is not None:
            is_open = letter.state == OPEN_NAME
            context |= {
                "may_replay": is_open and self.has_replay_permission(request),
                "may_edit": is_open
                and self.has_replay_permission(request)
                and request.user.has_perm("queue_app.view_payload"),
                "may_discard": is_open and self.has_discard_permission(request),
            }
        return super().render_change_form(request, context, *args, **kwargs)


def _logged(verb: str, reason: str) -> str:
    return f"{verb}: {reason}" if reason else f"{verb}."


def _letters(count: int) -> str:
    return f"{count:,} dead letter" if count == 1 else f"{count:,} dead letters"
