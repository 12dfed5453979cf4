"""Queues, the policies of priority bands, statistics, and workers: inspect, edit, pause and resume."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from queue_app import conf
from queue_app.api import representation
from queue_app.api.access import may_view
from queue_app.api.base import ApiView, accepts, for_staff
from queue_app.api.errors import NoSuchQueue
from queue_app.api.headers import IF_MATCH, expected_version, with_version
from queue_app.api.paging import each, paged
from queue_app.api.serializers import control as serializers
from queue_app.api.serializers.tasks import NamePage, NumberPage, WorkerPage
from queue_app.core.priorities import Band, parse_band
from queue_app.exceptions import InvalidTaskData, UnknownQueue
from queue_app.models import PriorityPolicy, Queue, Worker
from queue_app.services import pause, resume
from queue_app.services.control.queues import edit_policy, edit_queue, version_of
from queue_app.services.enqueue.validate import check_queue_name
from queue_app.services.read.stats import admin_queue, autoscale, queue_stats, queue_summary, tasks_of
from queue_app.sql.upkeep import totals


class StatsView(ApiView):
    @accepts("view_queue", permission=may_view("queue"), id="get_stats", answer="Stats")
    def get(self, request: Request) -> dict[str, Any]:
        """Return depth, age, workers and throughput of all queues.

        Depth and age of the oldest task are given by band, the throughput for the last minute.
        """
        found = queue_stats()
        if conf.get().says_medium:
            names = {Band.NORMAL.label: "medium"}
            found |= {"queues": {names.get(name, name): stats for name, stats in found["queues"].items()}}
        return found


class QueueListView(ApiView):
    @accepts("view_queue", query=NamePage, permission=may_view("queue"), id="list_queues", answer="QueuePage")
    def get(self, request: Request) -> dict[str, Any]:
        """List queues with their settings, by name."""
        query = self.read_query(request)
        return paged(request, Queue.objects.all(), query, "name", each(representation.queue))


class QueueView(ApiView):
    @accepts("view_queue", permission=may_view("queue"), id="get_queue", answer="Queue")
    def get(self, request: Request, name: str) -> Response:
        """Inspect a queue.

        An edit must send the ETag of this answer as ``If-Match``.
        """
        found = _existing(_queue, name)
        return with_version(version_of(found), representation.queue(found))

    @for_staff("change_queue", body=serializers.QueueEdit, headers=(IF_MATCH,), id="edit_queue", answer="Queue")
    def patch(self, request: Request, name: str) -> Response:
        """Edit the settings of a queue.

        ``If-Match`` carries the ETag of the version that the edit is based on.
        """
        changes = self.read_body(request)
        version = expected_version(request, version_of(_existing(_queue, name)))
        edited = edit_queue(check_queue_name(name), changes, version=version, by=self.username(request))
        return with_version(version_of(edited), representation.queue(edited))


class QueueStatsView(ApiView):
    @accepts(
        "view_queue", query=serializers.QueueStatsQuery, permission=may_view("queue"), id="get_queue_stats",
        answer="QueueStats",
    )  # fmt: skip
    def get(self, request: Request, name: str) -> dict[str, Any]:
        """Return depth, age, running tasks and limit of a queue.

        Depth and age of the oldest task are given by band. With ``totals=true`` the answer also counts all tasks that
        the queue ever stored. The count comes from the rows, so it is exact even after a loss of Redis.
        """
        counts_all = self.read_query(request)["totals"]
        found = queue_summary(_existing(_queue, name)).as_dict()
        return found | (totals(name)._asdict() if counts_all else {})


class AutoscaleView(ApiView):
    @accepts(
        "view_queue", query=serializers.AutoscaleQuery, permission=may_view("queue"), id="get_demand", answer="Demand"
    )
    def get(self, request: Request, name: str) -> dict[str, Any]:
        """Return how many workers a queue could use.

        Counts the waiting tasks that could run, and the workers with ``slots`` slots each that would finish them
        within ``seconds``.
        """
        query = self.read_query(request)
        found = autoscale(_existing(_queue, name), slots=query.get("slots"), seconds=query["seconds"])
        return {"queue": name, **asdict(found)}


class PolicyListView(ApiView):
    @accepts(
        "view_prioritypolicy", query=NumberPage, permission=may_view("prioritypolicy"), id="list_policies",
        answer="PolicyPage",
    )  # fmt: skip
    def get(self, request: Request) -> dict[str, Any]:
        """List the policies of all bands, highest first."""
        query, policies = self.read_query(request), PriorityPolicy.objects.all()
        return paged(request, policies, query, "priority", each(representation.policy))


class PolicyView(ApiView):
    """The defaults of a band's tasks, which a task or its queue can override."""

    @accepts("view_prioritypolicy", permission=may_view("prioritypolicy"), id="get_policy", answer="Policy")
    def get(self, request: Request, band: str) -> Response:
        """Inspect the policy of a band.

        An edit must send the ETag of this answer as ``If-Match``.
        """
        policy = _policy(band)
        return with_version(version_of(policy), representation.policy(policy))

    @for_staff(
        "change_prioritypolicy", body=serializers.PolicyEdit, headers=(IF_MATCH,), id="edit_policy", answer="Policy"
    )
    def patch(self, request: Request, band: str) -> Response:
        """Edit the policy of a band.

        ``If-Match`` carries the ETag of the version that the edit is based on.
        """
        changes = self.read_body(request)
        policy = _policy(band)
        version = expected_version(request, version_of(policy))
        policy = edit_policy(Band(policy.priority), changes, version=version, by=self.username(request))
        return with_version(version_of(policy), representation.policy(policy))


class QueuePauseView(ApiView):
    @for_staff("pause_queue", body=serializers.PauseUntil, id="pause_queue", answer="Queue")
    def post(self, request: Request, name: str) -> dict[str, Any]:
        """Pause a queue.

        No task starts until it is resumed; running tasks finish. The body may give a ``reason``, and a time
        ``resume_at`` at which the pause ends.
        """
        options = self.read_body(request)
        with self.recording(request):
            queue = _existing(pause, name, by=self.username(request), **options)
        return representation.queue(queue)


class QueueResumeView(ApiView):
    @for_staff("pause_queue", body=serializers.Nothing, id="resume_queue", answer="Queue")
    def post(self, request: Request, name: str) -> dict[str, Any]:
        """Resume a queue."""
        self.read_body(request)
        with self.recording(request):
            queue = _existing(resume, name)
        return representation.queue(queue)


class AdminQueueView(ApiView):
    @for_staff("view_task", id="get_whole_queue", tag="staff", answer="AdminQueue")
    def get(self, request: Request) -> dict[str, Any]:
        """Return depth, running tasks and limit of all queues together."""
        return admin_queue()


class WorkerListView(ApiView):
    @for_staff("view_worker", query=WorkerPage, id="list_workers", tag="staff", answer="WorkerPage")
    def get(self, request: Request) -> dict[str, Any]:
        """List workers, newest first, including stopped ones."""
        return paged(request, Worker.objects.all(), self.read_query(request), "-id", _with_tasks)


def _with_tasks(workers: Sequence[Worker]) -> list[dict[str, Any]]:
    running = tasks_of(workers)
    return [representation.worker(worker, running[worker.id]) for worker in workers]


def _existing(service: Callable[..., Queue], name: str, **options: Any) -> Queue:
    """Call a service with the queue name in the address; an impossible name is missing, not invalid."""
    try:
        return service(check_queue_name(name), **options)
    except UnknownQueue as error:
        raise NoSuchQueue(error.message) from error
    except InvalidTaskData as error:
        raise NoSuchQueue("There is no such queue.") from error


def _queue(name: str) -> Queue:
    """Return a queue; raise ``UnknownQueue``."""
    found = Queue.objects.filter(pk=name).first()
    if found is None:
        raise Queue.unknown(name)
    return found


def existing_queue(name: str) -> Queue:
    """Return the queue in an address; raise ``NoSuchQueue``."""
    return _existing(_queue, name)


def _policy(name: str) -> PriorityPolicy:
    try:
        band = parse_band(name[:20], field="priority")
    except InvalidTaskData:
        raise NotFound from None
    return PriorityPolicy.objects.filter(pk=band).first() or PriorityPolicy(priority=band)
