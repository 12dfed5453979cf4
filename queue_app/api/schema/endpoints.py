"""Every endpoint with its answers, its errors and an example; what requests may hold is said by their serializers."""

from typing import Any, Final

from queue_app.api import representation
from queue_app.api.internal import views as workers
from queue_app.api.schema.components import (
    ANYTHING,
    BAND,
    COUNT,
    FLAG,
    NUMBER,
    STATUS,
    TEXT,
    columns,
    enum,
    listed,
    maybe,
    page,
    record,
    ref,
    results,
)
from queue_app.api.schema.endpoint import EndpointSchema, header
from queue_app.api.serializers.base import shared
from queue_app.api.serializers.control import LimitEdit, OverallEdit
from queue_app.api.serializers.kinds import NAME, OBJECT, TIME, UUID
from queue_app.api.serializers.tasks import KEY_HEADER
from queue_app.api.views import (
    dead_letters,
    events,
    health,
    limits,
    operations,
    queues,
    schedules,
    tasks,
    workflow_events,
    workflows,
)
from queue_app.models import Limit, RuntimeSettings, ScheduleTick, Task, Workflow
from queue_app.models.limit import SCOPES
from queue_app.services.control.pause import EVERYTHING
from queue_app.services.read.health import PARTS

_ETAG: Final = header("If-Match", "The ETag of the version that the edit is based on, or *.", required=True)
_KEY: Final = header(KEY_HEADER, "A repeated request with the same key stores nothing new.")
_PREVIEW: Final = record({"dry_run": FLAG, "count": COUNT, "sample": listed(UUID)})
_BULK: Final = record({"count": COUNT, "tasks": listed(record({"task_id": UUID, "status": STATUS, "replayed": FLAG}))})
_MOVED: Final = record({"task_id": UUID, "status": STATUS, "priority": BAND, "queue_position": maybe(COUNT)})
_SIGNALLED: Final = record({"signal_id": COUNT, "task_id": UUID, "awaited": FLAG})
_DEMAND: Final = record(
    {"queue": NAME}
    | dict.fromkeys(("queued", "runnable", "active_slots", "desired_slots", "desired_workers"), COUNT)
    | dict.fromkeys(("mean_seconds", "backlog_seconds"), NUMBER)
)
_ANY_SCOPE: Final = enum([EVERYTHING, *SCOPES])
_PACE: Final = shared(LimitEdit).schema()["properties"]
_LIMIT: Final = record(columns(Limit, representation.limit, **_PACE))
_FIELDS: Final = {name: rule for name, rule in shared(OverallEdit).schema()["properties"].items() if name != "reason"}
_OVERALL: Final = record(columns(RuntimeSettings, representation.overall, **_FIELDS))
_PAUSED: Final = columns(Limit, representation.PAUSE)
_PAUSE: Final = record({"scope": _ANY_SCOPE, "name": maybe(TEXT), **_PAUSED})
_TICK: Final = record(columns(ScheduleTick, representation.tick) | {"status": maybe(STATUS)})
_WORKFLOW: Final = columns(Workflow, representation.WORKFLOW)
_STEERED: Final = record(_WORKFLOW | {"changed": COUNT})
_GROUP: Final = record(
    {"number": COUNT, "name": TEXT, "task_type": TEXT, "tasks": COUNT, "task_id": maybe(UUID), "states": OBJECT,
     "after": OBJECT, "compensation": FLAG, "critical": FLAG, "started_at": maybe(TIME), "finished_at": maybe(TIME)}
)  # fmt: skip
_GRAPH: Final = record({"tasks": COUNT, "edges": COUNT, "groups": listed(_GROUP), "holding": listed(UUID)})
_READY: Final = record({"status": TEXT, **dict.fromkeys(PARTS, TEXT), "reasons": listed(TEXT)})
_TASK: Final = columns(
    Task, representation.CLAIMED,
    task_id=UUID, priority=BAND, required_capabilities=listed(TEXT), args=listed(ANYTHING), parameters=OBJECT,
    timeout_seconds=NUMBER, retry_count=COUNT, max_retries=COUNT, retry_delay=NUMBER, queued_at=TIME, started_at=TIME,
    trace_id=TEXT, traceparent=TEXT, metadata=maybe(OBJECT),
)  # fmt: skip
_REGISTERED: Final = {
    "worker_id": UUID, "queues": listed(TEXT), "capabilities": listed(TEXT), "heartbeat_seconds": NUMBER,
    "missed_heartbeats": COUNT, "poll_interval_ms": COUNT, "unserved": listed(TEXT),
}  # fmt: skip
_HEARTBEAT_REPLY: Final = {
    "acknowledged": FLAG, "status": TEXT, "cancel": listed(UUID), "cancel_requested": FLAG, "lost": listed(UUID),
    "drain": FLAG, "unserved": listed(TEXT),
}  # fmt: skip
_REPORTED: Final = {"accepted": ANYTHING, "replayed": ANYTHING, "refused": listed(OBJECT)}

ENDPOINTS: Final[dict[tuple[Any, str], EndpointSchema]] = {
    (tasks.TaskListView, "GET"): EndpointSchema(id="list_tasks", answer=page(ref("Task"))),
    (tasks.TaskListView, "POST"): EndpointSchema(
        id="submit_task", answer=ref("Submitted"), status=201, also=(200, ref("Submitted")), parameters=(_KEY,),
        problems=(409,),
    ),
    (tasks.TaskBulkView, "POST"): EndpointSchema(
        id="submit_tasks", answer=_BULK, status=201, also=(200, _BULK), parameters=(_KEY,), problems=(409,),
    ),
    (operations.BulkActionView, "POST"): EndpointSchema(
        id="act_on_tasks", answer=ref("Operation"), status=202, also=(200, _PREVIEW), tag="tasks",
    ),
    (tasks.TaskCountView, "GET"): EndpointSchema(id="count_tasks", answer=record({"count": COUNT, "capped": FLAG})),
    (tasks.TaskExportView, "GET"): EndpointSchema(
        id="export_tasks", answer=TEXT, media_type="application/x-ndjson", other_media_type="text/csv",
    ),
    (tasks.TaskView, "GET"): EndpointSchema(id="get_task", answer=ref("TaskDetail")),
    (tasks.TaskView, "DELETE"): EndpointSchema(
        id="cancel_task",
        answer=record({"task_id": UUID, "status": STATUS, "cancel_requested": FLAG, "deleted": FLAG}), problems=(409,),
    ),
    (tasks.TaskExplainView, "GET"): EndpointSchema(id="explain_task", answer=OBJECT),
    (tasks.TaskDecryptView, "POST"): EndpointSchema(id="decrypt_task", answer=OBJECT, problems=(409, 503)),
    (tasks.TaskPriorityView, "PUT"): EndpointSchema(id="reprioritise_task", answer=_MOVED, problems=(409,)),
    (tasks.TaskSignalView, "POST"): EndpointSchema(id="signal_task", answer=_SIGNALLED, status=201, problems=(409,)),
    (tasks.AdminTaskListView, "GET"): EndpointSchema(id="list_all_tasks", answer=page(ref("Task")), tag="staff"),
    (tasks.AdminTaskPriorityView, "PUT"): EndpointSchema(
        id="reprioritise_any_task", answer=_MOVED, problems=(409,), tag="staff",
    ),
    (events.EventView, "GET"): EndpointSchema(
        id="stream_events", answer=TEXT, media_type="text/event-stream", problems=(501,),
    ),
    (queues.StatsView, "GET"): EndpointSchema(id="get_stats", answer=ref("Stats")),
    (queues.QueueListView, "GET"): EndpointSchema(id="list_queues", answer=results(ref("Queue"))),
    (queues.QueueView, "GET"): EndpointSchema(id="get_queue", answer=ref("Queue")),
    (queues.QueueView, "PATCH"): EndpointSchema(
        id="edit_queue", answer=ref("Queue"), parameters=(_ETAG,), problems=(412, 428),
    ),
    (queues.QueueStatsView, "GET"): EndpointSchema(id="get_queue_stats", answer=ref("QueueStats")),
    (queues.AutoscaleView, "GET"): EndpointSchema(id="get_demand", answer=_DEMAND),
    (queues.QueuePauseView, "POST"): EndpointSchema(id="pause_queue", answer=ref("Queue")),
    (queues.QueueResumeView, "POST"): EndpointSchema(id="resume_queue", answer=ref("Queue")),
    (queues.PolicyListView, "GET"): EndpointSchema(id="list_policies", answer=results(ref("Policy"))),
    (queues.PolicyView, "GET"): EndpointSchema(id="get_policy", answer=ref("Policy")),
    (queues.PolicyView, "PATCH"): EndpointSchema(
        id="edit_policy", answer=ref("Policy"), parameters=(_ETAG,), problems=(412, 428),
    ),
    (queues.AdminQueueView, "GET"): EndpointSchema(id="get_whole_queue", answer=ref("AdminQueue"), tag="staff"),
    (queues.WorkerListView, "GET"): EndpointSchema(id="list_workers", answer=results(ref("Worker")), tag="staff"),
    (dead_letters.DeadLetterListView, "GET"): EndpointSchema(id="list_dead_letters", answer=page(ref("DeadLetter"))),
    (dead_letters.DeadLetterView, "GET"): EndpointSchema(id="get_dead_letter", answer=ref("DeadLetterDetail")),
    (dead_letters.DeadLetterView, "DELETE"): EndpointSchema(
        id="discard_dead_letter", answer=record({"id": UUID, "task_id": UUID, "state": TEXT}), problems=(409,),
    ),
    (dead_letters.ReplayView, "POST"): EndpointSchema(
        id="replay_dead_letter", problems=(409,),
        answer=record({"id": UUID, "task_id": UUID, "status": TEXT, "queue_position": maybe(COUNT)}),
    ),
    (dead_letters.ReplayManyView, "POST"): EndpointSchema(
        id="replay_dead_letters", answer=ref("Operation"), status=202, also=(200, _PREVIEW),
    ),
    (dead_letters.DiscardManyView, "POST"): EndpointSchema(id="discard_dead_letters", answer=ANYTHING),
    (operations.OperationView, "GET"): EndpointSchema(id="get_operation", answer=ref("Operation")),
    (operations.OperationView, "DELETE"): EndpointSchema(
        id="cancel_operation", answer=ref("Operation"), problems=(409,)
    ),
    (limits.LimitListView, "GET"): EndpointSchema(id="list_limits", answer=results(_LIMIT)),
    (limits.LimitListView, "POST"): EndpointSchema(id="add_limit", answer=_LIMIT, status=201),
    (limits.LimitView, "GET"): EndpointSchema(id="get_limit", answer=_LIMIT),
    (limits.LimitView, "PATCH"): EndpointSchema(id="edit_limit", answer=_LIMIT),
    (limits.LimitView, "DELETE"): EndpointSchema(id="lift_limit", answer=record({"id": COUNT, "deleted": FLAG})),
    (limits.OverallLimitsView, "GET"): EndpointSchema(id="get_overall_limits", answer=_OVERALL),
    (limits.OverallLimitsView, "PATCH"): EndpointSchema(id="edit_overall_limits", answer=_OVERALL),
    (limits.PauseTypeOrKeyView, "POST"): EndpointSchema(id="pause", answer=_PAUSE),
    (limits.ResumeTypeOrKeyView, "POST"): EndpointSchema(id="resume", answer=_PAUSE, problems=(404,)),
    (schedules.ScheduleListView, "GET"): EndpointSchema(id="list_schedules", answer=results(ref("Schedule"))),
    (schedules.ScheduleListView, "POST"): EndpointSchema(id="add_schedule", answer=ref("Schedule"), status=201),
    (schedules.ScheduleView, "GET"): EndpointSchema(id="get_schedule", answer=ref("Schedule")),
    (schedules.ScheduleView, "PATCH"): EndpointSchema(
        id="edit_schedule", answer=ref("Schedule"), parameters=(_ETAG,), problems=(412, 428),
    ),
    (schedules.ScheduleView, "DELETE"): EndpointSchema(
        id="delete_schedule", answer=record({"id": COUNT, "deleted": FLAG})
    ),
    (schedules.SchedulePauseView, "POST"): EndpointSchema(id="pause_schedule", answer=ref("Schedule")),
    (schedules.ScheduleResumeView, "POST"): EndpointSchema(id="resume_schedule", answer=ref("Schedule")),
    (schedules.RunView, "POST"): EndpointSchema(
        id="run_schedule", answer=record({"task_id": UUID, "instant": TIME}), status=201,
    ),
    (schedules.BackfillView, "POST"): EndpointSchema(
        id="backfill_schedule", answer=ref("Operation"), status=202,
        also=(200, record({"dry_run": FLAG, "count": COUNT, "sample": listed(TIME)})),
    ),
    (schedules.TickListView, "GET"): EndpointSchema(id="list_ticks", answer=results(_TICK, next_before=maybe(TIME))),
    (workflows.WorkflowListView, "GET"): EndpointSchema(
        id="list_workflows", answer=results(ref("Workflow"), next_before=maybe(UUID)),
    ),
    (workflows.WorkflowListView, "POST"): EndpointSchema(
        id="submit_workflow", answer=record(_WORKFLOW | {"tasks": OBJECT}), status=201, problems=(409, 413, 429),
    ),
    (workflows.WorkflowView, "GET"): EndpointSchema(id="get_workflow", answer=ref("Workflow")),
    (workflows.GraphView, "GET"): EndpointSchema(id="get_workflow_graph", answer=_GRAPH),
    (workflows.CancelView, "POST"): EndpointSchema(id="cancel_workflow", answer=_STEERED, problems=(409,)),
    (workflows.WorkflowPauseView, "POST"): EndpointSchema(id="pause_workflow", answer=_STEERED, problems=(409,)),
    (workflows.WorkflowResumeView, "POST"): EndpointSchema(id="resume_workflow", answer=_STEERED, problems=(409,)),
    (workflows.RetryView, "POST"): EndpointSchema(id="retry_workflow", answer=_STEERED, problems=(409,)),
    (workflows.PriorityView, "PUT"): EndpointSchema(id="reprioritise_workflow", answer=_STEERED),
    (workflow_events.WorkflowEventView, "GET"): EndpointSchema(
        id="stream_workflow_events", answer=TEXT, media_type="text/event-stream", problems=(501,),
    ),
    (workflows.SignalView, "POST"): EndpointSchema(
        id="signal_workflow", answer=record({"signal_id": COUNT, "workflow_id": UUID, "awaited": FLAG}), status=201,
        problems=(409,),
    ),
    (health.LiveView, "GET"): EndpointSchema(id="live", answer=record({"status": TEXT})),
    (health.ReadyView, "GET"): EndpointSchema(id="ready", answer=_READY, also=(503, _READY)),
    (workers.RegisterView, "POST"): EndpointSchema(id="register_worker", answer=record(_REGISTERED), status=201),
    (workers.PollView, "POST"): EndpointSchema(
        id="poll", problems=(409,),
        answer=record(
            {"tasks": listed(record(_TASK)), "poll_interval_ms": COUNT, "drain": FLAG, "notified": FLAG}
            | {"next_start_ms": maybe(COUNT), "loading": FLAG}
        ),
    ),
    (workers.WaitView, "POST"): EndpointSchema(
        id="wait_for_call", answer=record({"called": FLAG, "notified": FLAG}), problems=(409,),
    ),
    (workers.ResultView, "POST"): EndpointSchema(
        id="report", answer=record(_REPORTED, optional=["replayed", "refused"]), problems=(409,),
    ),
    (workers.StepView, "POST"): EndpointSchema(id="steps", answer=record({"steps": listed(OBJECT)}), problems=(409,)),
    (workers.HeartbeatView, "POST"): EndpointSchema(id="heartbeat", answer=record(_HEARTBEAT_REPLY), problems=(409,)),
    (workers.DeregisterView, "POST"): EndpointSchema(
        id="deregister_worker", answer=record({"status": TEXT}), problems=(409,),
    ),
}  # fmt: skip

#: The schemas of bodies, by the names of their serializers.
REQUESTS: Final = {
    found.body.__name__: shared(found.body).schema()
    for view in {view for view, _ in ENDPOINTS}
    for found in view.accepted.values()
    if found.body
}
