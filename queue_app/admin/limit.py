"""Limits of task types and concurrency keys."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _lazy

from queue_app.admin.mixins import ReasonForm
from queue_app.admin.pausing import PausingAdmin
from queue_app.admin.queue import PauseForm, QueueActionForm
from queue_app.models import Limit


@admin.register(Limit)
class LimitAdmin(PausingAdmin[Limit]):
    """The limits of task types and keys; they hold from the next claim on."""

    action_form = QueueActionForm
    actions = ("pause_selected", "resume_selected")
    fieldsets = (
        (None, {"fields": ("scope", "name", "reason")}),
        (
            "Limits",
            {
                "fields": (
                    "max_concurrent",
                    ("rate_count", "rate_seconds", "rate_burst"),
                    "min_delay_seconds",
                    "throttled_until",
                ),
                "description": "They hold from the next claim on.",
            },
        ),
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

    def save_model(self, request: HttpRequest, obj: Limit, form: forms.ModelForm[Limit], change: Any) -> None:
        """Write only what was edited, so that a pause of this very moment is not undone."""
        if change:
            names = [name for name in form.changed_data if name != "reason"]
            obj.save(update_fields=[*names, "updated_at"])
        else:
            super().save_model(request, obj, form, change)

    @admin.action(description=_lazy("Pause selected"), permissions=["pause"])
    def pause_selected(self, request: HttpRequest, queryset: QuerySet[Limit]) -> None:
        """Pause those that are not paused yet."""
        self._set_paused(request, queryset, paused=True)

    @admin.action(description=_lazy("Resume selected"), permissions=["pause"])
    def resume_selected(self, request: HttpRequest, queryset: QuerySet[Limit]) -> None:
        """Resume those that are paused."""
        self._set_paused(request, queryset, paused=False)

    def _set_paused(self, request: HttpRequest, queryset: QuerySet[Limit], *, paused: bool) -> None:
        form = PauseForm(request.POST)
        if not form.is_valid():
            self.message_user(request, "The reason is too long, or the length unknown.", messages.ERROR)
            return
        found = [limit for limit in queryset if limit.paused is not paused]
        for limit in found:
            self.set_paused(request, limit, form, paused=paused)
        self.message_user(request, f"{'Paused' if paused else 'Resumed'}: {len(found)}.", messages.SUCCESS)
