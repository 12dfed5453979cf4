"""The pages of workflows: the list with progress, and one workflow as a graph, with its times and its buttons."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy

from queue_app.admin.columns import column, permission, two_lines
from queue_app.admin.mixins import ReadOnlyAdmin, action_page
from queue_app.core.priorities import Band
from queue_app.dashboard import labels
from queue_app.dashboard import workflows as pages
from queue_app.models import Workflow
from queue_app.services.control.audit import ADMIN
from queue_app.services.read.search import WORKFLOWS_READ
from queue_app.services.read.workflow_graph import graph_of
from queue_app.services.workflows import steer
from queue_app.sql import workflow_graph as rows

#: Pending tasks are counted up to this number in the list.
COUNTED: Final = 10_000
#: The page of a workflow of at most this many tasks reloads itself often.
SMALL: Final = 2_000


class StandingFilter(admin.SimpleListFilter):
    """Filter by what a workflow is doing now."""

    title = _lazy("standing")
    parameter_name = "standing"
    CONDITIONS: ClassVar[dict[str, dict[str, Any]]] = {
        "open": {"finished_at__isnull": True},
        "held": {"finished_at__isnull": True, "held_at__isnull": False},
        "paused": {"finished_at__isnull": True, "paused": True},
    }

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the choices."""
        return [("open", _lazy("not ended")), ("held", _lazy("held")), ("paused", _lazy("paused"))]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        """Return the workflows of the chosen kind."""
        return queryset.filter(**self.CONDITIONS.get(self.value() or "", {}))


def _act(do: Callable[[Workflow, HttpRequest, dict[str, str]], int], said: str) -> Callable[..., str]:
    """Return an action on one workflow that records itself; ``said`` has a place for the number of tasks."""

    def act(self: WorkflowAdmin, request: HttpRequest, found: Workflow, reason: str) -> str:
        number = do(found, request, {"by": request.user.get_username(), "via": ADMIN, "reason": reason})
        self.log_action_of(request, [found], said, reason)
        return _(said) % {"number": number}

    return act


@admin.register(Workflow)
class WorkflowAdmin(ReadOnlyAdmin[Workflow]):
    """The workflows, newest first."""

    change_form_template = "admin/queue_app/workflow/change_form.html"
    empty_text = _lazy("No workflow yet. Code makes them with queue_app.Workflow, the API at /api/v1/workflows.")
    fields = ("name", "user", "on_failure", "max_concurrent", "created", "deadline_at", "finished")
    list_display = ("named", "standing", "progress", "age")
    list_display_links = ("named",)
    list_filter = (StandingFilter, "state")
    list_per_page = 20
    ordering = ("-id",)
    search_fields = ("name", "user")
    search_help_text = _lazy("Part of a name or a user, among the newest 10,000; or an id.")
    shows_changes = True

    has_steer_permission = permission("steer_workflow")
    created = column(_lazy("enqueued"), lambda flow: labels.exact_moment(flow.created_at))
    deadline_at = column(_lazy("deadline"), lambda flow: labels.exact_moment(flow.deadline) if flow.deadline else "-")
    finished = column(_lazy("ended"), lambda flow: labels.exact_moment(flow.finished_at) if flow.finished_at else "-")
    age = column(_lazy("enqueued"), lambda flow: labels.ago(flow.created_at, timezone.now()))

    def annotate_rows(self, request: HttpRequest, found: Iterable[Any]) -> None:
        """Count what has not ended, for all rows at once."""
        flows = list(found)
        pending = rows.pending([flow.pk for flow in flows if flow.finished_at is None], COUNTED)
        for flow in flows:
            flow.pending = pending.get(flow.pk, 0)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Workflow], search_term: str
    ) -> tuple[QuerySet[Workflow], bool]:
        """Search by id, or by part of the name or user among the newest workflows."""
        term = search_term.strip()
        if not term:
            return queryset, False
        try:
            return queryset.filter(pk=uuid.UUID(term)), False
        except ValueError:
            newest = Workflow.objects.order_by("-id").values("id")[:WORKFLOWS_READ]
            return queryset.filter(Q(name__icontains=term) | Q(user__icontains=term), pk__in=newest), False

    @admin.display(description=_lazy("name"))
    def named(self, flow: Workflow) -> SafeString | str:
        """Return the name, with the user below."""
        return two_lines(flow.name, flow.user) if flow.user else flow.name

    @admin.display(description=_lazy("state"))
    def standing(self, flow: Workflow) -> SafeString:
        """Return the state; and whether it is paused or held, by whom and why."""
        label = format_html('<span class="tq-label tq-workflow-{}">{}</span>', flow.state, _(flow.state))
        return two_lines(label, why) if (why := _why(flow)) else label

    @admin.display(description=_lazy("tasks"))
    def progress(self, flow: Any) -> SafeString:
        """Return how many of the tasks have ended, as a bar and in numbers."""
        if flow.pending >= COUNTED:
            return format_html("{} {}", _("more than %(number)s of") % {"number": f"{COUNTED:,}"}, f"{flow.nodes:,}")
        ended = max(flow.nodes - flow.pending, 0)
        return format_html(
            '<progress max="{}" value="{}" aria-label="{}"></progress> <span class="tq-nowrap">{}</span>',
            max(flow.nodes, 1), ended, _("tasks that have ended"),
            _("%(ended)s of %(all)s") % {"ended": f"{ended:,}", "all": f"{flow.nodes:,}"},
        )  # fmt: skip

    def page_context(self, request: HttpRequest, found: Workflow) -> dict[str, Any]:
        """Return the graph, the times and the buttons."""
        graph = graph_of(found.pk)
        drawn = pages.graph(graph)
        bars, whole = pages.bars(drawn.boxes, timezone.now())
        return super().page_context(request, found) | {
            "standing": self.standing(found),
            "graph": drawn,
            "tasks": graph.tasks,
            "holding": graph.holding,
            "critical": graph.critical,
            "bars": bars,
            "whole": whole,
            "bars_height": len(bars) * (pages.BAR + 6),
            "is_open": found.finished_at is None,
            "reload_seconds": 3 if graph.tasks <= SMALL else 15,
            "may_steer": self.has_steer_permission(request),
            "may_view_tasks": request.user.has_perm("queue_app.view_task"),
            "bands": [band.name.lower() for band in Band],
            "reason_length": Workflow._meta.get_field("paused_reason").max_length,  # noqa: SLF001 - Django's documented way
        }

    cancel = action_page("cancel", "steer")(
        _act(lambda flow, _r, why: steer.cancel_workflow(flow.pk, **why), "Cancelled tasks: %(number)d.")
    )
    pause = action_page("pause", "steer")(
        _act(
            lambda flow, _r, why: steer.pause_workflow(flow.pk, **why),
            "Paused. Tasks held back: %(number)d. What runs finishes.",
        )
    )
    resume = action_page("resume", "steer")(
        _act(lambda flow, _r, why: steer.resume_workflow(flow.pk, **why), "Resumed. Tasks that may run: %(number)d.")
    )
    retry = action_page("retry", "steer")(
        _act(
            lambda flow, _r, why: steer.retry_workflow(flow.pk, **why),
            "Tasks that run again: %(number)d.",
        )
    )
    reprioritise = action_page("reprioritise", "steer")(
        _act(
            lambda flow, request, why: steer.reprioritise_workflow(flow.pk, request.POST.get("priority", ""), **why),
            "Moved waiting tasks: %(number)d.",
        )
    )


def _why(flow: Workflow) -> str:
    if flow.finished_at is not None:
        return flow.cancel_reason
    if flow.paused:
        by = _("paused by %(name)s") % {"name": flow.paused_by} if flow.paused_by else _("paused")
        return f"{by}: {flow.paused_reason}" if flow.paused_reason else by
    if flow.held_at is not None:
        return _("held by a failed task since %(time)s") % {"time": labels.exact(flow.held_at)}
    return _("it is being cancelled") if flow.cancel_requested_at else ""
