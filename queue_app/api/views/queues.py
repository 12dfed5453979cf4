"""Numbers about all queues; pause and resume one."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from rest_framework.exceptions import NotFound, PermissionDenied
from rest_framework.permissions import BasePermission, IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from queue_app.api import representation
from queue_app.api.base import ApiView
from queue_app.api.errors import NoSuchQueue
from queue_app.api.fields import Reader, text
from queue_app.api.limits import resume_time
from queue_app.api.versions import expected_version, with_version
from queue_app.core.priorities import Band, parse_band
from queue_app.exceptions import InvalidTaskData, UnknownQueue
from queue_app.models import PriorityPolicy, Queue
from queue_app.models.audit_entry import REASON_LENGTH
from queue_app.services import pause, resume
from queue_app.services.control.queues import POLICY_FIELDS, QUEUE_FIELDS, edit_policy, edit_queue
from queue_app.services.enqueue.validate import check_queue_name
from queue_app.services.read.stats import one_queue_stats, queue_stats

READ_ONLY: Final = (
    "name",
    "priority",
    "paused",
    "paused_at",
    "paused_by",
    "paused_reason",
    "throttled_until",
    "created_at",
    "updated_at",
)


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


class QueueListView(ApiView):
    """The queues."""

    def get(self, request: Request) -> Response:
        """List all queues with their settings."""
        return Response({"results": [representation.queue(found) for found in Queue.objects.order_by("name")[:1000]]})


class QueueView(ApiView):
    """One queue."""

    def get(self, request: Request, name: str) -> Response:
        """Inspect a queue; the ETag is what an edit has to name."""
        found = _existing(get_queue, name)
        return with_version(found, representation.queue(found))

    def patch(self, request: Request, name: str) -> Response:
        """Edit some settings of a queue; ``If-Match`` carries the ETag that was read."""
        _require(request, "queue_app.change_queue")
        changes = changes_in(self.json_body(request), QUEUE_FIELDS)
        version = expected_version(request._request, _existing(get_queue, name))  # noqa: SLF001 - for its headers
        edited = edit_queue(check_queue_name(name), changes, version=version, by=self.username(request))
        return with_version(edited, representation.queue(edited))


class QueueStatsView(ApiView):
    """What waits and runs in one queue."""

    def get(self, request: Request, name: str) -> Response:
        """Return depth and oldest age per band, what runs, and the cap."""
        return Response(one_queue_stats(_existing(get_queue, name)))


class PolicyListView(ApiView):
    """What holds for the bands."""

    def get(self, request: Request) -> Response:
        """List the policies of all bands."""
        found = PriorityPolicy.objects.order_by("priority")
        return Response({"results": [representation.policy(policy) for policy in found]})


class PolicyView(ApiView):
    """What holds for the tasks of a band, unless the task or its queue says otherwise."""

    def get(self, request: Request, band: str) -> Response:
        """Inspect the policy of a band; the ETag is what an edit has to name."""
        policy = _policy(band)
        return with_version(policy, representation.policy(policy))

    def patch(self, request: Request, band: str) -> Response:
        """Edit the policy of a band; ``If-Match`` carries the ETag that was read."""
        _require(request, "queue_app.change_prioritypolicy")
        changes = changes_in(self.json_body(request), POLICY_FIELDS)
        policy = _policy(band)
        version = expected_version(request._request, policy)  # noqa: SLF001 - for its headers
        policy = edit_policy(Band(policy.priority), changes, version=version, by=self.username(request))
        return with_version(policy, representation.policy(policy))


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
        with self.recording(request):
            queue = _existing(stop, name, by=self.username(request), reason=reason)
        return Response(representation.queue(queue))


class ResumeView(ApiView):
    """Let a paused queue go on."""

    permission_classes = (IsAuthenticated, MayPause)

    def post(self, request: Request, name: str) -> Response:
        """Resume the queue."""
        reader = Reader(self.json_body(request, required=False))
        reader.refuse_others(())
        reader.finish()
        with self.recording(request):
            queue = _existing(resume, name)
        return Response(representation.queue(queue))


def _existing(service: Any, name: str, **options: str) -> Queue:
    """Call the service; a name in the address that no queue has is missing, not invalid."""
    try:
        queue: Queue = service(check_queue_name(name), **options)
    except UnknownQueue as error:
        raise NoSuchQueue(error.message) from error
    except InvalidTaskData as error:
        raise NoSuchQueue("There is no such queue.") from error
    return queue


def get_queue(name: str) -> Queue:
    """Return a queue; raise ``UnknownQueue``."""
    found = Queue.objects.filter(pk=name).first()
    if found is None:
        raise UnknownQueue(name, Queue.objects.values_list("name", flat=True)[:1000])
    return found


def _policy(name: str) -> PriorityPolicy:
    try:
        band = parse_band(name[:20], field="priority")
    except InvalidTaskData:
        raise NotFound from None
    return PriorityPolicy.objects.filter(pk=band).first() or PriorityPolicy(priority=band)


def _require(request: Request, permission: str) -> None:
    if not (request.user.is_staff and request.user.has_perm(permission)):
        raise PermissionDenied(f"This needs the permission {permission}.")


def changes_in(data: dict[str, Any], fields: Iterable[str]) -> dict[str, Any]:
    """Return the fields that a body changes; others are errors, and so are none."""
    reader = Reader(data)
    reader.refuse_others(tuple(fields), READ_ONLY)
    if not data:
        reader.note(InvalidTaskData("body", "Name at least one field to change.", code="body_required"))
    reader.finish()
    return data


def _reason(value: Any, name: str) -> str:
    if value == "":
        return ""
    reason = text(value, name)
    if len(reason) > REASON_LENGTH:
        raise InvalidTaskData(
            name, f"{name} has {len(reason)} characters; the limit is {REASON_LENGTH}.", limit=REASON_LENGTH
        )
    return reason
