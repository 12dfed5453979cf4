"""The causes of open dead letters on the pages of task types and queues."""

from typing import Any, Final

from django.http import HttpRequest

from queue_app.core.redaction import redact
from queue_app.displayed_payload import displayed_payload
from queue_app.models import TaskPayload
from queue_app.models.dead_letter import DeadLetterQuerySet
from queue_app.services.read.dead_letters import Group, groups

MAX_CAUSES: Final = 10


def causes_of(request: HttpRequest, letters: DeadLetterQuerySet | Any) -> list[tuple[Group, str, str]]:
    """Return the causes of the open ones among ``letters``, each with its class and message without secrets."""
    if not request.user.has_perm("queue_app.view_deadletter"):
        return []
    found = groups(letters)[:MAX_CAUSES]
    may_view = request.user.has_perm("queue_app.view_payload")
    payloads = TaskPayload.objects.in_bulk([group.latest.task_id for group in found]) if may_view else {}
    causes = []
    for group in found:
        secrets = displayed_payload(group.latest.task_type, payloads.get(group.latest.task_id))[0]
        texts = (group.latest.exception_class, group.latest.message)
        name, message = (redact(text, secrets)[:200] if may_view else "" for text in texts)
        causes.append((group, name or group.latest.reason, message))
    return causes
