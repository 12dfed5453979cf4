"""The overview: its live part, and the series of its charts."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.urls import URLPattern, path

from queue_app.admin.mixins import QueueAppAdmin
from queue_app.dashboard import charts, live
from queue_app.dashboard.reasons import Reason, reasons
from queue_app.models import Queue


def overview_context(user: Any) -> dict[str, Any]:
    """Return the overview, without queues and workers that the user may not see."""
    if not user.has_perm("queue_app.view_queue"):
        return {"live": None}
    now = live.current()
    by_queue: dict[str, list[Reason]] = {}
    for reason in reasons(now):
        by_queue.setdefault(reason.queue, []).append(reason)
    return {
        "live": now,
        "general": by_queue.pop("", []),
        "rows": [(row, by_queue.get(row.queue.name, [])) for row in now.queues],
        "may_view_workers": user.has_perm("queue_app.view_worker"),
        "may_view_tasks": user.has_perm("queue_app.view_task"),
        "may_view_letters": user.has_perm("queue_app.view_deadletter"),
        "may_pause": user.has_perm("queue_app.pause_queue"),
    }


class LiveMixin(QueueAppAdmin[Queue]):
    """Two addresses that the overview's script reads."""

    def get_urls(self) -> list[URLPattern]:
        """Put them before Django's own addresses."""
        wrap = self.admin_site.admin_view
        return [
            path("live/", wrap(self.live_view), name="queue_app_live"),
            path("charts/", wrap(self.charts_view), name="queue_app_charts"),
            *super().get_urls(),
        ]

    def live_view(self, request: HttpRequest) -> HttpResponse:
        """Return the live part of the overview as HTML."""
        _check(request)
        response = render(request, "admin/queue_app/includes/live.html", overview_context(request.user))
        response["Cache-Control"] = "no-store"
        return response

    def charts_view(self, request: HttpRequest) -> HttpResponse:
        """Return the series of the charts as JSON."""
        _check(request)
        try:
            data = charts.chart_data(request.GET.get("range", charts.DEFAULT), request.GET.get("queue", "")[:100])
        except KeyError:
            return JsonResponse({"error": f"range must be one of {', '.join(charts.RANGES)}."}, status=400)
        response = JsonResponse(data)
        response["Cache-Control"] = "no-store"
        return response


def _check(request: HttpRequest) -> None:
    if not request.user.has_perm("queue_app.view_queue"):
        raise PermissionDenied
