"""Every endpoint with its answers, its errors and an example; what requests may hold is said by their serializers."""

from typing import Any, Final

from queue_app.api import representation
from queue_app.api.internal import views as workers
from queue_app.api.schema.components import (
    ANYTHING,
    BAND,
    COMPONENTS,
    COUNT,
    COUNTS,
    FLAG,
    FORMER,
    IDS,
    NUMBER,
    STATUS,
    TEXT,
    TEXTS,
    answer,
    columns,
    component,
    enum,
    listed,
    maybe,
    page,
    record,
    ref,
)
from queue_app.api.schema.endpoint import KEY, EndpointSchema, header
from queue_app.api.serializers.base import INNER, Schema, shared
from queue_app.api.serializers.control import LimitEdit, OverallEdit
from queue_app.api.serializers.kinds import NAME, OBJECT, TIME, UUID
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
from queue_app.diagnose.health import PARTS
from queue_app.models import Limit, RuntimeSettings, ScheduleTick, Task
from queue_app.models.limit import SCOPES
from queue_app.services.control.pause import EVERYTHING

_ETAG: Final = header("If-Match", "The ETag of the version that the edit is based on, or *.", required=True)
_PREVIEW: Final = answer("Preview", {"dry_run": FLAG, "count": COUNT, "sample": listed(UUID)})
_STORED: Final = answer("StoredTask", {"id": UUID, "task_id": UUID, "status": STATUS, "replayed": FLAG})
_BULK: Final = answer("StoredTasks", {"count": COUNT, "tasks": listed(_STORED)})
_MOVED: Final = answer(
    "MovedTask", {"id": UUID, "task_id": UUID, "status": STATUS, "priority": BAND, "queue_position": maybe(COUNT)}
)
_SENT: Final = {"id": COUNT, "signal_id": FORMER | COUNT, "awaited": FLAG}
_DEMAND: Final = answer(
    "Demand",
    {"queue": NAME}
    | dict.fromkeys(("queued", "runnable", "active_slots", "desired_slots", "desired_workers"), COUNT)
    | dict.fromkeys(("mean_seconds", "backlog_seconds"), NUMBER),
)
_ANY_SCOPE: Final = enum([EVERYTHING, *SCOPES])
_PACE: Final = shared(LimitEdit).schema()["properties"]
_LIMIT: Final = answer("Limit", columns(Limit, representation.limit, **_PACE))
_FIELDS: Final = {name: rule for name, rule in shared(OverallEdit).schema()["properties"].items() if name != "reason"}
_OVERALL: Final = answer("OverallLimits", columns(RuntimeSettings, representation.overall, **_FIELDS))
_PAUSED: Final = columns(Limit, representation.PAUSE)
_PAUSE: Final = answer("PauseState", {"scope": _ANY_SCOPE, "name": maybe(TEXT), **_PAUSED})
_DELETED: Final = answer("Deleted", {"id": COUNT, "deleted": FLAG})
component("Tick", record(columns(ScheduleTick, representation.tick) | {"status": maybe(STATUS)}))
_WORKFLOW: Final[dict[str, Schema]] = COMPONENTS["Workflow"]["properties"]
_STEERED: Final = answer("SteeredWorkflow", _WORKFLOW | {"changed": COUNT})
_GROUP: Final = answer(
    "WorkflowGroup",
    {"number": COUNT, "name": TEXT, "task_type": TEXT, "tasks": COUNT, "task_id": maybe(UUID), "states": COUNTS,
     "after": TEXTS, "compensation": FLAG, "critical": FLAG, "started_at": maybe(TIME), "finished_at": maybe(TIME)},
)  # fmt: skip
_GRAPH: Final = answer(
    "WorkflowGraph", {"tasks": COUNT, "edges": COUNT, "groups": listed(_GROUP), "holding": listed(UUID)}
)
_READY: Final = answer("Readiness", {"status": TEXT, **dict.fromkeys(PARTS, TEXT), "reasons": listed(TEXT)})
_REASON: Final = answer("Reason", {"code": TEXT, "text": TEXT, "blocks": FLAG, "until": maybe(TIME), "details": OBJECT})
_EXPLANATION: Final = answer(
    "Explanation",
    {"id": UUID, "task_id": UUID, "status": STATUS, "blocked": FLAG, "next_start": maybe(TIME)}
    | {"reasons": listed(_REASON)},
)
_DECRYPTED: Final = answer(
    "DecryptedTask",
    {"args": ANYTHING, "parameters": OBJECT, "result": ANYTHING, "steps": OBJECT, "signals": listed(OBJECT)}
    | {"attempts": listed(OBJECT), "logs": listed(OBJECT)},
)
_TASK: Final = answer(
    "ClaimedTask",
    columns(
        Task, representation.CLAIMED,
        task_id=UUID, priority=BAND, required_capabilities=listed(TEXT), args=listed(ANYTHING), parameters=OBJECT,
        timeout_seconds=NUMBER, retry_count=COUNT, max_retries=COUNT, queued_at=TIME,
        started_at=TIME, trace_id=TEXT, traceparent=TEXT, metadata=maybe(OBJECT), start_within_ms=maybe(COUNT),
    ),
)  # fmt: skip
_REGISTERED: Final = {
    "id": UUID, "worker_id": UUID, "queues": listed(TEXT), "capabilities": listed(TEXT), "heartbeat_seconds": NUMBER,
    "missed_heartbeats": COUNT, "poll_interval_ms": COUNT, "unserved": listed(TEXT),
}  # fmt: skip
_HEARTBEAT_REPLY: Final = {
    "acknowledged": FLAG, "status": TEXT, "cancel": listed(UUID), "cancel_requested": FLAG, "lost": listed(UUID),
    "drain": FLAG, "unserved": listed(TEXT),
}  # fmt: skip
_REPORTED: Final = {
    "accepted": {"anyOf": [FLAG, listed(UUID)]}, "replayed": {"anyOf": [FLAG, listed(UUID)]},
    "refused": listed(answer("RefusedResult", {"task_id": UUID, "attempt": COUNT, "code": TEXT})),
}  # fmt: skip
_STEP: Final = answer(
    "StoredStep",
    {"position": COUNT, "name": TEXT, "kind": TEXT, "value": ANYTHING, "until": maybe(TIME), "signal": TEXT}
    | {"is_done": FLAG},
)
_EVENTS: Final = component("EventStream", TEXT)
_CANCELLED: Final = {"cancel_requested": FLAG, "deleted": FLAG}
_DISCARDED: Final = answer("Discarded", {"discarded": COUNT, "remaining": COUNT})
_STATUS: Final = answer("Acknowledgement", {"status": TEXT})

ENDPOINTS: Final[dict[tuple[Any, str], EndpointSchema]] = {
    (tasks.TaskListView, "GET"): EndpointSchema(id="list_tasks", answer=page("Task")),
    (tasks.TaskListView, "POST"): EndpointSchema(
        id="submit_task", answer=ref("Submitted"), status=201, also=(200, ref("Submitted")), parameters=(KEY,),
        problems=(409,),
    ),
    (tasks.TaskBulkView, "POST"): EndpointSchema(
        id="submit_tasks", answer=_BULK, status=201, also=(200, _BULK), parameters=(KEY,), problems=(409,),
    ),
    (operations.BulkActionView, "POST"): EndpointSchema(
        id="act_on_tasks", answer=ref("Operation"), status=202, also=(200, _PREVIEW), tag="tasks",
    ),
    (tasks.TaskCountView, "GET"): EndpointSchema(
        id="count_tasks", answer=answer("TaskCount", {"count": COUNT, "capped": FLAG}),
    ),
    (tasks.TaskExportView, "GET"): EndpointSchema(
        id="export_tasks", answer=component("TaskExport", TEXT), media_type="application/x-ndjson",
        other_media_type="text/csv",
    ),
    (tasks.TaskView, "GET"): EndpointSchema(id="get_task", answer=ref("TaskDetail")),
    (tasks.TaskView, "DELETE"): EndpointSchema(
        id="cancel_task",
        answer=answer("CancelledTask", {"id": UUID, "task_id": UUID, "status": STATUS} | _CANCELLED), problems=(409,),
    ),
    (tasks.TaskExplainView, "GET"): EndpointSchema(id="explain_task", answer=_EXPLANATION),
    (tasks.TaskDecryptView, "POST"): EndpointSchema(id="decrypt_task", answer=_DECRYPTED, problems=(409, 503)),
    (tasks.TaskPriorityView, "PUT"): EndpointSchema(id="reprioritise_task", answer=_MOVED, problems=(409,)),
    (tasks.TaskSignalView, "POST"): EndpointSchema(
        id="signal_task", answer=answer("TaskSignal", _SENT | {"task_id": UUID}), status=201, problems=(409,),
    ),
    (tasks.AdminTaskListView, "GET"): EndpointSchema(id="list_all_tasks", answer=page("Task"), tag="staff"),
    (tasks.AdminTaskPriorityView, "PUT"): EndpointSchema(
        id="reprioritise_any_task", answer=_MOVED, problems=(409,), tag="staff",
    ),
    (events.EventView, "GET"): EndpointSchema(
        id="stream_events", answer=_EVENTS, media_type="text/event-stream", problems=(501,),
    ),
    (queues.StatsView, "GET"): EndpointSchema(id="get_stats", answer=ref("Stats")),
    (queues.QueueListView, "GET"): EndpointSchema(id="list_queues", answer=page("Queue")),
    (queues.QueueView, "GET"): EndpointSchema(id="get_queue", answer=ref("Queue")),
    (queues.QueueView, "PATCH"): EndpointSchema(
        id="edit_queue", answer=ref("Queue"), parameters=(_ETAG,), problems=(412, 428),
    ),
    (queues.QueueStatsView, "GET"): EndpointSchema(id="get_queue_stats", answer=ref("QueueStats")),
    (queues.AutoscaleView, "GET"): EndpointSchema(id="get_demand", answer=_DEMAND),
    (queues.QueuePauseView, "POST"): EndpointSchema(id="pause_queue", answer=ref("Queue")),
    (queues.QueueResumeView, "POST"): EndpointSchema(id="resume_queue", answer=ref("Queue")),
    (queues.PolicyListView, "GET"): EndpointSchema(id="list_policies", answer=page("Policy")),
    (queues.PolicyView, "GET"): EndpointSchema(id="get_policy", answer=ref("Policy")),
    (queues.PolicyView, "PATCH"): EndpointSchema(
        id="edit_policy", answer=ref("Policy"), parameters=(_ETAG,), problems=(412, 428),
    ),
    (queues.AdminQueueView, "GET"): EndpointSchema(id="get_whole_queue", answer=ref("AdminQueue"), tag="staff"),
    (queues.WorkerListView, "GET"): EndpointSchema(id="list_workers", answer=page("Worker"), tag="staff"),
    (dead_letters.DeadLetterListView, "GET"): EndpointSchema(id="list_dead_letters", answer=page("DeadLetter")),
    (dead_letters.DeadLetterView, "GET"): EndpointSchema(id="get_dead_letter", answer=ref("DeadLetterDetail")),
    (dead_letters.DeadLetterView, "DELETE"): EndpointSchema(
        id="discard_dead_letter", answer=answer("DiscardedDeadLetter", {"id": UUID, "task_id": UUID, "state": TEXT}),
        problems=(409,),
    ),
    (dead_letters.ReplayView, "POST"): EndpointSchema(
        id="replay_dead_letter", problems=(409,),
        answer=answer(
            "ReplayedDeadLetter", {"id": UUID, "task_id": UUID, "status": TEXT, "queue_position": maybe(COUNT)}
        ),
    ),
    (dead_letters.ReplayManyView, "POST"): EndpointSchema(
        id="replay_dead_letters", answer=ref("Operation"), status=202, also=(200, _PREVIEW),
    ),
    (dead_letters.DiscardManyView, "POST"): EndpointSchema(
        id="discard_dead_letters", answer=component("DiscardOrPreview", {"anyOf": [_DISCARDED, _PREVIEW]}),
    ),
    (operations.OperationListView, "GET"): EndpointSchema(id="list_operations", answer=page("Operation")),
    (operations.AuditView, "GET"): EndpointSchema(id="list_audit_entries", answer=page("AuditEntry"), tag="staff"),
    (operations.OperationView, "GET"): EndpointSchema(id="get_operation", answer=ref("Operation")),
    (operations.OperationView, "DELETE"): EndpointSchema(
        id="cancel_operation", answer=ref("Operation"), problems=(409,)
    ),
    (limits.LimitListView, "GET"): EndpointSchema(id="list_limits", answer=page("Limit")),
    (limits.LimitListView, "POST"): EndpointSchema(id="add_limit", answer=_LIMIT, status=201),
    (limits.LimitView, "GET"): EndpointSchema(id="get_limit", answer=_LIMIT),
    (limits.LimitView, "PATCH"): EndpointSchema(id="edit_limit", answer=_LIMIT),
    (limits.LimitView, "DELETE"): EndpointSchema(id="lift_limit", answer=_DELETED),
    (limits.OverallLimitsView, "GET"): EndpointSchema(id="get_overall_limits", answer=_OVERALL),
    (limits.OverallLimitsView, "PATCH"): EndpointSchema(id="edit_overall_limits", answer=_OVERALL),
    (limits.PauseTypeOrKeyView, "POST"): EndpointSchema(id="pause", answer=_PAUSE),
    (limits.ResumeTypeOrKeyView, "POST"): EndpointSchema(id="resume", answer=_PAUSE, problems=(404,)),
    (schedules.ScheduleListView, "GET"): EndpointSchema(id="list_schedules", answer=page("Schedule")),
    (schedules.ScheduleListView, "POST"): EndpointSchema(id="add_schedule", answer=ref("Schedule"), status=201),
    (schedules.ScheduleView, "GET"): EndpointSchema(id="get_schedule", answer=ref("Schedule")),
    (schedules.ScheduleView, "PATCH"): EndpointSchema(
        id="edit_schedule", answer=ref("Schedule"), parameters=(_ETAG,), problems=(412, 428),
    ),
    (schedules.ScheduleView, "DELETE"): EndpointSchema(
        id="delete_schedule", answer=_DELETED
    ),
    (schedules.SchedulePauseView, "POST"): EndpointSchema(id="pause_schedule", answer=ref("Schedule")),
    (schedules.ScheduleResumeView, "POST"): EndpointSchema(id="resume_schedule", answer=ref("Schedule")),
    (schedules.RunView, "POST"): EndpointSchema(
        id="run_schedule", answer=answer("StartedTick", {"id": UUID, "task_id": UUID, "instant": TIME}), status=201,
    ),
    (schedules.BackfillView, "POST"): EndpointSchema(
        id="backfill_schedule", answer=ref("Operation"), status=202,
        also=(200, answer("BackfillPreview", {"dry_run": FLAG, "count": COUNT, "sample": listed(TIME)})),
    ),
    (schedules.TickListView, "GET"): EndpointSchema(
        id="list_ticks", answer=page("Tick", next_before=maybe(FORMER | TEXT)),
    ),
    (workflows.WorkflowListView, "GET"): EndpointSchema(
        id="list_workflows", answer=page("Workflow", next_before=maybe(FORMER | TEXT)),
    ),
    (workflows.WorkflowListView, "POST"): EndpointSchema(
        id="submit_workflow", answer=answer("SubmittedWorkflow", _WORKFLOW | {"tasks": IDS}), status=201,
        problems=(409, 413, 429),
    ),
    (workflows.WorkflowView, "GET"): EndpointSchema(id="get_workflow", answer=ref("Workflow")),
    (workflows.GraphView, "GET"): EndpointSchema(id="get_workflow_graph", answer=_GRAPH),
    (workflows.CancelView, "POST"): EndpointSchema(id="cancel_workflow", answer=_STEERED, problems=(409,)),
    (workflows.StopUndoingView, "POST"): EndpointSchema(
        id="stop_undoing_workflow", answer=_STEERED, problems=(409,),
    ),
    (workflows.SkipView, "POST"): EndpointSchema(id="skip_workflow_task", answer=_STEERED, problems=(409,)),
    (workflows.WorkflowPauseView, "POST"): EndpointSchema(id="pause_workflow", answer=_STEERED, problems=(409,)),
    (workflows.WorkflowResumeView, "POST"): EndpointSchema(id="resume_workflow", answer=_STEERED, problems=(409,)),
    (workflows.RetryView, "POST"): EndpointSchema(id="retry_workflow", answer=_STEERED, problems=(409,)),
    (workflows.PriorityView, "PUT"): EndpointSchema(id="reprioritise_workflow", answer=_STEERED),
    (workflow_events.WorkflowEventView, "GET"): EndpointSchema(
        id="stream_workflow_events", answer=_EVENTS, media_type="text/event-stream", problems=(501,),
    ),
    (workflows.SignalView, "POST"): EndpointSchema(
        id="signal_workflow", answer=answer("WorkflowSignal", _SENT | {"workflow_id": UUID}), status=201,
        problems=(409,),
    ),
    (health.LiveView, "GET"): EndpointSchema(id="live", answer=_STATUS),
    (health.ReadyView, "GET"): EndpointSchema(id="ready", answer=_READY, also=(503, _READY)),
    (workers.RegisterView, "POST"): EndpointSchema(
        id="register_worker", answer=answer("RegisteredWorker", _REGISTERED), status=201,
    ),
    (workers.PollView, "POST"): EndpointSchema(
        id="poll", problems=(409,),
        answer=answer(
            "ClaimedTasks",
            {"tasks": listed(_TASK), "poll_interval_ms": COUNT, "drain": FLAG, "notified": FLAG}
            | {"next_start_ms": maybe(COUNT), "loading": FLAG}
        ),
    ),
    (workers.WaitView, "POST"): EndpointSchema(
        id="wait_for_call", answer=answer("WorkerCall", {"called": FLAG, "notified": FLAG}), problems=(409,),
    ),
    (workers.ResultView, "POST"): EndpointSchema(
        id="report", answer=answer("ReportedResults", _REPORTED, optional=["replayed", "refused"]), problems=(409,),
    ),
    (workers.StepView, "POST"): EndpointSchema(
        id="steps", answer=answer("StoredSteps", {"steps": listed(_STEP)}), problems=(409,),
    ),
    (workers.HeartbeatView, "POST"): EndpointSchema(
        id="heartbeat", answer=answer("HeartbeatReply", _HEARTBEAT_REPLY), problems=(409,),
    ),
    (workers.DeregisterView, "POST"): EndpointSchema(
        id="deregister_worker", answer=_STATUS, problems=(409,),
    ),
}  # fmt: skip

_BODIES: Final = {
    found.body.__name__: found.body
    for view in {view for view, _ in ENDPOINTS}
    for found in view.accepted.values()
    if found.body
}
#: The schemas of bodies, and then of the objects inside of them, by the names of their serializers.
REQUESTS: Final = {name: shared(body).schema() for name, body in _BODIES.items()}
while missing := INNER.keys() - REQUESTS.keys():
    REQUESTS.update({name: shared(INNER[name]).schema() for name in missing})
