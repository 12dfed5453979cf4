"""The pages of the internals: maintenance jobs, snapshots of queues, the index."""

from typing import Final

from django.contrib.admin.utils import quote
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy

from queue_app.admin.columns import column, time_column, two_lines
from queue_app.admin.filters import QueueFilter
from queue_app.admin.mixins import ReadOnlyAdmin, SingletonAdmin
from queue_app.dashboard import labels
from queue_app.dashboard.translation import translate, word
from queue_app.diagnose import stalls
from queue_app.models import IndexGeneration, MaintenanceJob, QueueStats
from queue_app.services.read.stats import index_state

#: Job -> what it does, once a minute unless it says otherwise.
ABOUT: Final = {
    "promote": _lazy("raises tasks that have waited long to higher bands"),
    "expire": _lazy("ends stale tasks of queues that expire eagerly"),
    "snapshot": _lazy("counts for charts and statistics"),
    "purge": _lazy("deletes what is past its retention"),
    "schedules": _lazy("stores the schedules that the code declares"),
    "task_stats": _lazy("counts ended tasks by type, user and key"),
    "watchdog": _lazy("looks every second for work that stands still"),
}


def _error(job: MaintenanceJob) -> str:
    """Return the error of a job; what the watchdog found stands still is a sentence."""
    return " ".join(translate(stall.text) for stall in stalls.stored(job)) or job.error


class MaintenanceJobAdmin(ReadOnlyAdmin[MaintenanceJob]):
    """The maintenance jobs: when each succeeded last, and its error if it fails now."""

    actions = None
    empty_text = _lazy("No job has run yet. The scheduler runs them with --with-maintenance, or Celery beat does.")
    fields = ("name", "succeeded", "took", "done", "started", "problem")
    list_display = ("job", "succeeded", "took", "done", "problem")
    list_display_links = ("job",)
    ordering = ("name",)

    job = column(_lazy("job"), lambda job: two_lines(job.name.replace("_", " "), ABOUT.get(job.name, "")))
    problem = column(
        _lazy("error"), lambda job: format_html('<span class="tq-alert">{}</span>', _error(job)) if job.error else "-"
    )
    started = time_column("started_at", _lazy("started"))
    succeeded = column(
        _lazy("last success"),
        lambda job: labels.ago(job.succeeded_at, timezone.now()) if job.succeeded_at else _("never"),
    )
    took = column(_lazy("took"), lambda job: labels.duration(job.seconds))


class QueueStatsAdmin(ReadOnlyAdmin[QueueStats]):
    list_display = ("taken", "of_queue", "waiting", "scheduled", "active", "oldest", "enqueued", "completed", "failed")
    empty_text = _lazy("No snapshot yet. Maintenance takes one of each queue per minute.")
    fields = list_display
    list_display_links = ("taken",)
    list_filter = (QueueFilter,)
    ordering = ("-id",)

    of_queue = column(
        _lazy("queue"),
        lambda stats: format_html(
            '<a href="{}">{}</a>', reverse("admin:queue_app_queue_change", args=[quote(stats.queue)]), stats.queue
        ),
    )
    taken = time_column("taken_at", _lazy("taken"))
    waiting = column(
        _lazy("queued"),
        lambda stats: ", ".join(f"{word(band)} {count}" for band, count in stats.depth.items() if count) or "0",
    )
    oldest = column(
        _lazy("oldest waited"),
        lambda stats: "-" if stats.oldest_seconds is None else labels.duration(stats.oldest_seconds),
    )


class IndexGenerationAdmin(SingletonAdmin[IndexGeneration], ReadOnlyAdmin[IndexGeneration]):
    """The last built index, and whether workers can claim from it now."""

    fields = (
        "number", "state", "started", "ready", "tasks", "leases", "condemned", "condemned_last", "condemned_because",
    )  # fmt: skip
    condemned_last = time_column("condemned_at", _lazy("condemned last"))
    started = time_column("started_at", _lazy("started"))
    ready = time_column("ready_at", _lazy("ready"))
    state = column(_lazy("index now"), lambda _generation: word(index_state()))
