"""Actions on many tasks: a confirmation page first, then an operation.

A selection of up to ``STEP`` tasks is done within the request, and each task's history gets an
entry. A larger selection, or all tasks that match the list, continues in the background.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Final

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import ADDITION
from django.db.models import Count, Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext as _, gettext_lazy as _lazy, ngettext, ngettext_lazy

from queue_app.admin.filters import NotAllowed, narrows, read_address
from queue_app.admin.forms import ConfirmForm, OperationForm, counted, permission, with_number
from queue_app.admin.mixins import QueueAppAdmin
from queue_app.core.priorities import Band
from queue_app.core.states import PENDING, WAITING, Status
from queue_app.dashboard.labels import word
from queue_app.dashboard.sentences import number_of
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
#: Kind -> what it will do, with the number of tasks, for the page that confirms it.
_WILL: Final[Mapping[OperationKind, Any]] = {
    OperationKind.CANCEL: ngettext_lazy("%(shown)s task will be cancelled.", "%(shown)s tasks will be cancelled.", "n"),
    OperationKind.RETRY: ngettext_lazy(
        "%(shown)s task will be queued again.", "%(shown)s tasks will be queued again.", "n"
    ),
    OperationKind.RUN_NOW: ngettext_lazy(
        "%(shown)s task will be queued now.", "%(shown)s tasks will be queued now.", "n"
    ),
    OperationKind.REPRIORITISE: ngettext_lazy(
        "%(shown)s task will get another priority.", "%(shown)s tasks will get another priority.", "n"
    ),
}
_RUNNING: Final[Any] = ngettext_lazy(
    "%(shown)s of them is running: its worker is asked to stop it.",
    "%(shown)s of them are running: their workers are asked to stop them.", "n",
)  # fmt: skip
_IN_WORKFLOWS: Final[Any] = ngettext_lazy(
    "%(shown)s of them belongs to a workflow: tasks that wait for it do not run.",
    "%(shown)s of them belong to workflows: tasks that wait for them do not run.", "n",
)  # fmt: skip
_LEFT_ALONE: Final[Any] = ngettext_lazy(
    "%(shown)s selected task is left alone (%(why)s): %(found)s.",
    "%(shown)s selected tasks are left alone (%(why)s): %(found)s.", "n",
)  # fmt: skip

#: Tasks that one bulk action changed alike, the text for the history, the name of the message, old and new values.
type BulkChange = tuple[list[Task], str, str, Mapping[str, Any], Mapping[str, Any]]


class OperationsMixin[M: Model](QueueAppAdmin[M]):
    """Starts operations from a list, whose actions mean all that match if no row is ticked."""

    #: ``search(rows, term, may_view_payload=...)``: the rows that match, and what the page says about the search.
    search: ClassVar[Callable[..., tuple[QuerySet[Any], list[str]]]]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Let an action without ticks mean all that match, if a filter or the search narrows the list.

        The page that asks for confirmation says so, and counts them.
        """
        means_all = narrows(request.GET)
        if means_all and "index" in request.POST and not request.POST.getlist(ACTION_CHECKBOX_NAME):
            request.POST = request.POST.copy()  # type: ignore[assignment]
            request.POST.update({ACTION_CHECKBOX_NAME: "", "select_across": "1"})  # Django wants a tick
        return super().changelist_view(request, {"means_all": means_all} | (extra_context or {}))

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[M], search_term: str
    ) -> tuple[QuerySet[M], bool]:
        if not search_term.strip():
            return queryset, False
        try:
            found, notes = self.search(queryset, search_term, may_view_payload=self.may_view_payload(request))
        except NotAllowed as error:
            self.message_user(request, str(error), messages.WARNING)
            return queryset.none(), False
        request.taskqueue_notes = notes  # type: ignore[attr-defined]  # shown below the search
        return found, False

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
            details |= {"rate": options.rate, "limit": options.limit} if options else {}
            of_letters = isinstance(wanted, DeadLetterFilter)
            audit.record(
                "deadletter.replay_many" if of_letters else f"task.{action.kind}_all", "operation", [operation.pk],
                by=by, via=audit.ADMIN, after=details, reason=reason, count=operation.total,
            )  # fmt: skip
        return operation

    def tell_of(self, request: HttpRequest, operation: Operation, text: Any, link: str = "") -> None:
        """Show a message with a link to an operation, whose page says what became of each task."""
        url = self.url_of_model("operation", "change", operation.pk)
        link = link or _("What became of each")
        self.message_user(request, format_html('{} <a href="{}">{}</a>', text, url, link), messages.SUCCESS)

    def posted_form[F: ConfirmForm](self, request: HttpRequest, kind: type[F]) -> F:
        """Return the form of the page that confirms an action; it has no data before it was shown."""
        return kind(request.POST if "confirmed" in request.POST else None)

    def ask_for_many(
        self, request: HttpRequest, form: ConfirmForm, verb: str, consequences: list[Any], **context: Any
    ) -> HttpResponse:
        """Show what an action on many rows of a list will do."""
        things = number_of(str(self.opts.model_name), context["done"])
        back = f"{self.url_of('changelist')}?{request.GET.urlencode()}"
        return self.ask(
            request, form, f"{verb}: {things}", consequences, template="task/confirm.html", submit=verb, back=back,
            **context,
        )  # fmt: skip


def _action(kind: OperationKind, verb: Any, description: Any, permission: str) -> Callable[..., HttpResponse | None]:
    """Return an action of the list of tasks."""

    @admin.action(description=description, permissions=[permission])
    def act(self: TaskBulkMixin, request: HttpRequest, queryset: QuerySet[Task]) -> HttpResponse | None:
        return self.act_on_many(request, queryset, str(verb), kind)

    return act


class TaskBulkMixin(OperationsMixin[Task]):
    """Actions on a selection of tasks, or on all that match the list."""

    has_cancel_permission = permission("cancel_task")
    has_reprioritise_permission = permission("reprioritise_task")
    has_retry_permission = permission("retry_task")

    cancel_selected = _action(OperationKind.CANCEL, _lazy("Cancel"), _lazy("Cancel…"), "cancel")
    retry_selected = _action(OperationKind.RETRY, _lazy("Retry"), _lazy("Retry…"), "retry")
    run_now_selected = _action(OperationKind.RUN_NOW, _lazy("Run now"), _lazy("Run now…"), "retry")
    reprioritise_selected = _action(
        OperationKind.REPRIORITISE, _lazy("Change priority"), _lazy("Change priority…"), "reprioritise"
    )

    def act_on_many(
        self, request: HttpRequest, queryset: QuerySet[Task], verb: str, kind: OperationKind
    ) -> HttpResponse | None:
        """Ask for confirmation first; then act on the selection, or on all tasks that match the list."""
        bands = {band.label: band for band in Band} if kind is OperationKind.REPRIORITISE else {}
        form = self.posted_form(request, OperationForm)
        band = bands.get(request.POST.get("priority", ""))
        if form.is_bound and bands and band is None:
            form.add_error(None, _("Choose a priority."))
        if not form.is_valid():
            return self._ask(request, form, queryset, verb, kind)
        try:
            action, options = Action(kind=kind, band=band), form.options_of(OperationOptions)
            reason = form.cleaned_data["reason"]
            if request.POST.get("select_across") == "1":
                may_view = self.may_view_payload(request)
                wanted = read_address(request.GET.dict(), timezone.now(), may_view_payload=may_view)
                self._start(request, action, wanted, reason, options)
                return None
            selected = {task.id: task for task in queryset.order_by("-pk")}
            if len(selected) > STEP or options != OperationOptions(order=options.order):
                self._start(request, action, TaskFilter(ids=list(selected)), reason, options)
            else:
                self._act_at_once(request, action, selected, reason)
        except (InvalidTaskData, NotAllowed, ValueError, KeyError) as error:
            self.refuse(request, error)
        return None

    def _ask(
        self, request: HttpRequest, form: OperationForm, queryset: QuerySet[Task], verb: str, kind: OperationKind
    ) -> HttpResponse:
        applies_to, why = _KINDS[kind][:2]
        found = queryset.order_by().values_list("status").annotate(Count("pk"), Count("workflow_id"))
        counts = {status: (count, in_workflows) for status, count, in_workflows in found}
        matched = [counts[status] for status in applies_to if status in counts]
        done, in_workflows = sum(each[0] for each in matched), sum(each[1] for each in matched)
        skipped = {status: count for status, (count, _) in sorted(counts.items()) if status not in applies_to}
        running = counts.get(Status.EXECUTING, (0, 0))[0] if kind is OperationKind.CANCEL else 0
        lines = [with_number(_WILL[kind], done)]
        if request.POST.get("select_across") == "1":
            lines.append(_("These are all tasks that match the list's filters now, not only those on this page."))
        if running:
            lines.append(with_number(_RUNNING, running))
        if kind is OperationKind.CANCEL and in_workflows:
            lines.append(with_number(_IN_WORKFLOWS, in_workflows))
        if kind is OperationKind.REPRIORITISE:
            lines.append(_("Each task keeps its timeout, and its place by age within the new priority."))
        if skipped:
            states = ", ".join(f"{count:,} {word(status)}" for status, count in skipped.items())
            lines.append(with_number(_LEFT_ALONE, sum(skipped.values()), why=why, found=states))
        bands = [band.label for band in Band] if kind is OperationKind.REPRIORITISE else []
        sample = queryset.filter(status__in=sorted(applies_to)).order_by("-pk")[:SAMPLE]
        shown = [
            (self.url_of("change", task.pk), task.task_type, f"{word(task.status)}, {task.queue}") for task in sample
        ]
        return self.ask_for_many(
            request, form, verb, lines, bands=bands, done=done, sample=shown, is_final=kind is OperationKind.CANCEL
        )

    # -- all that match, or a large selection ------------------------------------------

    def _start(
        self, request: HttpRequest, action: Action, wanted: TaskFilter, reason: str, options: OperationOptions
    ) -> None:
        """Start an operation, and wait a moment for its end."""
        operation = self.start(request, action, wanted, reason, options)
        operation = advance_for(operation.pk, PATIENCE_SECONDS)
        numbers = {"changed": operation.changed, "total": operation.total, "skipped": operation.skipped}
        text = (
            _("%(changed)s of %(total)s tasks done, %(skipped)s skipped.")
            if operation.state == OperationState.DONE
            else _("%(changed)s of %(total)s tasks done; the rest follows in the background.")
        ) % numbers
        self.tell_of(request, operation, text)

    # -- a selection -------------------------------------------------------------------

    def _act_at_once(self, request: HttpRequest, action: Action, selected: dict[uuid.UUID, Task], reason: str) -> None:
        """Carry out an operation on a selection in one transaction with its records, and report each outcome."""
        with atomic():
            wanted = TaskFilter(ids=list(selected))
            operation, changed = carry_out(action, wanted, by=request.user.get_username(), reason=reason)
            status_now = dict(Task.objects.filter(pk__in=selected).values_list("pk", "status"))
            counts = Counter[str]()
            alike = _changes(action, [selected[task_id] for task_id in changed], status_now)
            for tasks, logged, done, before, after in alike:
                counts[done] += len(tasks)
                facts = {**after, "operation": str(operation.pk)}
                self.audit(request, tasks, logged, action=action.kind, reason=reason, before=before, after=facts)
        band = action.band.label if action.band is not None else ""
        for done, count in (+counts).items():
            self.tell_of(request, operation, _DONE[done] % {"n": count, "band": band})
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
