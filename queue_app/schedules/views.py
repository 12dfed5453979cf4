"""Schedules: list, make, edit, pause, run, backfill and delete them; list their ticks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from queue_app.api.base import ApiView, for_staff, parse_number, route
from queue_app.api.headers import IF_MATCH, expected_version, with_version
from queue_app.api.paging import each, paged
from queue_app.api.serializers.control import Nothing, PauseUntil, WithReason
from queue_app.api.serializers.tasks import NamePage
from queue_app.api.views.operations import accepted
from queue_app.exceptions import ScheduleNotFound
from queue_app.models import Schedule, ScheduleTick
from queue_app.schedules import edit, serializers
from queue_app.schedules.backfill import preview_backfill, run_schedule, start_backfill
from queue_app.schedules.pause import pause_schedule, resume_schedule
from queue_app.schedules.tick import with_status
from queue_app.services.operations.request import SAMPLE, OperationOptions
from queue_app.sql.database import alias


class ScheduleListView(ApiView):
    @for_staff("view_schedule", query=NamePage, id="list_schedules", answer="SchedulePage")
    def get(self, request: Request) -> dict[str, Any]:
        """List schedules by name."""
        query, schedules = self.read_query(request), Schedule.objects.using(alias()).all()
        shown = each(partial(serializers.schedule, user=request.user))
        return paged(request, schedules, query, "name", shown)

    @for_staff(
        "add_schedule", "view_schedule", body=serializers.NewSchedule, once=True, id="add_schedule", answer="Schedule",
        status=201,
    )  # fmt: skip
    def post(self, request: Request) -> dict[str, Any]:
        """Make a schedule.

        It ticks by ``cron``, at an interval of ``every`` seconds, or at ``instants``. The registered task
        provides the options that are left out.
        """
        values = self.read_body(request)
        name = values.pop("name")
        with self.recording(request):
            found = edit.create_schedule(name, {"zone": timezone.get_default_timezone_name()} | values)
        return serializers.schedule(found, request.user)


class ScheduleView(ApiView):
    @for_staff("view_schedule", id="get_schedule", answer="Schedule")
    def get(self, request: Request, schedule_id: str) -> Response:
        """Inspect a schedule.

        An edit must send the ETag of this answer as ``If-Match``.
        """
        found = _find(schedule_id)
        return with_version(edit.version_of(found), serializers.schedule(found, request.user))

    @for_staff(
        "change_schedule", "view_schedule", body=serializers.ScheduleEdit, headers=(IF_MATCH,), id="edit_schedule",
        answer="Schedule",
    )  # fmt: skip
    def patch(self, request: Request, schedule_id: str) -> Response:
        """Change a schedule from its next tick on.

        A field that is left out keeps its value. ``If-Match`` carries the ETag of the version that the edit is based
        on. A change of a schedule that the code declares is shown as an override.
        """
        changes = self.read_body(request)
        found = _find(schedule_id)
        version = expected_version(request, edit.version_of(found))
        with self.recording(request):
            found = edit.update_schedule(found.name, changes, version=version)
        return with_version(edit.version_of(found), serializers.schedule(found, request.user))

    @for_staff("delete_schedule", "view_schedule", id="delete_schedule", answer="Deleted")
    def delete(self, request: Request, schedule_id: str) -> dict[str, Any]:
        """Delete a schedule and its history; keep its tasks.

        A schedule that the code declares can only be paused.
        """
        with self.recording(request):
            edit.delete_schedule(_find(schedule_id).name)
        return {"id": int(schedule_id), "deleted": True}


class SchedulePauseView(ApiView):
    @for_staff("pause_schedule", body=PauseUntil, id="pause_schedule", answer="Schedule")
    def post(self, request: Request, schedule_id: str) -> dict[str, Any]:
        """Pause a schedule.

        It does not tick until it is resumed; ticks that come meanwhile are recorded and not made up for. The body may
        give a ``reason``, and a time ``resume_at`` at which the pause ends.
        """
        options = self.read_body(request)
        with self.recording(request):
            found = pause_schedule(_find(schedule_id).name, by=self.username(request), **options)
        return serializers.schedule(found, request.user)


class ScheduleResumeView(ApiView):
    @for_staff("pause_schedule", body=Nothing, id="resume_schedule", answer="Schedule")
    def post(self, request: Request, schedule_id: str) -> dict[str, Any]:
        """Resume a schedule from its next tick on."""
        self.read_body(request)
        with self.recording(request):
            found = resume_schedule(_find(schedule_id).name)
        return serializers.schedule(found, request.user)


class RunView(ApiView):
    @for_staff("run_schedule", body=WithReason, once=True, id="run_schedule", answer="StartedTick", status=201)
    def post(self, request: Request, schedule_id: str) -> dict[str, Any]:
        """Enqueue the task of a schedule now, even if the schedule is paused or a task of it runs."""
        self.read_body(request)
        with self.recording(request):
            tick = run_schedule(_find(schedule_id).name, by=self.username(request))
        return {"id": tick.task_id, "task_id": tick.task_id, "instant": tick.instant}


class BackfillView(ApiView):
    @for_staff(
        "run_schedule", body=serializers.Backfill, once=True, id="backfill_schedule", answer="Operation", status=202,
        also={200: "BackfillPreview"},
    )  # fmt: skip
    def post(self, request: Request, schedule_id: str) -> Response:
        """Enqueue the tasks of the missing ticks in a range.

        The answer is an operation that a scheduler carries out, ``rate`` tasks per second. With ``dry_run`` the answer
        is the number of tasks, and the first instants.
        """
        body = self.read_body(request)
        found = _find(schedule_id)
        if body["dry_run"]:
            instants = preview_backfill(found, body["start"], body["end"])
            return Response({"dry_run": True, "count": len(instants), "sample": instants[:SAMPLE]})
        options = OperationOptions(rate=body.get("rate"))
        with self.recording(request):
            operation = start_backfill(
                found.name, body["start"], body["end"], options, by=self.username(request), reason=body["reason"]
            )
        return accepted(self, request, operation, f"/schedules/{schedule_id}/backfill")


class TickListView(ApiView):
    @for_staff("view_schedule", query=serializers.TickQuery, id="list_ticks", answer="TickPage")
    def get(self, request: Request, schedule_id: str) -> dict[str, Any]:
        """List the ticks of a schedule, newest first."""
        query, found = self.read_query(request), _find(schedule_id)
        ticks = ScheduleTick.objects.using(alias()).filter(schedule_id=found.pk)
        page = paged(request, ticks, query, "-instant", _with_status)
        return page | {"next_before": page["next_cursor"]}


def _with_status(ticks: Sequence[ScheduleTick]) -> list[dict[str, Any]]:
    return [serializers.tick(found.tick) | {"status": found.status} for found in with_status(ticks)]


def _find(schedule_id: str) -> Schedule:
    """Return the schedule with the id in the address."""
    missing = ScheduleNotFound(f"There is no schedule {schedule_id[:20]!r}.")
    found = Schedule.objects.using(alias()).filter(pk=parse_number(schedule_id, missing)).first()
    if found is None:
        raise missing
    return found


#: What ``queue_app.urls`` gets.
ADDRESSES: Final = (
    route("api/v1/schedules", ScheduleListView, "schedule-list"),
    route("api/v1/schedules/<schedule_id>", ScheduleView, "schedule"),
    route("api/v1/schedules/<schedule_id>/pause", SchedulePauseView, "schedule-pause"),
    route("api/v1/schedules/<schedule_id>/resume", ScheduleResumeView, "schedule-resume"),
    route("api/v1/schedules/<schedule_id>/run", RunView, "schedule-run"),
    route("api/v1/schedules/<schedule_id>/backfill", BackfillView, "schedule-backfill"),
    route("api/v1/schedules/<schedule_id>/ticks", TickListView, "schedule-ticks"),
)
