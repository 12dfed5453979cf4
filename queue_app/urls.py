"""URLs for a project to include at its root; each works with and without a slash at its end."""

from django.core.exceptions import ImproperlyConfigured
from django.urls import re_path

try:
    import rest_framework  # noqa: F401 - the views need it
except ModuleNotFoundError as error:
    raise ImproperlyConfigured(
        "queue_app.urls serves the REST API, which needs Django REST framework: install "
        "django-priority-taskqueue[api], or leave queue_app.urls out of your URLs."
    ) from error

from queue_app.api.base import ApiView, NotFoundView, route
from queue_app.api.browsable import PageRenderer
from queue_app.api.views import dead_letters, docs, events, health, limits, metrics, operations, queues, tasks
from queue_app.api.views.status_page import StatusView
from queue_app.core import rooms

ApiView.page_class = PageRenderer


app_name = "queue_app"
urlpatterns = [
    route("api/v1/tasks", tasks.TaskListView, "task-list"),
    route("api/v1/tasks/bulk", tasks.TaskBulkView, "task-bulk"),
    route("api/v1/tasks/bulk-actions", operations.BulkActionView, "task-bulk-actions"),
    route("api/v1/tasks/count", tasks.TaskCountView, "task-count"),
    route("api/v1/tasks/export", tasks.TaskExportView, "task-export"),
    route("api/v1/tasks/<task_id>", tasks.TaskView, "task"),
    route("api/v1/tasks/<task_id>/explain", tasks.TaskExplainView, "task-explain"),
    route("api/v1/tasks/<task_id>/decrypt", tasks.TaskDecryptView, "task-decrypt"),
    route("api/v1/tasks/<task_id>/priority", tasks.TaskPriorityView, "task-priority"),
    route("api/v1/tasks/<task_id>/signal", tasks.TaskSignalView, "task-signal"),
    route("api/v1/queue/stats", queues.StatsView, "queue-stats"),
    route("api/v1/queues", queues.QueueListView, "queue-list"),
    route("api/v1/queues/<name>", queues.QueueView, "queue"),
    route("api/v1/queues/<name>/stats", queues.QueueStatsView, "one-queue-stats"),
    route("api/v1/queues/<name>/pause", queues.QueuePauseView, "queue-pause"),
    route("api/v1/queues/<name>/resume", queues.QueueResumeView, "queue-resume"),
    route("api/v1/autoscale/<name>", queues.AutoscaleView, "autoscale"),
    route("api/v1/policies", queues.PolicyListView, "policy-list"),
    route("api/v1/policies/<band>", queues.PolicyView, "policy"),
    route("api/v1/workers", queues.WorkerListView, "worker-list"),
    route("api/v1/admin/tasks", tasks.AdminTaskListView, "admin-task-list"),
    route("api/v1/admin/tasks/<task_id>/priority", tasks.AdminTaskPriorityView, "admin-task-priority"),
    route("api/v1/admin/queue", queues.AdminQueueView, "admin-queue"),
    route("api/v1/dlq", dead_letters.DeadLetterListView, "dead-letter-list"),
    route("api/v1/dlq/replay", dead_letters.ReplayManyView, "dead-letters-replay"),
    route("api/v1/dlq/discard", dead_letters.DiscardManyView, "dead-letters-discard"),
    route("api/v1/dlq/<letter_id>", dead_letters.DeadLetterView, "dead-letter"),
    route("api/v1/dlq/<letter_id>/replay", dead_letters.ReplayView, "dead-letter-replay"),
    route("api/v1/events", events.EventView, "events"),
    route("api/v1/audit", operations.AuditView, "audit-list"),
    route("api/v1/operations", operations.OperationListView, "operation-list"),
    route("api/v1/operations/<operation_id>", operations.OperationView, "operation"),
    route("api/v1/limits", limits.LimitListView, "limit-list"),
    route("api/v1/limits/pause", limits.PauseTypeOrKeyView, "limits-pause"),
    route("api/v1/limits/resume", limits.ResumeTypeOrKeyView, "limits-resume"),
    route("api/v1/limits/everything", limits.OverallLimitsView, "limits-everything"),
    route("api/v1/limits/<limit_id>", limits.LimitView, "limit"),
    *(address for addresses in rooms.each("addresses") for address in addresses),
    re_path(r"^task-status/(?P<key>[0-9a-f-]+:[A-Za-z0-9_-]+)/?\Z", StatusView.as_view(), name="task-status"),
    route("api/schema", docs.SchemaView, "schema"),
    route("api/docs", docs.DocsView, "docs"),
    route("healthz", health.LiveView, "live"),
    route("readyz", health.ReadyView, "ready"),
    route("metrics", metrics.MetricsView, "metrics"),
    # Only below these names: the project may have an api/v1/ of its own.
    re_path(
        r"^(?:api/v1/(?:tasks|queues?|autoscale|dlq|operations|policies|workers|admin|events|limits|schedules|workflows|audit)|internal/workers)/",
        NotFoundView.as_view(),
        name="missing",
    ),
]
