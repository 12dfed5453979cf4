"""Limits of task types and concurrency keys."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _lazy

from queue_app.admin.audit_entry import changes_of
from queue_app.admin.mixins import ReasonForm
from queue_app.admin.pausing import PausingAdmin
from queue_app.models import Limit


@admin.register(Limit)
class LimitAdmin(PausingAdmin[Limit]):
    """The limits of task types and keys; they hold from the next claim on."""

    empty_text = _lazy(
        "No task type and no concurrency key has limits of its own. Those of a queue are on the queue's page."
    )
    fieldsets = (
        (None, {"fields": ("scope", "name")}),
        (
            _lazy("Limits"),
            {
                "fields": (
                    "max_concurrent",
                    ("rate_count", "rate_seconds", "rate_burst"),
                    "min_delay_seconds",
                    "throttled_until",
                ),
                "description": _lazy("They hold from the next claim on."),
            },
        ),
        (None, {"fields": ("reason",)}),
    )
    form = ReasonForm
    list_display = ("name", "scope", "state", "max_concurrent", "rate_count", "rate_seconds")
    list_editable = ("max_concurrent", "rate_count", "rate_seconds")
    list_filter = ("scope",)
    list_per_page = 50
    ordering = ("scope", "name")
    search_fields = ("name",)
    sortable_by = ("name", "scope")

    def get_readonly_fields(self, request: HttpRequest, obj: Limit | None = None) -> tuple[str, ...]:
        """Keep what it is on, once it exists: other limits are others."""
        return ("scope", "name") if obj else ()

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Show who changed it below the form."""
        limit: Limit | None = kwargs.get("obj")
        if limit is not None:
            context |= {
                "history": changes_of("limit", str(limit.pk)),
                "may_view_audit": request.user.has_perm("queue_app.view_auditentry"),
            }
        return super().render_change_form(request, context, *args, **kwargs)
