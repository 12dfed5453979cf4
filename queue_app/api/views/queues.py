"""Numbers about all queues; pause and resume one."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from rest_framework.permissions import BasePermission, IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from queue_app.api import representation
from queue_app.api.base import ApiView
from queue_app.api.errors import NoSuchQueue
from queue_app.api.fields import Reader, text
from queue_app.api.limits import resume_time
from queue_app.exceptions import InvalidTaskData, UnknownQueue
from queue_app.models import Queue
from queue_app.services import pause, resume
from queue_app.services.stats import queue_stats
from queue_app.services.validate import check_queue_name

REASON_LENGTH: Final = 200


class MayPause(BasePermission):
    """Staff with the permission to pause queues."""

    message = "This needs the permission queue_app.pause_queue."

    def has_permission(self, request: Request, view: Any) -> bool:
        """Return whether the caller may."""
        return bool(request.user.is_staff and request.user.has_perm("queue_app.pause_queue"))


class StatsView(ApiView):
    """What waits and runs, over all queues."""

    def get(self, request: Request) -> Response:
        """Return depth and oldest age per band, workers, and the throughput of the last minute."""
        return Response(queue_stats())


class PauseView(ApiView):
    """Stop a queue from starting anything new."""

    permission_classes = (IsAuthenticated, MayPause)

    def post(self, request: Request, name: str) -> Response:
        """Pause the queue; what runs finishes. The body may give a reason, and when it shall `resume_at`."""
        reader = Reader(self.json_body(request, required=False))
        reader.refuse_others(("reason", "resume_at"))
        reason = reader.optional("reason", _reason) or ""
        stop = partial(pause, resume_at=reader.optional("resume_at", resume_time))
        reader.finish()
        return Response(representation.queue(_existing(stop, name, by=self.username(request), reason=reason)))


class ResumeView(ApiView):
    """Let a paused queue go on."""

    permission_classes = (IsAuthenticated, MayPause)

    def post(self, request: Request, name: str) -> Response:
        """Resume the queue."""
        reader = Reader(self.json_body(request, required=False))
        reader.refuse_others(())
        reader.finish()
        return Response(representation.queue(_existing(resume, name)))


def _existing(service: Any, name: str, **options: str) -> Queue:
    """Call the service; a name in the address that no queue has is missing, not invalid."""
    try:
        queue: Queue = service(check_queue_name(name), **options)
    except UnknownQueue as error:
        raise NoSuchQueue(error.message) from error
    except InvalidTaskData as error:
        raise NoSuchQueue("There is no such queue.") from error
    return queue


def _reason(value: Any, name: str) -> str:
    if value == "":
        return ""
    reason = text(value, name)
    if len(reason) > REASON_LENGTH:
        raise InvalidTaskData(
            name, f"{name} has {len(reason)} characters; the limit is {REASON_LENGTH}.", limit=REASON_LENGTH
        )
    return reason
