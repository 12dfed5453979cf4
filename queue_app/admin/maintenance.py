"""The jobs of upkeep: when each succeeded last, and why one did not."""

from __future__ import annotations

from django.contrib import admin
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy

from queue_app.admin.mixins import ReadOnlyAdmin, time_of
from queue_app.dashboard import labels
from queue_app.models import MaintenanceJob


@admin.register(MaintenanceJob)
class MaintenanceJobAdmin(ReadOnlyAdmin[MaintenanceJob]):
    """One row a job; only the jobs write it."""

    actions = None
    empty_text = _lazy("No job has run yet. The scheduler runs them with --with-maintenance, or Celery beat does.")
    fields = ("name", "succeeded", "took", "done", "started", "error")
    list_display = ("name", "succeeded", "took", "done", "error")
    ordering = ("name",)
    sortable_by = ()

    started = time_of("started_at", _lazy("started"))

    @admin.display(description=_lazy("last success"))
    def succeeded(self, job: MaintenanceJob) -> SafeString | str:
        """Return how long ago the job was done."""
        return labels.ago(job.succeeded_at, timezone.now()) if job.succeeded_at else _("never")

    @admin.display(description=_lazy("took"))
    def took(self, job: MaintenanceJob) -> str:
        """Return how long it took then."""
        return labels.duration(job.seconds)
