"""List, inspect, replay and discard dead letters."""

from typing import Any, Final

from rest_framework.request import Request
from rest_framework.response import Response

from queue_app.api import representation
from queue_app.api.access import check_payload, require_staff, visible_letters
from queue_app.api.base import ApiView, accepts, for_staff, parse_id
from queue_app.api.paging import page_of
from queue_app.api.serializers import dead_letters as serializers
from queue_app.api.serializers.control import WithReason
from queue_app.api.serializers.tasks import options_of
from queue_app.api.views.operations import REPLAY, accepted, previewed
from queue_app.core.redaction import Secrets
from queue_app.core.states import Status
from queue_app.exceptions import DeadLetterNotFound
from queue_app.models import DeadLetter
from queue_app.services.lifecycle.actions import discard, discard_many, replay
from queue_app.services.operations.request import ReplayOptions, start_replay
from queue_app.services.read import dead_letters
from queue_app.services.read.inspect import queue_position

VIEW, DISCARD = "queue_app.view_deadletter", "queue_app.discard_deadletter"
NO_SECRETS: Final = Secrets()


class DeadLetterListView(ApiView):
    @accepts("view_deadletter", query=serializers.LetterListQuery, id="list_dead_letters", answer="DeadLetterPage")
    def get(self, request: Request) -> dict[str, Any]:
        """List dead letters, latest death first.

        By default lists replayable ones; ``state`` selects others.
        """
        query = self.read_query(request)
        state, size, before = query.pop("state"), query.pop("page_size"), query.pop("cursor", None)
        wanted = dead_letters.DeadLetterFilter(**query)
        letters = dead_letters.matching(wanted, visible_letters(request.user, wanted))
        if state != serializers.ALL:
            letters = letters.in_state(state)
        page = dead_letters.list_dead_letters(letters, page_size=size, before=before)
        secrets = dead_letters.secrets_by_task([letter.task_id for letter in page.letters])
        results = [
            representation.dead_letter(letter, secrets.get(letter.task_id, NO_SECRETS), request.user)
            for letter in page.letters
        ]
        return page_of(request, results, page.before)


class _OneLetterView(ApiView):
    def letter(self, request: Request, name: str, permission: str | None = None) -> DeadLetter:
        """Return a dead letter that the caller may see, and change if ``permission`` is given."""
        missing = DeadLetterNotFound(name)
        letter = dead_letters.get_dead_letter(DeadLetter.objects.visible_to(request.user), parse_id(name, missing))
        if permission is not None:
            require_staff(request, permission)
        return letter


class DeadLetterView(_OneLetterView):
    """One dead letter, by its id or the id of its task."""

    @accepts("view_deadletter", id="get_dead_letter", answer="DeadLetterDetail")
    def get(self, request: Request, letter_id: str) -> dict[str, Any]:
        """Inspect a dead letter.

        Shows why its task died, the parameters of the task, and whether it was replayed or discarded.
        """
        letter = self.letter(request, letter_id)
        secrets = dead_letters.secrets_by_task([letter.task_id]).get(letter.task_id, NO_SECRETS)
        payload = dead_letters.displayed_parameters(letter.task_id)
        return representation.letter_detail(letter, secrets, payload, request.user) | {
            "task_status": dead_letters.task_status(letter)
        }

    @accepts(
        "discard_deadletter", body=WithReason, id="discard_dead_letter", answer="DiscardedDeadLetter", problems=(409,)
    )
    def delete(self, request: Request, letter_id: str) -> dict[str, Any]:
        """Discard a dead letter.

        Its task can then no longer be replayed. The body may give a ``reason``.
        """
        reason = self.read_body(request)["reason"]
        letter = self.letter(request, letter_id, DISCARD)
        with self.recording(request):
            discard(letter.id, by=self.username(request), reason=reason)
        return {"id": letter.id, "task_id": letter.task_id, "state": "discarded"}


class ReplayView(_OneLetterView):
    @accepts(
        "replay_deadletter", body=serializers.Replay, once=True, id="replay_dead_letter", answer="ReplayedDeadLetter"
    )
    def post(self, request: Request, letter_id: str) -> dict[str, Any]:
        """Queue the task of a dead letter again.

        The body may give new ``parameters``, in which masked values keep their old value, and a ``reason``.
        """
        parameters = self.read_body(request).get("parameters")  # the audit record stores the reason with the request
        letter = self.letter(request, letter_id, REPLAY)
        if parameters is not None:
            check_payload(request.user, letter.user, "Editing the parameters of tasks")
        with self.recording(request):
            task = replay(letter.id, by=self.username(request), parameters=parameters)
        return {"id": letter.id, "task_id": task.id, "status": Status.QUEUED, "queue_position": queue_position(task)}


class _ManyLettersView(ApiView):
    def selection(self, request: Request) -> tuple[dict[str, Any], dead_letters.DeadLetterFilter]:
        """Return what the body says, and what it selects; refuse a filter that searches hidden payloads."""
        body = self.read_body(request)
        wanted = body.get("filter") or dead_letters.DeadLetterFilter(ids=body.get("ids"))
        visible_letters(request.user, wanted)
        return body, wanted


class ReplayManyView(_ManyLettersView):
    @for_staff(
        "replay_deadletter", "view_deadletter", body=serializers.ReplaySelection, once=True, id="replay_dead_letters",
        answer="Operation", status=202, also={200: "Preview"},
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Replay many dead letters.

        Selects them by ``ids`` or ``filter`` and answers 202 with an operation; with ``dry_run`` it only counts them.
        """
        body, wanted = self.selection(request)
        if body["dry_run"]:
            newest = body.get("order") == "newest"
            return previewed(dead_letters.preview(wanted, body.get("limit"), newest=newest))
        options, by = options_of(ReplayOptions, body), self.username(request)
        with self.recording(request):
            operation = start_replay(wanted, options, by=by, reason=body["reason"])
        return accepted(self, request, operation, "/dlq/replay")


class DiscardManyView(_ManyLettersView):
    @for_staff(
        "discard_deadletter", "view_deadletter", body=serializers.DiscardSelection, once=True,
        id="discard_dead_letters", answer="DiscardOrPreview",
    )  # fmt: skip
    def post(self, request: Request) -> Any:
        """Discard many dead letters.

        Selects them by ``ids`` or ``filter``, at most 10 000 in a request; with ``dry_run`` it only counts them.
        """
        body, wanted = self.selection(request)
        if body["dry_run"]:
            return previewed(dead_letters.preview(wanted, body.get("limit")))
        by = self.username(request)
        with self.recording(request):
            discarded = discard_many(wanted, by=by, reason=body["reason"], limit=body.get("limit"))
        return {"discarded": discarded, "remaining": dead_letters.preview(wanted).count}
