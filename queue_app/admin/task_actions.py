"""Cancel and reprioritise from the admin: on a selection, and on one task's page."""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from itertools import batched
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import URLPattern, path

from queue_app.admin.mixins import COUNT_LIMIT, QueueAppAdmin
from queue_app.core.priorities import Band, parse_band
from queue_app.core.states import Status
from queue_app.exceptions import InvalidTaskData, InvalidTransition, TaskNotFound
from queue_app.models import Task
from queue_app.rows.database import atomic
from queue_app.services import cancel, cancel_many, reprioritise, reprioritise_many

BATCH = 500
TOO_MANY = f"More than {COUNT_LIMIT:,} tasks match. Narrow the list by a filter or a search first; nothing was changed."


class TaskActionsMixin(QueueAppAdmin[Task]):
    """Actions that call the services; the rows themselves are never edited."""

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        """Say whether the user may cancel tasks."""
        return request.user.has_perm("queue_app.cancel_task")

    def has_reprioritise_permission(self, request: HttpRequest) -> bool:
        """Say whether the user may change priorities."""
        return request.user.has_perm("queue_app.reprioritise_task")

    # -- on a selection -------------------------------------------------------

    @admin.action(description="Cancel selected tasks", permissions=["cancel"])
    def cancel_selected(self, request: HttpRequest, queryset: QuerySet[Task]) -> None:
        """Cancel what waits, ask what runs to stop."""
        selected = self._selected(request, queryset)
        if selected is None:
            return
        changed: dict[uuid.UUID, Status] = {}
        for ids in batched(selected, BATCH):
            with atomic():
                now = cancel_many(ids)
                tasks = [selected[task_id] for task_id in now]
                running = [task for task in tasks if now[task.id] is Status.EXECUTING]
                waiting = [task for task in tasks if now[task.id] is not Status.EXECUTING]
                self.audit(request, waiting, "Cancelled.")
                self.audit(request, running, "Asked to stop while executing.")
            changed |= now
        counts = Counter(changed.values())
        if counts[Status.CANCELLED]:
            self.message_user(request, f"Cancelled {_tasks(counts[Status.CANCELLED])}.", messages.SUCCESS)
        if counts[Status.EXECUTING]:
            self.message_user(
                request, f"Asked {_tasks(counts[Status.EXECUTING])} to stop that run now.", messages.SUCCESS
            )
        self._report_skipped(request, set(selected) - set(changed), "ended already")

    def reprioritise_selected(self, request: HttpRequest, queryset: QuerySet[Task], band: Band) -> None:
        """Move what waits to another band."""
        selected = self._selected(request, queryset)
        if selected is None:
            return
        changed: set[uuid.UUID] = set()
        for ids in batched(selected, BATCH):
            with atomic():
                moved = reprioritise_many(ids, band)
                before: defaultdict[Band, list[Task]] = defaultdict(list)
                for task_id in moved:
                    before[selected[task_id].band].append(selected[task_id])
                for old, tasks in before.items():
                    self.audit(request, tasks, _changed(old, band))
            changed |= moved
        if changed:
            self.message_user(
                request, f"Changed the priority of {_tasks(len(changed))} to {band.label}.", messages.SUCCESS
            )
        self._report_skipped(request, set(selected) - changed, "not waiting any more")

    def _selected(self, request: HttpRequest, queryset: QuerySet[Task]) -> dict[uuid.UUID, Task] | None:
        """Return the selected tasks; ``None``, with a message, when there are too many of them."""
        tasks = queryset.order_by("-pk")[: COUNT_LIMIT + 1]
        selected = {task.id: task for task in tasks}
        if len(selected) <= COUNT_LIMIT:
            return selected
        self.message_user(request, TOO_MANY, messages.ERROR)
        return None

    def _report_skipped(self, request: HttpRequest, skipped: set[uuid.UUID], why: str) -> None:
        """Say how many tasks were left alone, and the states that they are in."""
        if not skipped:
            return
        found = Counter[str]()
        for ids in batched(skipped, BATCH):
            found.update(Task.objects.filter(pk__in=ids).values_list("status", flat=True))
        gone = len(skipped) - found.total()
        states = [f"{count} {status.replace('_', ' ')}" for status, count in found.most_common()]
        states += [f"{gone} deleted"] if gone else []
        self.message_user(request, f"Skipped {_tasks(len(skipped))} ({why}): {', '.join(states)}.", messages.WARNING)

    # -- on one task ------------------------------------------------------------

    def get_urls(self) -> list[URLPattern]:
        """Put the two actions of a task's page before Django's own addresses."""
        wrap = self.admin_site.admin_view
        return [
            path("<uuid:task_id>/cancel/", wrap(self.cancel_view), name="queue_app_task_cancel"),
            path("<uuid:task_id>/priority/", wrap(self.priority_view), name="queue_app_task_priority"),
            *super().get_urls(),
        ]

    def cancel_view(self, request: HttpRequest, task_id: uuid.UUID) -> HttpResponse:
        """Cancel one task."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        task = self._visible(request, task_id, allowed=self.has_cancel_permission(request))
        if task is None:
            return self._gone(request, task_id)
        try:
            with atomic():
                running = cancel(task_id) is Status.EXECUTING
                self.audit(request, [task], "Asked to stop while executing." if running else "Cancelled.")
        except (InvalidTransition, TaskNotFound) as error:
            self.message_user(request, str(error), messages.ERROR)
        else:
            said = "The task runs; its worker was asked to stop it." if running else "The task is cancelled."
            self.message_user(request, said, messages.SUCCESS)
        return HttpResponseRedirect(self.url_of("change", task_id))

    def priority_view(self, request: HttpRequest, task_id: uuid.UUID) -> HttpResponse:
        """Move one task to the posted band."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        task = self._visible(request, task_id, allowed=self.has_reprioritise_permission(request))
        if task is None:
            return self._gone(request, task_id)
        try:
            band = parse_band(request.POST.get("priority"))
            with atomic():
                reprioritise(task_id, band)
                self.audit(request, [task], _changed(task.band, band))
        except (InvalidTaskData, InvalidTransition, TaskNotFound) as error:
            self.message_user(request, str(error), messages.ERROR)
        else:
            self.message_user(request, f"The priority is now {band.label}.", messages.SUCCESS)
        return HttpResponseRedirect(self.url_of("change", task_id))

    def _visible(self, request: HttpRequest, task_id: uuid.UUID, *, allowed: bool) -> Task | None:
        if not (allowed and self.has_view_permission(request)):
            raise PermissionDenied
        return self.get_object(request, str(task_id))

    def _gone(self, request: HttpRequest, task_id: uuid.UUID) -> HttpResponse:
        self.message_user(request, f"There is no task {task_id}; it may have been purged.", messages.WARNING)
        return HttpResponseRedirect(self.url_of("changelist"))


def _to_band(band: Band) -> Any:
    """Return the action that moves the selection to ``band``; one click, no page in between."""

    @admin.action(description=f"Change priority to {band.label}", permissions=["reprioritise"])
    def action(modeladmin: TaskActionsMixin, request: HttpRequest, queryset: QuerySet[Task]) -> None:
        modeladmin.reprioritise_selected(request, queryset, band)

    action.__name__ = f"set_priority_{band.label}"
    return action


def _changed(old: Band, new: Band) -> str:
    return f"Priority changed from {old.label} to {new.label}."


def _tasks(count: int) -> str:
    return f"{count:,} task" if count == 1 else f"{count:,} tasks"


PRIORITY_ACTIONS = [_to_band(band) for band in Band]
