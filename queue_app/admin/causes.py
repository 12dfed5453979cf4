"""The causes of open dead letters on the pages of task types and queues."""

from collections.abc import Mapping
from typing import Any, Final

from django.http import HttpRequest

from queue_app.core.redaction import redact
from queue_app.dashboard import labels
from queue_app.dashboard.translation import word
from queue_app.displayed_payload import displayed_payload
from queue_app.models import DeadLetter, TaskPayload
from queue_app.models.dead_letter import DeadLetterQuerySet
from queue_app.services.read.dead_letters import CauseGroup, groups

MAX_CAUSES: Final = 10


def causes_of(request: HttpRequest, letters: DeadLetterQuerySet | Any) -> list[tuple[CauseGroup, str, str]]:
    """Return the causes of the open ones among ``letters``, each with its class and message without secrets."""
    if not request.user.has_perm("queue_app.view_deadletter"):
        return []
    return named(request, groups(letters)[:MAX_CAUSES])


def named(request: HttpRequest, found: list[CauseGroup]) -> list[tuple[CauseGroup, str, str]]:
    """Return causes, each with its class and message: without secrets, and only for those who may read them."""
    may_view = request.user.has_perm("queue_app.view_payload")
    payloads = TaskPayload.objects.in_bulk([group.latest.task_id for group in found]) if may_view else {}
    return [(group, *_texts(group.latest, payloads, may_view=may_view)) for group in found]


def cause_text(request: HttpRequest, fingerprint: str) -> str:
    """Return the cause of dead letters as one line; the fingerprint if there is no such dead letter."""
    letter = DeadLetter.objects.filter(fingerprint=fingerprint).order_by("-died_at").first()
    if letter is None:
        return fingerprint
    may_view = request.user.has_perm("queue_app.view_payload")
    payloads = TaskPayload.objects.in_bulk([letter.task_id]) if may_view else {}
    name, message = _texts(letter, payloads, may_view=may_view)
    return f"{labels.class_name(name)}: {message}" if message else f"{name}, {letter.task_type}"


def _texts(letter: DeadLetter, payloads: Mapping[Any, TaskPayload], *, may_view: bool) -> tuple[str, str]:
    if not may_view:
        return word(letter.reason), ""
    secrets = displayed_payload(letter.task_type, payloads.get(letter.task_id))[0]
    name, message = (redact(text, secrets)[:200] for text in (letter.exception_class, letter.message))
    return name or word(letter.reason), message
