"""Actions on many tasks: first a page that says what will happen, then at once or as an operation."""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import batched
from typing import Any, Final

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import ADDITION, LogEntry
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy

from queue_app.admin.mixins import COUNT_LIMIT, TOOLS_IN_CONTENT, QueueAppAdmin
from queue_app.admin.task_search import Ambiguous, NotAllowed, read_address
from queue_app.core.priorities import Band
from queue_app.core.states import PENDING, WAITING, Status
from queue_app.exceptions import InvalidTaskData
from queue_app.models import Task
from queue_app.models.audit_entry import REASON_LENGTH
from queue_app.models.operation import OperationKind, OperationState
from queue_app.services import cancel_many, reprioritise_many
from queue_app.services.control import audit
from queue_app.services.enqueue.validate import check_reason
from queue_app.services.lifecycle.actions import RETRIABLE, retry_many, run_now_many
from queue_app.services.operations.advance import advance_for
from queue_app.services.operations.request import Action, start_operation
from queue_app.sql.database import atomic

BATCH: Final = 500
SAMPLE: Final = 10
#: All that match are dealt with as an operation; this request waits so long for it.
PATIENCE_SECONDS: Final = 1.0
TOO_MANY = f"More than {COUNT_LIMIT:,} tasks match. Narrow the list by a filter or a search first; nothing was changed."


class TaskBulkMixin(QueueAppAdmin[Task]):
    """Actions on a selection, or on all that match."""

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        """Say whether the user may cancel tasks."""
        return request.user.has_perm("queue_app.cancel_task")

    def has_reprioritise_permission(self, request: HttpRequest) -> bool:
        """Say whether the user may change priorities."""
        return request.user.has_perm("queue_app.reprioritise_task")

    def has_retry_permission(self, request: HttpRequest) -> bool:
        """Say whether the user may run tasks now or again."""
        return request.user.has_perm("queue_app.retry_task")

    @admin.action(description=_lazy("Cancel…"), permissions=["cancel"])
    def cancel_selected(self, request: HttpRequest, queryset: QuerySet[Task]) -> HttpResponse | None:
        """Cancel what waits, ask what runs to stop."""
        return self._bulk(
            request, queryset, _("Cancel"), PENDING, self._cancel, operation=Action(kind=OperationKind.CANCEL)
        )

    @admin.action(description=_lazy("Retry…"), permissions=["retry"])
    def retry_selected(self, request: HttpRequest, queryset: QuerySet[Task]) -> HttpResponse | None:
        """Queue again what ended without success."""
        return self._bulk(
            request, queryset, _("Retry"), RETRIABLE, self._retry, operation=Action(kind=OperationKind.RETRY)
        )

    @admin.action(description=_lazy("Run now…"), permissions=["retry"])
    def run_now_selected(self, request: HttpRequest, queryset: QuerySet[Task]) -> HttpResponse | None:
        """Queue scheduled tasks without waiting for their time."""
        applies_to, action = frozenset({Status.SCHEDULED}), Action(kind=OperationKind.RUN_NOW)
        return self._bulk(request, queryset, _("Run now"), applies_to, self._run_now, operation=action)

    def reprioritise_selected(self, request: HttpRequest, queryset: QuerySet[Task], band: Band) -> HttpResponse | None:
        """Move what waits to another band."""
        return self._bulk(
            request,
            queryset,
            _("Change priority to %(band)s") % {"band": band.label},
            WAITING,
            partial(self._reprioritise, band=band),
            operation=Action(kind=OperationKind.REPRIORITISE, band=band),
        )

    # -- the way of each -----------------------------------------------------------

    def _bulk(  # noqa: PLR0913 - what one action is
        self,
        request: HttpRequest,
        queryset: QuerySet[Task],
        verb: str,
        applies_to: frozenset[Status],
        act: Callable[[HttpRequest, dict[uuid.UUID, Task], str], None],
        *,
        operation: Action,
    ) -> HttpResponse | None:
        """Ask first; once that is confirmed, act on the selection, or begin an operation on all that match."""
        reason = request.POST.get("reason", "").strip()
        if not request.POST.get("confirmed"):
            return self._ask(request, queryset, verb, applies_to)
        try:
            check_reason(reason, REASON_LENGTH)
            if request.POST.get("select_across") == "1":
                self._begin(request, operation, reason)
                return None
        except (InvalidTaskData, NotAllowed, Ambiguous, ValueError, KeyError) as error:
            self.message_user(request, f"{error} Nothing was changed.", messages.ERROR)
            return None
        selected = {task.id: task for task in queryset.order_by("-pk")[: COUNT_LIMIT + 1]}
        if len(selected) > COUNT_LIMIT:
            self.message_user(request, TOO_MANY, messages.ERROR)
        else:
            act(request, selected, reason)
        return None

    def _ask(
        self, request: HttpRequest, queryset: QuerySet[Task], verb: str, applies_to: frozenset[Status]
    ) -> HttpResponse:
        across = request.POST.get("select_across") == "1"
        counts = dict(queryset.order_by().values_list("status").annotate(Count("pk")))
        done = sum(counts.get(status, 0) for status in applies_to)
        skipped = {status: count for status, count in sorted(counts.items()) if status not in applies_to}
        sample = queryset.filter(status__in=sorted(applies_to)).order_by("-pk")[:SAMPLE]
        context = self.admin_site.each_context(request) | {
            "title": verb,
            "opts": self.opts,
            "crumbs_as_list": not TOOLS_IN_CONTENT,
            "media": self.media,
            "verb": verb,
            "action": request.POST.get("action", ""),
            "across": across,
            "selected": [] if across else request.POST.getlist(ACTION_CHECKBOX_NAME),
            "checkbox": ACTION_CHECKBOX_NAME,
            "total": sum(counts.values()),
            "done": done,
            "skipped": [(status.replace("_", " "), count) for status, count in skipped.items()],
            "applies_to": ", ".join(sorted(status.replace("_", " ") for status in applies_to)),
            "running": counts.get(Status.EXECUTING, 0) if Status.EXECUTING in applies_to else 0,
            "sample": list(sample),
            "reason_length": REASON_LENGTH,
        }
        return TemplateResponse(request, "admin/queue_app/task/confirm.html", context)

    def _begin(self, request: HttpRequest, action: Action, reason: str) -> None:
        """Begin an operation on all that the list shows, and wait a moment for it."""
        may_view = request.user.has_perm("queue_app.view_payload")
        wanted = read_address(request.GET.dict(), timezone.now(), may_view_payload=may_view)
        by = request.user.get_username()
        with atomic():
            operation = start_operation(action, wanted, by=by, reason=reason)
            said = f"Began to {operation.kind.replace('_', ' ')} {operation.total} tasks" + (
                f": {reason}" if reason else "."
            )
            LogEntry.objects.log_actions(request.user.pk, [operation], ADDITION, said)  # type: ignore[arg-type]
            audit.record(
                f"task.{operation.kind}_all", "operation", [operation.pk], by=by, via=audit.ADMIN,
                after={"filter": operation.filter, **operation.arguments}, reason=reason, count=operation.total,
            )  # fmt: skip
        operation = advance_for(operation.pk, PATIENCE_SECONDS)
        url = reverse("admin:queue_app_operation_change", args=[operation.pk], current_app=self.admin_site.name)
        ended = operation.state == OperationState.DONE
        self.message_user(
            request,
            format_html(
                '{} <a href="{}">{}</a>',
                _("%(changed)s of %(total)s tasks done, %(skipped)s skipped.")
                % {"changed": operation.changed, "total": operation.total, "skipped": operation.skipped}
                if ended
                else _("%(changed)s of %(total)s tasks so far; it goes on in the background.")
                % {"changed": operation.changed, "total": operation.total},
                url,
                _("See the operation."),
            ),
            messages.SUCCESS,
        )

    # -- what each does ------------------------------------------------------------

    def _cancel(self, request: HttpRequest, selected: dict[uuid.UUID, Task], reason: str) -> None:
        changed: dict[uuid.UUID, Status] = {}
        for ids in batched(selected, BATCH):
            with atomic():
                now = cancel_many(ids)
                tasks = [selected[task_id] for task_id in now]
                running = [task for task in tasks if now[task.id] is Status.EXECUTING]
                waiting = [task for task in tasks if now[task.id] is not Status.EXECUTING]
                self.audit(request, waiting, "Cancelled.", action="cancel", reason=reason)
                self.audit(request, running, "Asked to stop while executing.", action="cancel", reason=reason)
            changed |= now
        counts = Counter(changed.values())
        if counts[Status.CANCELLED]:
            self.message_user(request, f"Cancelled {tasks_text(counts[Status.CANCELLED])}.", messages.SUCCESS)
        if counts[Status.EXECUTING]:
            self.message_user(
                request, f"Asked {tasks_text(counts[Status.EXECUTING])} to stop that run now.", messages.SUCCESS
            )
        self._report_skipped(request, set(selected) - set(changed), "ended already")

    def _reprioritise(self, request: HttpRequest, selected: dict[uuid.UUID, Task], reason: str, band: Band) -> None:
        changed: set[uuid.UUID] = set()
        for ids in batched(selected, BATCH):
            with atomic():
                moved = reprioritise_many(ids, band)
                before: defaultdict[Band, list[Task]] = defaultdict(list)
                for task_id in moved:
                    before[selected[task_id].band].append(selected[task_id])
                for old, tasks in before.items():
                    self.audit(
                        request, tasks, priority_changed(old, band), action="reprioritise", reason=reason,
                        before={"priority": old.label}, after={"priority": band.label},
                    )  # fmt: skip
            changed |= moved
        if changed:
            self.message_user(
                request, f"Changed the priority of {tasks_text(len(changed))} to {band.label}.", messages.SUCCESS
            )
        self._report_skipped(request, set(selected) - changed, "not waiting any more")

    def _retry(self, request: HttpRequest, selected: dict[uuid.UUID, Task], reason: str) -> None:
        by = request.user.get_username()
        self._queue_again(
            request, selected, reason, lambda ids: retry_many(ids, by=by), ("retry", "Queued again."),
            "waiting, running or completed",
        )  # fmt: skip

    def _run_now(self, request: HttpRequest, selected: dict[uuid.UUID, Task], reason: str) -> None:
        self._queue_again(
            request, selected, reason, run_now_many, ("run_now", "Queued before its time."), "not scheduled"
        )

    def _queue_again(  # noqa: PLR0913, PLR0917 - what retry and run now have in common
        self,
        request: HttpRequest,
        selected: dict[uuid.UUID, Task],
        reason: str,
        act: Callable[[Sequence[uuid.UUID]], set[uuid.UUID]],
        noted: tuple[str, str],
        why_not: str,
    ) -> None:
        changed: set[uuid.UUID] = set()
        for ids in batched(selected, BATCH):
            with atomic():
                moved = act(ids)
                tasks = [selected[task_id] for task_id in ids if task_id in moved]
                self.audit(
                    request, tasks, noted[1], action=noted[0], reason=reason,
                    before={"status": sorted({task.status for task in tasks})}, after={"status": "queued"},
                )  # fmt: skip
            changed |= moved
        if changed:
            self.message_user(request, f"Queued {tasks_text(len(changed))}.", messages.SUCCESS)
        self._report_skipped(request, set(selected) - changed, why_not)

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
        self.message_user(
            request, f"Skipped {tasks_text(len(skipped))} ({why}): {', '.join(states)}.", messages.WARNING
        )


def _to_band(band: Band) -> Any:
    """Return the action that moves the selection to ``band``."""

    @admin.action(description=f"Change priority to {band.label}…", permissions=["reprioritise"])
    def action(modeladmin: TaskBulkMixin, request: HttpRequest, queryset: QuerySet[Task]) -> HttpResponse | None:
        return modeladmin.reprioritise_selected(request, queryset, band)

    action.__name__ = f"set_priority_{band.label}"
    return action


def priority_changed(old: Band, new: Band) -> str:
    """Return what the history says of a changed priority."""
    return f"Priority changed from {old.label} to {new.label}."


def tasks_text(count: int) -> str:
    """Return a number of tasks in words."""
    return f"{count:,} task" if count == 1 else f"{count:,} tasks"


PRIORITY_ACTIONS = [_to_band(band) for band in Band]
