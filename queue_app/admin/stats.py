"""The pages of task types, users and concurrency keys: what ended, how long it waited and ran, and what failed."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from django.contrib import messages
from django.contrib.admin.utils import quote
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext as _, gettext_lazy as _lazy

from queue_app import models
from queue_app.admin.dead_letter import causes_of
from queue_app.admin.filters import NARROW, QueueFilter
from queue_app.admin.forms import column, time_column, two_lines
from queue_app.admin.mixins import ReadOnlyAdmin, SingletonAdmin, page
from queue_app.core.shared import Shared
from queue_app.dashboard import charts, labels
from queue_app.diagnose import stalls
from queue_app.models.stats import StatsKind
from queue_app.models.worker import WorkerStatus
from queue_app.services.read.inspect import list_tasks
from queue_app.services.read.stats import index_state
from queue_app.services.read.task_filter import TaskFilter
from queue_app.services.upkeep import task_stats

RECENT: Final = 20
#: Seconds for which viewers share a list.
FRESH: Final = {"1h": 10.0, "24h": 30.0, "7d": 120.0, "30d": 300.0}
DEFAULT_PERIOD: Final = "24h"
#: The day before tells most; the hour before is no choice for statistics by day.
DEFAULT_AGAINST: Final = "1d"
AGAINST: Final = {"1h": _lazy("an hour ago"), "1d": _lazy("a day ago"), "7d": _lazy("a week ago")}
#: Snapshots of queues are many; those of a longer time would take seconds to read.
QUEUE_PERIODS: Final = ("1h", "24h")
#: Column of a list -> (title, value it is sorted by); names sort upwards, numbers downwards, changes the worst first.
_ORDERS: Final[dict[str, tuple[Any, Callable[[task_stats.Listed], Any]]]] = {
    "name": (_lazy("Name"), lambda found: found.name),
    "total": (_lazy("Ended"), lambda found: -found.period.total),
    "failed": (_lazy("Failed"), lambda found: (-found.period.failed_share, -found.period.failed)),
    "wait_p95": (_lazy("Wait, p95"), lambda found: -(found.period.wait_p95 or 0)),
    "run_p95": (_lazy("Run, p95"), lambda found: -(found.period.run_p95 or 0)),
    "slower": (_lazy("Now: run, p95"), lambda found: (found.slower is None, -(found.slower or 0))),
    "failing": (_lazy("Now: failed"), lambda found: (found.failing is None, -(found.failing or 0))),
    "busier": (_lazy("Now: a minute"), lambda found: (found.busier is None, found.busier)),
}
#: Question that a list answers -> the column that it is sorted by.
_QUESTIONS: Final = {
    "total": _lazy("Which run most?"), "slower": _lazy("Which got slower?"), "failing": _lazy("Which fail more?"),
    "busier": _lazy("Which run less?"),
}  # fmt: skip


_shared: Final = Shared(lambda key: task_stats.compare(*key.split()), lambda key: FRESH[key.split()[1]])


class TaskStatsAdmin(ReadOnlyAdmin[models.TaskStats]):
    """A sortable list of all task types (or users, or keys), and a page for each."""

    def has_view_permission(self, request: HttpRequest, obj: models.TaskStats | None = None) -> bool:
        """Return whether the user may see tasks, for these are their sums."""
        return request.user.has_perm("queue_app.view_task")

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        if any("\x00" in value for value in request.GET.values()):
            self.message_user(request, _("The address contains an invalid value."), messages.ERROR)
            return HttpResponseRedirect(request.path)
        titles = _titles(request)
        kind = _one_of(request.GET.get("kind"), list(titles), StatsKind.TYPE.value)
        periods = list(QUEUE_PERIODS if kind == task_stats.QUEUE else task_stats.PERIODS)
        againsts = {key: text for key, text in AGAINST.items() if task_stats.BEFORE[key] >= task_stats.UNITS[kind]}
        period = _one_of(request.GET.get("period"), periods, DEFAULT_PERIOD)
        against = _one_of(request.GET.get("against"), list(againsts), DEFAULT_AGAINST)
        order = _one_of(request.GET.get("o"), list(_ORDERS), "total")
        term = request.GET.get("q", "").strip()
        found = [each for each in _shared.get(f"{kind} {period} {against}") if term.lower() in each.name.lower()]
        context = {
            "kind": kind, "period": period, "against": against, "againsts": againsts, "order": order, "q": term,
            "found": sorted(found, key=_ORDERS[order][1]), "kinds": titles, "periods": periods, "is_list": True,
            "columns": {name: title for name, (title, _key) in _ORDERS.items()}, "questions": _QUESTIONS,
        }  # fmt: skip
        return self.own_page(request, "taskstats/list.html", titles[kind], **context, **(extra_context or {}))

    @page("type/<path:name>/", "type", permission="view")
    def type_view(self, request: HttpRequest, name: str) -> HttpResponse:
        context = self._context(StatsKind.TYPE, name)
        limit = models.Limit.objects.filter(scope="type", name=name).first()
        live = models.Worker.objects.filter(status=WorkerStatus.ACTIVE, task_types__contains=[name])
        return self._page(
            request, name, limit=limit, causes=causes_of(request, models.DeadLetter.objects.filter(task_type=name)),
            schedules=list(models.Schedule.objects.filter(task_type=name).order_by("name")[:RECENT]),
            workers=list(live.order_by("name")[:RECENT]), **context,
        )  # fmt: skip

    @page("user/<path:name>/", "user", permission="view")
    def user_view(self, request: HttpRequest, name: str) -> HttpResponse:
        return self._page(request, name, **self._context(StatsKind.USER, name))

    @page("key/<path:name>/", "key", permission="view")
    def key_view(self, request: HttpRequest, name: str) -> HttpResponse:
        context = self._context(StatsKind.KEY, name)
        names = [name, name.partition(":")[0]]
        limits = {limit.name: limit for limit in models.Limit.objects.filter(scope="key", name__in=names)}
        return self._page(request, name, limit=limits.get(name) or limits.get(names[1]), **context)

    def _context(self, kind: StatsKind, name: str) -> dict[str, Any]:
        if "\x00" in name:
            raise Http404
        known = task_stats.history(kind, name)
        month = known.sums["30d"]
        parameter = {StatsKind.TYPE: "task_type", StatsKind.USER: "user", StatsKind.KEY: "concurrency_key"}[kind]
        wanted = NARROW[parameter](TaskFilter(), name, timezone.now())
        return {
            "kind": kind.value,
            "sums": known.sums,
            "timeline": charts.timeline(known.rows, kind),
            "run_times": charts.run_times(known.rows, kind, task_stats.releases(known.rows)),
            "compared": named_changes(task_stats.compare_history(kind, known.rows)),
            "versions": month.versions.most_common(10),
            "recent": list_tasks(models.Task.objects.all(), wanted, page_size=RECENT).tasks,
            "tasks_query": parameter,
            "list_query": f"?kind={kind.value}",
            "list_title": _titles(None)[kind.value],
        }

    def _page(self, request: HttpRequest, name: str, **context: Any) -> HttpResponse:
        titles = {"user": _("User %(name)s"), "key": _("Concurrency key %(name)s")}
        title = titles.get(context["kind"], "%(name)s") % {"name": name}
        return self.own_page(request, "taskstats/page.html", title, name=name, **context)


def _titles(request: HttpRequest | None) -> dict[str, str]:
    """Return the title of the list of each kind that the user may see."""
    titles = {"type": _("Task types"), "user": _("Users"), "key": _("Concurrency keys")}
    may_see_queues = request is not None and request.user.has_perm("queue_app.view_queue")
    return titles | ({task_stats.QUEUE: _("Queues")} if may_see_queues else {})


def named_changes(found: Mapping[str, task_stats.Compared]) -> list[tuple[Any, task_stats.Compared]]:
    """Return comparisons with the words for what they compare with; none if nothing ended."""
    if not any(each.now.total or each.before.total for each in found.values()):
        return []
    of_version = _("before version %(version)s")
    return [(AGAINST.get(key) or of_version % {"version": key}, each) for key, each in found.items()]


def _one_of(value: str | None, known: list[str], default: str) -> str:
    return value if value in known else default


# The pages of the internals: maintenance jobs, snapshots of queues, the index.

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


def _error(job: models.MaintenanceJob) -> str:
    """Return the error of a job; what the watchdog found stands still is a sentence."""
    return " ".join(labels.translate(stall.text) for stall in stalls.stored(job)) or job.error


class MaintenanceJobAdmin(ReadOnlyAdmin[models.MaintenanceJob]):
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


def _number(name: str) -> Any:
    """Return a column for the number in a field: zeros are quiet, failures stand out."""
    style = "tq-alert" if name == "failed" else "tq-some"

    def text(stats: models.QueueStats) -> Any:
        number = getattr(stats, name)
        return format_html('<span class="{}">{}</span>', style if number else "tq-quiet", f"{number:,}")

    return column(_lazy(name), text)


class QueueStatsAdmin(ReadOnlyAdmin[models.QueueStats]):
    lead = _lazy("Each queue at each full minute, newest first. The page of a queue draws these numbers over time.")
    list_display = ("taken", "of_queue", "waiting", "later", "running", "oldest", "added", "done", "lost")
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
    later, running, added, done, lost = map(_number, ("scheduled", "active", "enqueued", "completed", "failed"))
    taken = time_column("taken_at", _lazy("taken"))
    waiting = column(
        _lazy("queued"),
        lambda stats: ", ".join(f"{labels.word(band)} {count}" for band, count in stats.depth.items() if count) or "0",
    )
    oldest = column(
        _lazy("oldest waited"),
        lambda stats: "-" if stats.oldest_seconds is None else labels.duration(stats.oldest_seconds),
    )


class IndexGenerationAdmin(SingletonAdmin[models.IndexGeneration], ReadOnlyAdmin[models.IndexGeneration]):
    """The last built index, and whether workers can claim from it now."""

    fields = (
        "number", "state", "started", "ready", "tasks", "leases", "condemned", "condemned_last", "condemned_because",
    )  # fmt: skip
    condemned_last = time_column("condemned_at", _lazy("found damaged last"))
    started = time_column("started_at", _lazy("started"))
    ready = time_column("ready_at", _lazy("ready"))
    state = column(_lazy("index now"), lambda _generation: labels.word(index_state()))
