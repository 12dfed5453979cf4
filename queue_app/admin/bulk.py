"""Actions on many tasks: a confirmation page first, then an operation.

A selection of up to ``STEP`` tasks is done within the request, and each task's history gets an
entry. A larger selection, or all tasks that match the list, continues in the background.
"""

import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import ADDITION
from django.db.models import Count, Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext as _, gettext_lazy as _lazy, ngettext, ngettext_lazy

from queue_app.admin.filters import NotAllowed, read_address
from queue_app.admin.forms import counted, permission, posted_reason
from queue_app.admin.mixins import QueueAppAdmin
from queue_app.core.priorities import Band
from queue_app.core.states import PENDING, WAITING, Status
from queue_app.dashboard.labels import word
from queue_app.exceptions import InvalidTaskData
from queue_app.models import Operation, Task
from queue_app.models.operation import OperationKind, OperationState
from queue_app.services.control import audit
from queue_app.services.lifecycle.actions import RETRIABLE
from queue_app.services.operations.request import Action, OperationOptions, start_operation
from queue_app.services.operations.run import STEP, advance_for, carry_out
from queue_app.services.read.dead_letters import DeadLetterFilter
from queue_app.services.read.task_filter import TaskFilter
from queue_app.sql.database import atomic

SAMPLE: Final = 10
#: Seconds that the request waits for an operation to end.
PATIENCE_SECONDS: Final = 1.0
#: Kind -> (states that it applies to, why a task was skipped, text in the history if it is always the same).
_KINDS: Final[Mapping[OperationKind, tuple[frozenset[Status], Any, str]]] = {
    OperationKind.CANCEL: (PENDING, _lazy("ended already"), "Cancelled."),
    OperationKind.RETRY: (RETRIABLE, _lazy("waiting, running or completed"), "Queued again."),
    OperationKind.RUN_NOW: (frozenset({Status.SCHEDULED}), _lazy("not scheduled"), "Queued before its time."),
    OperationKind.REPRIORITISE: (WAITING, _lazy("not waiting any more, or in that band already"), ""),
}
#: What an action did -> the message with the number of tasks.
_DONE: Final[Mapping[str, Any]] = {
    "cancelled": ngettext_lazy("Cancelled %(n)d task.", "Cancelled %(n)d tasks.", "n"),
    "asked": ngettext_lazy("Asked the workers to stop %(n)d task.", "Asked the workers to stop %(n)d tasks.", "n"),
    "moved": ngettext_lazy(
        "Changed the priority of %(n)d task to %(band)s.", "Changed the priority of %(n)d tasks to %(band)s.", "n"
    ),
    "queued": ngettext_lazy("Queued %(n)d task.", "Queued %(n)d tasks.", "n"),
}


#: Tasks that one bulk action changed alike, the text for the history, the name of the message, old and new values.
type BulkChange = tuple[list[Task], str, str, Mapping[str, Any], Mapping[str, Any]]


class OperationsMixin[M: Model](QueueAppAdmin[M]):
    """Starts operations from a list."""

    def start(
        self,
        request: HttpRequest,
        action: Action,
        wanted: TaskFilter | DeadLetterFilter,
        reason: str,
        options: OperationOptions | None = None,
    ) -> Operation:
        """Start an operation that continues in the background, and record it."""
        by = request.user.get_username()
        with atomic():
            operation = start_operation(action, wanted, options, by=by, reason=reason)
            thing = operation.target.replace("_", " ").rstrip("s")  # the history is English
            text = f"Started to {action.kind.replace('_', ' ')} {counted(operation.total, thing)}."
            self.log_action_of(request, [operation], text, reason, ADDITION)
            details = {"filter": operation.filter, **operation.arguments}
            details |= {"rate": options.rate} if options else {}
            of_letters = isinstance(wanted, DeadLetterFilter)
            audit.record(
                "deadletter.replay_many" if of_letters else f"task.{action.kind}_all", "operation", [operation.pk],
                by=by, via=audit.ADMIN, after=details, reason=reason, count=operation.total,
            )  # fmt: skip
        return operation

    def tell_of(self, request: HttpRequest, operation: Operation, text: str, link: str) -> None:
        """Show a message with a link to an operation."""
        url = self.url_of_model("operation", "change", operation.pk)
        self.message_user(request, format_html('{} <a href="{}">{}</a>', text, url, link), messages.SUCCESS)


class TaskBulkMixin(OperationsMixin[Task]):
    """Actions on a selection of tasks, or on all that match the list."""

    has_cancel_permission = permission("cancel_task")
    has_reprioritise_permission = permission("reprioritise_task")
    has_retry_permission = permission("retry_task")

    @admin.action(description=_lazy("Cancel…"), permissions=["cancel"])
    def cancel_selected(self, request: HttpRequest, queryset: QuerySet[Task]) -> HttpResponse | None:
        """Cancel pending tasks; ask the workers of running ones to stop them."""
        return self.act_on_many(request, queryset, _("Cancel"), OperationKind.CANCEL)

    @admin.action(description=_lazy("Retry…"), permissions=["retry"])
    def retry_selected(self, request: HttpRequest, queryset: QuerySet[Task]) -> HttpResponse | None:
        return self.act_on_many(request, queryset, _("Retry"), OperationKind.RETRY)

    @admin.action(description=_lazy("Run now…"), permissions=["retry"])
    def run_now_selected(self, request: HttpRequest, queryset: QuerySet[Task]) -> HttpResponse | None:
        return self.act_on_many(request, queryset, _("Run now"), OperationKind.RUN_NOW)

    @admin.action(description=_lazy("Change priority…"), permissions=["reprioritise"])
    def reprioritise_selected(self, request: HttpRequest, queryset: QuerySet[Task]) -> HttpResponse | None:
        """Move waiting tasks to a band, which the page that confirms asks for."""
        return self.act_on_many(request, queryset, _("Change priority"), OperationKind.REPRIORITISE)

    def act_on_many(
        self, request: HttpRequest, queryset: QuerySet[Task], verb: str, kind: OperationKind
    ) -> HttpResponse | None:
        """Ask for confirmation first; then act on the selection, or on all tasks that match the list."""
        bands = {band.label: band for band in Band} if kind is OperationKind.REPRIORITISE else {}
        if not request.POST.get("confirmed"):
            return self._ask(request, queryset, verb, _KINDS[kind][0], list(bands))
        band = bands.get(request.POST.get("priority", ""))
        try:
            if bands and band is None:
                raise InvalidTaskData("priority", _("Choose a priority."))  # noqa: TRY301 - answered like the others
            action = Action(kind=kind, band=band)
            reason = posted_reason(request)
            if request.POST.get("select_across") == "1":
                may_view = self.may_view_payload(request)
                wanted = read_address(request.GET.dict(), timezone.now(), may_view_payload=may_view)
                self._start(request, action, wanted, reason)
                return None
            selected = {task.id: task for task in queryset.order_by("-pk")}
            if len(selected) > STEP:
                self._start(request, action, TaskFilter(ids=list(selected)), reason)
            else:
                self._act_at_once(request, action, selected, reason)
        except (InvalidTaskData, NotAllowed, ValueError, KeyError) as error:
            self.refuse(request, error)
        return None

    def _ask(
        self, request: HttpRequest, queryset: QuerySet[Task], verb: str, applies_to: frozenset[Status], bands: list[str]
    ) -> HttpResponse:
        across = request.POST.get("select_across") == "1"
        counts = dict(queryset.order_by().values_list("status").annotate(Count("pk")))
        skipped = {status: count for status, count in sorted(counts.items()) if status not in applies_to}
        context = {
            "verb": verb,
            "bands": bands,
            "action": request.POST.get("action", ""),
            "across": across,
            "selected": [] if across else request.POST.getlist(ACTION_CHECKBOX_NAME),
            "checkbox": ACTION_CHECKBOX_NAME,
            "done": sum(counts.get(status, 0) for status in applies_to),
            "skipped": [(word(status), count) for status, count in skipped.items()],
            "applies_to": ", ".join(sorted(word(status) for status in applies_to)),
            "running": counts.get(Status.EXECUTING, 0) if Status.EXECUTING in applies_to else 0,
            "sample": list(queryset.filter(status__in=sorted(applies_to)).order_by("-pk")[:SAMPLE]),
        }
        return self.own_page(request, "task/confirm.html", verb, **context)

    # -- all that match, or a large selection ------------------------------------------

    def _start(self, request: HttpRequest, action: Action, wanted: TaskFilter, reason: str) -> None:
        """Start an operation, and wait a moment for its end."""
        operation = self.start(request, action, wanted, reason)
        operation = advance_for(operation.pk, PATIENCE_SECONDS)
        numbers = {"changed": operation.changed, "total": operation.total, "skipped": operation.skipped}
        text = (
            _("%(changed)s of %(total)s tasks done, %(skipped)s skipped.")
            if operation.state == OperationState.DONE
            else _("%(changed)s of %(total)s tasks done; the rest follows in the background.")
        ) % numbers
        self.tell_of(request, operation, text, _("See the operation."))

    # -- a selection -------------------------------------------------------------------

    def _act_at_once(self, request: HttpRequest, action: Action, selected: dict[uuid.UUID, Task], reason: str) -> None:
        """Carry out an operation on a selection in one transaction with its records, and report each outcome."""
        with atomic():
            wanted = TaskFilter(ids=list(selected))
            _operation, changed = carry_out(action, wanted, by=request.user.get_username(), reason=reason)
            status_now = dict(Task.objects.filter(pk__in=selected).values_list("pk", "status"))
            counts = Counter[str]()
            alike = _changes(action, [selected[task_id] for task_id in changed], status_now)
            for tasks, logged, done, before, after in alike:
                counts[done] += len(tasks)
                self.audit(request, tasks, logged, action=action.kind, reason=reason, before=before, after=after)
        band = action.band.label if action.band is not None else ""
        for done, count in (+counts).items():
            self.message_user(request, _DONE[done] % {"n": count, "band": band}, messages.SUCCESS)
        skipped = [status_now.get(task_id, "deleted") for task_id in selected if task_id not in changed]
        if skipped:
            found = ", ".join(f"{count} {word(status)}" for status, count in Counter(skipped).most_common())
            text = ngettext(
                "Skipped %(n)d task (%(why)s): %(found)s.", "Skipped %(n)d tasks (%(why)s): %(found)s.", len(skipped)
            ) % {"n": len(skipped), "why": _KINDS[action.kind][1], "found": found}
            self.message_user(request, text, messages.WARNING)


def _changes(action: Action, tasks: list[Task], status_now: Mapping[uuid.UUID, str]) -> Iterator[BulkChange]:
    logged = _KINDS[action.kind][2]
    match action.kind:
        case OperationKind.CANCEL:
            running = [task for task in tasks if status_now[task.id] == Status.EXECUTING]
            waiting = [task for task in tasks if status_now[task.id] != Status.EXECUTING]
            yield waiting, logged, "cancelled", {}, {}
            yield running, "Asked to stop while executing.", "asked", {}, {}
        case OperationKind.REPRIORITISE:
            assert action.band is not None  # noqa: S101 - for mypy: Action refuses this kind without a band
            new = action.band.label
            for old in sorted({task.band for task in tasks}):
                moved, text = [task for task in tasks if task.band is old], priority_changed(old.label, new)
                yield moved, text, "moved", {"priority": old.label}, {"priority": new}
        case _:
            before = {"status": sorted({task.status for task in tasks})}
            yield tasks, logged, "queued", before, {"status": "queued"}


def priority_changed(old: str, new: str) -> str:
    """Return the text of a changed priority for the history."""
    return f"Priority changed from {old} to {new}."
