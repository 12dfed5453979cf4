"""List, inspect, replay and discard dead letters."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from rest_framework.exceptions import PermissionDenied
from rest_framework.permissions import BasePermission, IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.settings import api_settings

from queue_app.api import representation
from queue_app.api.base import ApiView
from queue_app.api.dead_letters import Selection, cursor, parse_listing, parse_selection, reason_text
from queue_app.api.fields import Reader, json_object
from queue_app.api.fields import task_id as parse_id
from queue_app.api.listing import address_with
from queue_app.api.visibility import check_payload, visible_letters
from queue_app.core.redaction import Secrets
from queue_app.core.states import Status
from queue_app.exceptions import DeadLetterNotFound, InvalidTaskData
from queue_app.models import DeadLetter
from queue_app.services.lifecycle.replay import discard, discard_many, replay
from queue_app.services.operations.request import start_replay
from queue_app.services.read.dead_letters import (
    displayed_parameters,
    get_dead_letter,
    list_dead_letters,
    matching,
    preview,
    secrets_by_task,
    task_status,
)
from queue_app.services.read.inspect import queue_position

VIEW, REPLAY, DISCARD = "queue_app.view_deadletter", "queue_app.replay_deadletter", "queue_app.discard_deadletter"
NO_SECRETS = Secrets()


def is_staff_with(request: Request, *permissions: str) -> bool:
    """Return whether the caller is staff and has all of the permissions."""
    return bool(request.user.is_staff and request.user.has_perms(permissions))


class _StaffWith(BasePermission):
    permissions: tuple[str, ...] = ()

    def has_permission(self, request: Request, view: Any) -> bool:
        """Return whether the caller may."""
        return is_staff_with(request, *self.permissions)


class MayReplayMany(_StaffWith):
    """Staff who may see all dead letters and replay them."""

    permissions = (VIEW, REPLAY)
    message = f"This needs the permissions {VIEW} and {REPLAY}."


class MayDiscardMany(_StaffWith):
    """Staff who may see all dead letters and discard them."""

    permissions = (VIEW, DISCARD)
    message = f"This needs the permissions {VIEW} and {DISCARD}."


class DeadLetterListView(ApiView):
    """The dead letters that the caller may see."""

    def get(self, request: Request) -> Response:
        """List dead letters that can be replayed (or ``state``), latest death first, a page at a time."""
        listing = parse_listing(request.query_params, ignore=api_settings.URL_FORMAT_OVERRIDE)
        letters = matching(listing.wanted, visible_letters(request.user, listing.wanted))
        if listing.state is not None:
            letters = letters.in_state(listing.state)
        page = list_dead_letters(letters, page_size=listing.page_size, before=listing.before)
        secrets = secrets_by_task([letter.task_id for letter in page.letters])
        following = None if page.before is None else cursor(page.before)
        return Response(
            {
                "results": [
                    representation.dead_letter(letter, secrets.get(letter.task_id, NO_SECRETS), request.user)
                    for letter in page.letters
                ],
                "next_cursor": following,
                "next": following and address_with(request, following),
            }
        )


class _OneLetterView(ApiView):
    def letter(self, request: Request, name: str, permission: str | None = None) -> DeadLetter:
        """Return the dead letter; it is missing to whoever may not see it, and changing it needs a permission."""
        try:
            letter = get_dead_letter(DeadLetter.objects.visible_to(request.user), parse_id(name, "id"))
        except InvalidTaskData:
            raise DeadLetterNotFound(name) from None
        if permission is not None and not is_staff_with(request, permission):
            raise PermissionDenied(f"This needs the permission {permission}.")
        return letter


class DeadLetterView(_OneLetterView):
    """One dead letter, by its id or by that of its task."""

    def get(self, request: Request, letter_id: str) -> Response:
        """Inspect a dead letter: why its task died, with what parameters, and what became of it."""
        letter = self.letter(request, letter_id)
        secrets = secrets_by_task([letter.task_id]).get(letter.task_id, NO_SECRETS)
        payload = displayed_parameters(letter.task_id)
        return Response(
            representation.letter_detail(letter, secrets, payload, request.user) | {"task_status": task_status(letter)}
        )

    def delete(self, request: Request, letter_id: str) -> Response:
        """Discard a dead letter: its task cannot be replayed any more. The body may give a reason."""
        reader = Reader(self.json_body(request, required=False))
        reader.refuse_others(("reason",))
        reason = reader.optional("reason", reason_text) or ""
        reader.finish()
        letter = self.letter(request, letter_id, DISCARD)
        with self.recording(request):
            discard(letter.id, by=self.username(request), reason=reason)
        return Response({"id": letter.id, "task_id": letter.task_id, "state": "discarded"})


class ReplayView(_OneLetterView):
    """Replay one dead letter."""

    def post(self, request: Request, letter_id: str) -> Response:
        """Queue the task of a dead letter again; the body may give ``parameters`` (masks stay), and a ``reason``."""
        reader = Reader(self.json_body(request, required=False))
        reader.refuse_others(("parameters", "reason"))
        parameters = reader.optional("parameters", json_object)
        reader.optional("reason", reason_text)  # which goes to the record with the rest of what was asked
        reader.finish()
        letter = self.letter(request, letter_id, REPLAY)
        if parameters is not None:
            check_payload(request.user, letter.user, "To edit the parameters of tasks")
        with self.recording(request):
            task = replay(letter.id, by=self.username(request), parameters=parameters)
        return Response(
            {"id": letter.id, "task_id": task.id, "status": Status.QUEUED, "queue_position": queue_position(task)}
        )


class _ManyLettersView(ApiView):
    def selection(self, request: Request, *, replay: bool) -> Selection:
        """Return what the body asks for, if its filter may be asked."""
        selection = parse_selection(self.json_body(request), replay=replay)
        visible_letters(request.user, selection.wanted)
        return selection


class ReplayManyView(_ManyLettersView):
    """Replay many dead letters."""

    permission_classes = (IsAuthenticated, MayReplayMany)

    def post(self, request: Request) -> Response:
        """Begin to replay dead letters by ``ids`` or ``filter``: 202 with the operation, or 200 for a ``dry_run``."""
        selection = self.selection(request, replay=True)
        if selection.dry_run:
            return _preview(selection)
        with self.recording(request):
            operation = start_replay(
                selection.wanted, selection.options, by=self.username(request), reason=selection.reason
            )
        base = request.path.rstrip("/").removesuffix("/dlq/replay")
        location = {"Location": self.address(request, f"{base}/operations/{operation.id}")}
        return Response(representation.operation(operation, request.user), status=HTTPStatus.ACCEPTED, headers=location)


class DiscardManyView(_ManyLettersView):
    """Discard many dead letters."""

    permission_classes = (IsAuthenticated, MayDiscardMany)

    def post(self, request: Request) -> Response:
        """Discard dead letters by ``ids`` or ``filter``, at most 10 000 at once; with ``dry_run`` only count them."""
        selection = self.selection(request, replay=False)
        if selection.dry_run:
            return _preview(selection)
        with self.recording(request):
            discarded = discard_many(
                selection.wanted, by=self.username(request), reason=selection.reason, limit=selection.options.limit
            )
        return Response({"discarded": discarded, "remaining": preview(selection.wanted).count})


def _preview(selection: Selection) -> Response:
    found = preview(selection.wanted, selection.options.limit)
    return Response({"dry_run": True, "count": found.count, "sample": found.sample})
