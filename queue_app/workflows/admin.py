"""The pages of workflows: the list with progress, and one workflow as a graph, with its times and its buttons."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from django import forms
from django.contrib import admin
from django.db.models import Count, Q, QuerySet
from django.forms.widgets import Script
from django.http import HttpRequest, HttpResponse, QueryDict
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, gettext_lazy as _lazy, gettext_noop as _noop, ngettext_lazy

from queue_app.admin.filters import choice_filter
from queue_app.admin.forms import column, permission, two_lines, with_number
from queue_app.admin.mixins import ReadOnlyAdmin, action_page, object_page
from queue_app.admin.signals import SignalForm, SignalMixin
from queue_app.core.priorities import Band
from queue_app.core.redaction import redact
from queue_app.core.states import FAILURES, WAITING, Status
from queue_app.dashboard import labels
from queue_app.models import Signal, Task, TaskDependency, Workflow, WorkflowNode
from queue_app.models.fields import NAME_LENGTH
from queue_app.models.workflow import STANDINGS, Condition, WorkflowState
from queue_app.services.control.audit import ADMIN
from queue_app.services.read.dead_letters import secrets_by_task
from queue_app.services.read.search import WORKFLOWS_READ
from queue_app.services.read.task_filter import TaskFilter, matching
from queue_app.sql.workflow_settle import compensations_among, not_undone, to_undo
from queue_app.workflows import drawing as pages, sql as workflow_graph, steer
from queue_app.workflows.drawing import times
from queue_app.workflows.read import graph_of
from queue_app.workflows.sql import AwaitedSignal, Holding, awaited, held_among, neighbours


class WorkflowSignalForm(SignalForm):
    name = forms.CharField(
        label=_lazy("Signal"), max_length=NAME_LENGTH, widget=forms.TextInput({"class": "vTextField"})
    )


class WorkflowSignalMixin(SignalMixin[Workflow]):
    """The form of a signal to a workflow, which the first of its tasks that waits for it takes."""

    @object_page("signal", "send")
    def signal_view(self, request: HttpRequest, flow: Workflow) -> HttpResponse:
        names = list(dict.fromkeys(each.signal for each in workflow_graph.awaited([flow.pk], NAMED)))
        form = WorkflowSignalForm(None, request.POST or None, initial={"name": "".join(names[:1])})
        title = _("Send a signal to %(name)s") % {"name": flow.name}
        context = {"original": flow, "form": form, "names": names, "submit": _("Send")}
        return self.send_signal(request, flow, form) or self.own_page(request, "workflow/signal.html", title, **context)


#: Tasks that wait for signals, which the form of a workflow names.
NAMED = 50
#: Pending tasks are counted up to this number in the list.
COUNTED: Final = 10_000
#: The page of a workflow of at most this many tasks is live, and the list says what its tasks wait for.
SMALL: Final = 2_000
#: Tasks that wait for signals, and signals, that a page shows.
MAX_AWAITED: Final = 50
#: Maximum number of tasks of each kind next to a task in its workflow.
MAX_NEIGHBOURS = 12
#: Tasks that the page of a confirmation names.
MAX_NAMED: Final = 20


def _standing(flows: QuerySet[Workflow], name: str) -> QuerySet[Workflow]:
    """Return the workflows with a standing or a state."""
    if name == "waiting":
        waiting = matching(TaskFilter(stands="waits_for_a_person"), Task.objects.filter(workflow_id__isnull=False))
        return flows.filter(pk__in=waiting.values("workflow_id"))
    return flows.filter(**(STANDINGS.get(name) or {"state": WorkflowState(name)}))


#: What needs a person comes first.
StandingFilter = choice_filter(
    _lazy("state"), "standing", lambda: ["waiting", "held", "paused", "open", *WorkflowState], _standing,
    label=lambda name: {"open": _("not ended"), "waiting": _("waits for a person")}.get(name) or labels.word(name),
)  # fmt: skip


def _of_cancel(_admin: Any, _request: HttpRequest, flow: Workflow) -> Iterator[Any]:
    """Yield what a cancel does, counted from the rows: what is undone comes first."""
    if flow.finished_at or flow.cancel_requested_at or flow.state == WorkflowState.COMPENSATING:
        return
    undone = to_undo(flow.pk)
    if undone:
        names = ", ".join(f"{number:,} {task_type.rpartition('.')[2]}" for task_type, number in undone[:MAX_KINDS])
        yield with_number(_UNDONE, sum(number for _type, number in undone), names=names)
    else:
        yield _("Nothing is undone: no completed task has a compensation.")
    counts = dict(Task.objects.filter(workflow_id=flow.pk).order_by().values_list("status").annotate(Count("pk")))
    if running := counts.get(Status.EXECUTING, 0):
        yield with_number(_STOPPED, running)
    if waiting := sum(counts.get(status, 0) for status in WAITING):
        yield with_number(_CANCELLED, waiting)
    yield _("A cancelled workflow cannot be resumed.")


def _of_stop_undoing(_admin: Any, _request: HttpRequest, flow: Workflow) -> Iterator[Any]:
    left = [name for _id, name, *_rest in not_undone(flow.pk)]
    if flow.state == WorkflowState.COMPENSATING and left:
        yield with_number(_STAY, len(left), names=", ".join(left[:MAX_NAMED]))
        yield _("The workflow ends as failed.")


def _of_skip(_admin: Any, request: HttpRequest, flow: Workflow) -> Iterator[Any]:
    task_id = labels.id_of(request.POST.get("task", ""))
    edges = TaskDependency.objects.filter(before=task_id, condition__in=[Condition.HOLD, Condition.CANCEL])
    waiting = edges.filter(after__workflow_id=flow.pk, after__status=Status.BLOCKED)
    if "done" in request.POST:
        yield _("The task counts as undone by hand; it is not tried again.")
    elif task_id and compensations_among([task_id]):
        yield _("What it should have undone stays as it is. The others are undone.")
    elif names := [task_type.rpartition(".")[2] for task_type in waiting.values_list("after__task_type", flat=True)]:
        yield with_number(_NOT_RUN, len(names), names=", ".join(names[:MAX_NAMED]))
    else:
        yield _("The task does not run again. No other task waits for it.")


def _of_reprioritise(_admin: Any, request: HttpRequest, flow: Workflow) -> Iterator[Any]:
    band = next((band for band in Band if band.label == request.POST.get("priority")), None)
    waiting = Task.objects.filter(workflow_id=flow.pk, status__in=WAITING).exclude(priority=band)
    if band is not None and (number := waiting.count()):
        yield with_number(_MOVED, number, band=band.label)
        yield _("Each task keeps its timeout, and its place by age within the new priority.")


#: Task types that the page of a cancel names.
MAX_KINDS: Final = 10
_UNDONE: Final[Any] = ngettext_lazy(
    "%(shown)s completed task is undone: %(names)s.", "%(shown)s completed tasks are undone: %(names)s.", "n"
)
_STOPPED: Final[Any] = ngettext_lazy(
    "%(shown)s running task is asked to stop.", "%(shown)s running tasks are asked to stop.", "n"
)
_CANCELLED: Final[Any] = ngettext_lazy("%(shown)s waiting task never runs.", "%(shown)s waiting tasks never run.", "n")
_STAY: Final[Any] = ngettext_lazy(
    "%(shown)s completed task stays as it is: %(names)s.", "%(shown)s completed tasks stay as they are: %(names)s.", "n"
)
_NOT_RUN: Final[Any] = ngettext_lazy(
    "%(shown)s task that waits for it does not run: %(names)s.",
    "%(shown)s tasks that wait for it do not run: %(names)s.", "n",
)  # fmt: skip
_MOVED: Final[Any] = ngettext_lazy(
    "%(shown)s waiting task moves to %(band)s.", "%(shown)s waiting tasks move to %(band)s.", "n"
)


def _steering(  # noqa: PLR0913 - by name
    name: str,
    steer_it: Callable[..., int],
    done: str,
    *,
    permission: str = "steer",
    values: Callable[[QueryDict], dict[str, Any]] = lambda _posted: {},
    label: Any = "",
    consequences: Callable[..., Iterable[Any]] | None = None,
) -> Any:
    """Return the page of a button that calls a function of ``steer``, which records itself.

    ``done`` has a place for the number of tasks; ``values`` returns what else the function gets of the posted form.
    """

    def act(self: WorkflowAdmin, request: HttpRequest, found: Workflow, reason: str) -> str:
        by = request.user.get_username()
        number = steer_it(found.pk, **values(request.POST), by=by, via=ADMIN, reason=reason)
        self.log_action_of(request, [found], done, reason)
        return _(done) % {"number": number}

    return action_page(name, permission, label=label, consequences=consequences)(act)


class WorkflowAdmin(WorkflowSignalMixin, ReadOnlyAdmin[Workflow]):
    change_form_template = "admin/queue_app/workflow/change_form.html"
    quick_views = (
        ("standing=waiting", _lazy("Waits for a person")), ("standing=held", _lazy("Held")),
        ("standing=open", _lazy("Not ended")),
    )  # fmt: skip
    empty_text = _lazy("No workflow yet. Code makes them with queue_app.Workflow, the API at /api/v1/workflows.")
    list_display = ("named", "standing", "progress", "age")
    list_display_links = ("named",)
    list_filter = (StandingFilter,)
    list_per_page = 20
    ordering = ("-id",)
    search_fields = ("name", "user")
    search_help_text = _lazy("Part of a name or a user, among the newest 10,000; or an id.")
    shows_changes = True

    class Media:
        js = (Script("queue_app/morph.js", defer=True), Script("queue_app/workflow_live.js", defer=True))

    has_steer_permission = permission("steer_workflow")
    has_stop_undoing_permission = permission("stop_undoing_workflow")
    age = column(_lazy("enqueued"), lambda flow: labels.ago(flow.created_at, timezone.now()))

    def annotate_rows(self, request: HttpRequest, found: Iterable[Any]) -> None:
        """Count what has not ended, and find what holds or waits, for all rows at once."""
        flows = list(found)
        is_open = [flow.pk for flow in flows if flow.finished_at is None]
        pending = workflow_graph.pending(is_open, COUNTED)
        held = held_among([flow.pk for flow in flows if flow.held_at is not None])
        few = [flow.pk for flow in flows if flow.pk in is_open and flow.nodes <= SMALL]
        waiting: dict[uuid.UUID, list[AwaitedSignal]] = {}
        for each in awaited(few, MAX_AWAITED):
            waiting.setdefault(each.workflow_id, []).append(each)
        for flow in flows:
            flow.pending = pending.get(flow.pk, 0)
            flow.stands = pages.standing(flow, held.get(flow.pk), waiting.get(flow.pk, []))

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Workflow], search_term: str
    ) -> tuple[QuerySet[Workflow], bool]:
        """Search by id, or by part of the name or user among the newest workflows."""
        term = search_term.strip()
        if not term:
            return queryset, False
        if meant_id := labels.id_of(term):
            return queryset.filter(pk=meant_id), False
        newest = Workflow.objects.order_by("-id").values("id")[:WORKFLOWS_READ]
        return queryset.filter(Q(name__icontains=term) | Q(user__icontains=term), pk__in=newest), False

    @admin.display(description=_lazy("name"))
    def named(self, flow: Workflow) -> SafeString | str:
        return two_lines(flow.name, flow.user) if flow.user else flow.name

    @admin.display(description=_lazy("state"))
    def standing(self, flow: Any) -> SafeString:
        return _label(flow.stands)

    @admin.display(description=_lazy("tasks"))
    def progress(self, flow: Any) -> SafeString:
        if flow.pending >= COUNTED:
            return format_html("{} {}", _("more than %(number)s of") % {"number": f"{COUNTED:,}"}, f"{flow.nodes:,}")
        ended = max(flow.nodes - flow.pending, 0)
        return format_html(
            '<progress max="{}" value="{}" aria-label="{}"{}></progress> <span class="tq-nowrap">{}</span>',
            max(flow.nodes, 1), ended, _("tasks that have ended"),
            SafeString(' class="tq-held-bar"') if flow.held_at else "",
            _("%(ended)s of %(all)s ended") % {"ended": f"{ended:,}", "all": f"{flow.nodes:,}"},
        )  # fmt: skip

    def page_context(self, request: HttpRequest, found: Workflow) -> dict[str, Any]:
        graph = graph_of(found.pk)
        waiting = awaited([found.pk], MAX_AWAITED) if found.finished_at is None else []
        drawn = pages.graph(graph, waiting)
        counts = sum((group.counts for group in graph.groups), Counter[str]())
        return super().page_context(request, found) | {
            "title": found.name,
            "subtitle": "",
            "standing": _label(pages.standing(found, held_among([found.pk]).get(found.pk), waiting)),
            "states": pages.states_in_words(counts),
            "graph": drawn,
            "has_critical": bool(graph.critical),
            "tasks": graph.tasks,
            "holding": self._displayed(graph.holding, may_view=self.may_view_payload(request)),
            "awaited": waiting,
            "signals": Signal.objects.filter(workflow_id=found.pk).order_by("id")[:MAX_AWAITED],
            "times": times(drawn.boxes, timezone.now()),
            "is_open": found.finished_at is None,
            "reload_seconds": 2 if graph.tasks <= SMALL else 15,
            "may_retry_failed": any(counts[state] for state in FAILURES)
            and (found.state != WorkflowState.COMPENSATED or found.gaps),
            "is_undone": found.state == WorkflowState.COMPENSATING,
            "bands": [band.label for band in Band],
        }

    @staticmethod
    def _displayed(found: list[Holding], *, may_view: bool) -> list[Holding]:
        """Return the tasks that hold a workflow, with messages only for who may view them, and without secrets."""
        if not may_view:
            return [each._replace(exception_class=None, message=None) for each in found]
        secrets = secrets_by_task([each.id for each in found])
        return [each._replace(message=redact(each.message or "", secrets.get(each.id, ()))) for each in found]

    cancel = _steering(
        "cancel", steer.cancel_workflow, _noop("Cancelled tasks: %(number)d."),
        label=_lazy("Cancel workflow"), consequences=_of_cancel,
    )  # fmt: skip
    stop_undoing = _steering(
        "stop_undoing", steer.stop_undoing, _noop("Completed tasks that stay as they are: %(number)d."),
        permission="stop_undoing", label=_lazy("Stop undoing"), consequences=_of_stop_undoing,
    )  # fmt: skip
    skip = _steering(
        "skip", steer.skip_task, _noop("Skipped tasks: %(number)d."),
        values=lambda posted: {"task_id": posted.get("task", ""), "done": "done" in posted},
        label=_lazy("Skip"), consequences=_of_skip,
    )  # fmt: skip
    pause = _steering("pause", steer.pause_workflow, _noop("Paused. Tasks held back: %(number)d. What runs finishes."))
    resume = _steering("resume", steer.resume_workflow, _noop("Resumed. Tasks that may run: %(number)d."))
    retry = _steering("retry", steer.retry_workflow, _noop("Tasks that run again: %(number)d."))
    reprioritise = _steering(
        "reprioritise", steer.reprioritise_workflow, _noop("Moved waiting tasks: %(number)d."),
        values=lambda posted: {"band": posted.get("priority", "")},
        label=_lazy("Change priority"), consequences=_of_reprioritise,
    )  # fmt: skip


def _label(stands: pages.WorkflowStanding) -> SafeString:
    label = format_html('<span class="tq-label tq-workflow-{}">{}</span>', stands.word, _(stands.word))
    return two_lines(label, stands.why) if stands.why else label


def around_task(task: Task) -> dict[str, Any]:
    """Return the workflow of a task, its name there, and the tasks next to it."""
    if task.workflow_id is None:
        return {}
    found = neighbours(task.pk, MAX_NEIGHBOURS + 1)
    titles = {
        "parents": _("Waits for"), "children": _("Waited for by"), "undoes": _("Undoes"),
        "undone_by": _("Undone by"), "added_by": _("Added by"),
    }  # fmt: skip
    return {
        "workflow": Workflow.objects.filter(pk=task.workflow_id).first(),
        "node_name": WorkflowNode.objects.filter(pk=task.pk).values_list("name", flat=True).first(),
        "neighbours": [
            (titles[kind], links[:MAX_NEIGHBOURS], len(links) > MAX_NEIGHBOURS) for kind, links in found.items()
        ],
    }
