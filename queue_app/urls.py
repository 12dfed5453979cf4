"""URLs that a project includes at its root; each with or without a slash at its end."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, re_path

from queue_app.api.base import ApiView, NotFoundView
from queue_app.api.internal.urls import patterns as internal_patterns
from queue_app.api.page import PageRenderer
from queue_app.api.views.autoscale import AutoscaleView
from queue_app.api.views.dead_letters import (
    DeadLetterListView,
    DeadLetterView,
    DiscardManyView,
    ReplayManyView,
    ReplayView,
)
from queue_app.api.views.docs import DocsView, SchemaView
from queue_app.api.views.events import EventView
from queue_app.api.views.health import LiveView, ReadyView
from queue_app.api.views.limits import LimitListView, LimitView, PauseOfView, ResumeOfView
from queue_app.api.views.metrics import MetricsView
from queue_app.api.views.operations import OperationView
from queue_app.api.views.queues import (
    PauseView,
    PolicyListView,
    PolicyView,
    QueueListView,
    QueueStatsView,
    QueueView,
    ResumeView,
    StatsView,
)
from queue_app.api.views.staff import AdminQueueView, AdminTaskListView, AdminTaskPriorityView, WorkerListView
from queue_app.api.views.tasks import (
    BulkActionView,
    TaskBulkView,
    TaskCountView,
    TaskExplainView,
    TaskExportView,
    TaskListView,
    TaskPriorityView,
    TaskView,
)

ApiView.page_class = PageRenderer

app_name = "queue_app"
urlpatterns: list[URLPattern | URLResolver] = [
    re_path(r"^api/v1/tasks/?\Z", TaskListView.as_view(), name="task-list"),
    re_path(r"^api/v1/tasks/bulk/?\Z", TaskBulkView.as_view(), name="task-bulk"),
    re_path(r"^api/v1/tasks/bulk-actions/?\Z", BulkActionView.as_view(), name="task-bulk-actions"),
    re_path(r"^api/v1/tasks/count/?\Z", TaskCountView.as_view(), name="task-count"),
    re_path(r"^api/v1/tasks/export/?\Z", TaskExportView.as_view(), name="task-export"),
    re_path(r"^api/v1/tasks/(?P<task_id>[^/]+)/?\Z", TaskView.as_view(), name="task"),
    re_path(r"^api/v1/tasks/(?P<task_id>[^/]+)/explain/?\Z", TaskExplainView.as_view(), name="task-explain"),
    re_path(r"^api/v1/tasks/(?P<task_id>[^/]+)/priority/?\Z", TaskPriorityView.as_view(), name="task-priority"),
    re_path(r"^api/v1/queue/stats/?\Z", StatsView.as_view(), name="queue-stats"),
    re_path(r"^api/v1/queues/?\Z", QueueListView.as_view(), name="queue-list"),
    re_path(r"^api/v1/queues/(?P<name>[^/]+)/?\Z", QueueView.as_view(), name="queue"),
    re_path(r"^api/v1/queues/(?P<name>[^/]+)/stats/?\Z", QueueStatsView.as_view(), name="one-queue-stats"),
    re_path(r"^api/v1/autoscale/(?P<name>[^/]+)/?\Z", AutoscaleView.as_view(), name="autoscale"),
    re_path(r"^api/v1/policies/?\Z", PolicyListView.as_view(), name="policy-list"),
    re_path(r"^api/v1/policies/(?P<band>[^/]+)/?\Z", PolicyView.as_view(), name="policy"),
    re_path(r"^api/v1/workers/?\Z", WorkerListView.as_view(), name="worker-list"),
    re_path(r"^api/v1/admin/tasks/?\Z", AdminTaskListView.as_view(), name="admin-task-list"),
    re_path(
        r"^api/v1/admin/tasks/(?P<task_id>[^/]+)/priority/?\Z",
        AdminTaskPriorityView.as_view(),
        name="admin-task-priority",
    ),
    re_path(r"^api/v1/admin/queue/?\Z", AdminQueueView.as_view(), name="admin-queue"),
    re_path(r"^api/v1/queues/(?P<name>[^/]+)/pause/?\Z", PauseView.as_view(), name="queue-pause"),
    re_path(r"^api/v1/queues/(?P<name>[^/]+)/resume/?\Z", ResumeView.as_view(), name="queue-resume"),
    re_path(r"^api/v1/dlq/?\Z", DeadLetterListView.as_view(), name="dead-letter-list"),
    re_path(r"^api/v1/dlq/replay/?\Z", ReplayManyView.as_view(), name="dead-letters-replay"),
    re_path(r"^api/v1/dlq/discard/?\Z", DiscardManyView.as_view(), name="dead-letters-discard"),
    re_path(r"^api/v1/dlq/(?P<letter_id>[^/]+)/?\Z", DeadLetterView.as_view(), name="dead-letter"),
    re_path(r"^api/v1/dlq/(?P<letter_id>[^/]+)/replay/?\Z", ReplayView.as_view(), name="dead-letter-replay"),
    re_path(r"^api/schema/?\Z", SchemaView.as_view(), name="schema"),
    re_path(r"^api/docs/?\Z", DocsView.as_view(), name="docs"),
    re_path(r"^api/v1/events/?\Z", EventView.as_view(), name="events"),
    re_path(r"^api/v1/operations/(?P<operation_id>[^/]+)/?\Z", OperationView.as_view(), name="operation"),
    re_path(r"^api/v1/limits/?\Z", LimitListView.as_view(), name="limit-list"),
    re_path(r"^api/v1/limits/pause/?\Z", PauseOfView.as_view(), name="limits-pause"),
    re_path(r"^api/v1/limits/resume/?\Z", ResumeOfView.as_view(), name="limits-resume"),
    re_path(r"^api/v1/limits/(?P<limit_id>[^/]+)/?\Z", LimitView.as_view(), name="limit"),
    re_path(r"^api/v1/limits/", NotFoundView.as_view(), name="limits-missing"),
    *internal_patterns,
    re_path(r"^healthz/?\Z", LiveView.as_view(), name="live"),
    re_path(r"^readyz/?\Z", ReadyView.as_view(), name="ready"),
    re_path(r"^metrics/?\Z", MetricsView.as_view(), name="metrics"),
    # Only below our own names: the project may have an api/v1/ as well.
    re_path(
        r"^api/v1/(?:tasks|queues?|autoscale|dlq|operations|policies|workers|admin|events)/",
        NotFoundView.as_view(),
        name="missing",
    ),
]
