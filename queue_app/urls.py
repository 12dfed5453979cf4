"""URLs for a project to include at its root; each works with and without a slash at its end."""

from django.core.exceptions import ImproperlyConfigured
from django.urls import URLPattern, re_path

try:
    import rest_framework  # noqa: F401 - the views need it
except ModuleNotFoundError as error:
    raise ImproperlyConfigured(
        "queue_app.urls serves the REST API, which needs Django REST framework: install "
        "django-priority-taskqueue[api], or leave queue_app.urls out of your URLs."
    ) from error

from queue_app.api.base import ApiView, NotFoundView
from queue_app.api.browsable import PageRenderer
from queue_app.api.internal import views as workers
from queue_app.api.views import (
    dead_letters,
    docs,
    events,
    health,
    limits,
    metrics,
    operations,
    queues,
    schedules,
    tasks,
    workflow_events,
    workflows,
)
from queue_app.api.views.status_page import StatusView

ApiView.page_class = PageRenderer


def _route(path: str, view: type[ApiView], name: str) -> URLPattern:
    """Return the pattern of an address, in which ``<name>`` is an argument of the view."""
    pattern = path.replace("<", "(?P<").replace(">", ">[^/]+)")
    found: URLPattern = re_path(rf"^{pattern}/?\Z", view.as_view(), name=name)
    return found


app_name = "queue_app"
urlpatterns = [
    _route("api/v1/tasks", tasks.TaskListView, "task-list"),
    _route("api/v1/tasks/bulk", tasks.TaskBulkView, "task-bulk"),
    _route("api/v1/tasks/bulk-actions", operations.BulkActionView, "task-bulk-actions"),
    _route("api/v1/tasks/count", tasks.TaskCountView, "task-count"),
    _route("api/v1/tasks/export", tasks.TaskExportView, "task-export"),
    _route("api/v1/tasks/<task_id>", tasks.TaskView, "task"),
    _route("api/v1/tasks/<task_id>/explain", tasks.TaskExplainView, "task-explain"),
    _route("api/v1/tasks/<task_id>/decrypt", tasks.TaskDecryptView, "task-decrypt"),
    _route("api/v1/tasks/<task_id>/priority", tasks.TaskPriorityView, "task-priority"),
    _route("api/v1/tasks/<task_id>/signal", tasks.TaskSignalView, "task-signal"),
    _route("api/v1/queue/stats", queues.StatsView, "queue-stats"),
    _route("api/v1/queues", queues.QueueListView, "queue-list"),
    _route("api/v1/queues/<name>", queues.QueueView, "queue"),
    _route("api/v1/queues/<name>/stats", queues.QueueStatsView, "one-queue-stats"),
    _route("api/v1/queues/<name>/pause", queues.QueuePauseView, "queue-pause"),
    _route("api/v1/queues/<name>/resume", queues.QueueResumeView, "queue-resume"),
    _route("api/v1/autoscale/<name>", queues.AutoscaleView, "autoscale"),
    _route("api/v1/policies", queues.PolicyListView, "policy-list"),
    _route("api/v1/policies/<band>", queues.PolicyView, "policy"),
    _route("api/v1/workers", queues.WorkerListView, "worker-list"),
    _route("api/v1/admin/tasks", tasks.AdminTaskListView, "admin-task-list"),
    _route("api/v1/admin/tasks/<task_id>/priority", tasks.AdminTaskPriorityView, "admin-task-priority"),
    _route("api/v1/admin/queue", queues.AdminQueueView, "admin-queue"),
    _route("api/v1/dlq", dead_letters.DeadLetterListView, "dead-letter-list"),
    _route("api/v1/dlq/replay", dead_letters.ReplayManyView, "dead-letters-replay"),
    _route("api/v1/dlq/discard", dead_letters.DiscardManyView, "dead-letters-discard"),
    _route("api/v1/dlq/<letter_id>", dead_letters.DeadLetterView, "dead-letter"),
    _route("api/v1/dlq/<letter_id>/replay", dead_letters.ReplayView, "dead-letter-replay"),
    _route("api/v1/events", events.EventView, "events"),
    _route("api/v1/audit", operations.AuditView, "audit-list"),
    _route("api/v1/operations", operations.OperationListView, "operation-list"),
    _route("api/v1/operations/<operation_id>", operations.OperationView, "operation"),
    _route("api/v1/limits", limits.LimitListView, "limit-list"),
    _route("api/v1/limits/pause", limits.PauseTypeOrKeyView, "limits-pause"),
    _route("api/v1/limits/resume", limits.ResumeTypeOrKeyView, "limits-resume"),
    _route("api/v1/limits/everything", limits.OverallLimitsView, "limits-everything"),
    _route("api/v1/limits/<limit_id>", limits.LimitView, "limit"),
    _route("api/v1/schedules", schedules.ScheduleListView, "schedule-list"),
    _route("api/v1/schedules/<schedule_id>", schedules.ScheduleView, "schedule"),
    _route("api/v1/schedules/<schedule_id>/pause", schedules.SchedulePauseView, "schedule-pause"),
    _route("api/v1/schedules/<schedule_id>/resume", schedules.ScheduleResumeView, "schedule-resume"),
    _route("api/v1/schedules/<schedule_id>/run", schedules.RunView, "schedule-run"),
    _route("api/v1/schedules/<schedule_id>/backfill", schedules.BackfillView, "schedule-backfill"),
    _route("api/v1/schedules/<schedule_id>/ticks", schedules.TickListView, "schedule-ticks"),
    _route("api/v1/workflows", workflows.WorkflowListView, "workflow-list"),
    _route("api/v1/workflows/<workflow_id>", workflows.WorkflowView, "workflow"),
    _route("api/v1/workflows/<workflow_id>/graph", workflows.GraphView, "workflow-graph"),
    _route("api/v1/workflows/<workflow_id>/cancel", workflows.CancelView, "workflow-cancel"),
    _route("api/v1/workflows/<workflow_id>/stop-undoing", workflows.StopUndoingView, "workflow-stop-undoing"),
    _route("api/v1/workflows/<workflow_id>/skip", workflows.SkipView, "workflow-skip"),
    _route("api/v1/workflows/<workflow_id>/pause", workflows.WorkflowPauseView, "workflow-pause"),
    _route("api/v1/workflows/<workflow_id>/resume", workflows.WorkflowResumeView, "workflow-resume"),
    _route("api/v1/workflows/<workflow_id>/retry", workflows.RetryView, "workflow-retry"),
    _route("api/v1/workflows/<workflow_id>/priority", workflows.PriorityView, "workflow-priority"),
    _route("api/v1/workflows/<workflow_id>/events", workflow_events.WorkflowEventView, "workflow-events"),
    _route("api/v1/workflows/<workflow_id>/signal", workflows.SignalView, "workflow-signal"),
    re_path(r"^task-status/(?P<key>[0-9a-f-]+:[A-Za-z0-9_-]+)/?\Z", StatusView.as_view(), name="task-status"),
    _route("api/schema", docs.SchemaView, "schema"),
    _route("api/docs", docs.DocsView, "docs"),
    _route("internal/workers/register", workers.RegisterView, "worker-register"),
    _route("internal/workers/<worker_id>/poll", workers.PollView, "worker-poll"),
    _route("internal/workers/<worker_id>/wait", workers.WaitView, "worker-wait"),
    _route("internal/workers/<worker_id>/result", workers.ResultView, "worker-result"),
    _route("internal/workers/<worker_id>/steps", workers.StepView, "worker-steps"),
    _route("internal/workers/<worker_id>/heartbeat", workers.HeartbeatView, "worker-heartbeat"),
    _route("internal/workers/<worker_id>/deregister", workers.DeregisterView, "worker-deregister"),
    _route("healthz", health.LiveView, "live"),
    _route("readyz", health.ReadyView, "ready"),
    _route("metrics", metrics.MetricsView, "metrics"),
    # Only below these names: the project may have an api/v1/ of its own.
    re_path(
        r"^(?:api/v1/(?:tasks|queues?|autoscale|dlq|operations|policies|workers|admin|events|limits|schedules|workflows|audit)|internal/workers)/",
        NotFoundView.as_view(),
        name="missing",
    ),
]
