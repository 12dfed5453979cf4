"""Every endpoint with its request, its answers and its errors; long because it is one table."""

from typing import Any, Final

from queue_app.api import representation
from queue_app.api.internal import parsing
from queue_app.api.internal import views as workers
from queue_app.api.schema.components import (
    ANYTHING,
    BAND,
    BANDS,
    COUNT,
    DURATION,
    FLAG,
    NAME,
    NUMBER,
    OBJECT,
    STATUS,
    TEXT,
    TIME,
    TYPE_NAME,
    UUID,
    columns,
    enum,
    listed,
    maybe,
    page,
    record,
    ref,
    results,
    string,
    whole,
)
from queue_app.api.schema.endpoint import Endpoint, Parameter, header
from queue_app.api.selection import ACTIONS
from queue_app.api.task_filters import STATUS_NAMES, TIME_NAMES
from queue_app.api.views import dead_letters, events, health, limits, operations, queues, tasks
from queue_app.exceptions import THROTTLE_SCOPES
from queue_app.models import Limit, Task
from queue_app.models.dead_letter import STATE_NAMES
from queue_app.models.limit import Scope
from queue_app.models.limit_columns import MAX_CAP, MAX_RATE_SECONDS
from queue_app.services.control.pause import EVERYTHING
from queue_app.services.read.health import PARTS

_NEEDS: Final = "For tasks of other users it needs queue_app.view_payload, else the status is 403."
_TYPE: Final = Parameter("task_type", TYPE_NAME)
FILTERS: Final = (
    Parameter("status", enum(STATUS_NAMES), "pending: all tasks that have not ended."),
    Parameter("priority", BANDS, "The band of the task itself."),
    Parameter("effective_priority", BANDS, "The band to which the task has been promoted by now."),
    Parameter("queue", NAME),
    _TYPE,
    Parameter("capability", NAME, "A capability that the task requires."),
    Parameter("user", string(1, 150), "For callers who may see the tasks of all users."),
    Parameter("worker", UUID, "The worker that runs the task or ran it last."),
    Parameter("error", string(1, 200), f"Text in the error of an attempt. {_NEEDS}"),
    *(Parameter(name, TIME, "At or after." if name.endswith("after") else "Before.") for name in TIME_NAMES),
)
_LETTER_FILTERS: Final = (
    Parameter("queue", NAME),
    _TYPE,
    Parameter("exception_class", TYPE_NAME, "With or without its module."),
    Parameter("user", string(1, 150)),
    Parameter("text", TYPE_NAME, f"Text in the message. {_NEEDS}"),
    Parameter("died_after", TIME),
    Parameter("died_before", TIME),
)
_FIELDS: Final = Parameter("fields", TEXT, "Names of fields to return, separated by commas.")
_SIZE: Final = Parameter("page_size", whole(1, 200) | {"default": 50}, "Number of rows in a page.")
_LIST: Final = (*FILTERS, _FIELDS, _SIZE, Parameter("cursor", UUID, "next_cursor of the previous page."))
_ETAG: Final = header("If-Match", "The ETag of the version that the edit is based on, or *.", required=True)
_KEY: Final = header("Idempotency-Key", "A repeated request with the same key stores nothing new.")
_RATE: Final = {"type": "number", "exclusiveMinimum": 0}
_REASON: Final = string(None, 200)
_IDS: Final = listed(UUID, 1000)
_FILTER: Final = {
    "type": "object",
    "description": f"The same names as in the query of a list; parameters is an object. {_NEEDS}",
}
_ACTION: Final = {
    "action": enum(ACTIONS), "priority": BANDS, "ids": _IDS, "filter": _FILTER, "rate": _RATE, "limit": COUNT,
    "reason": _REASON, "dry_run": FLAG,
}  # fmt: skip
_SELECTION: Final = {
    "ids": _IDS, "filter": OBJECT, "limit": {"type": "integer", "minimum": 1}, "reason": _REASON, "dry_run": FLAG
}  # fmt: skip
_REPLAY: Final = _SELECTION | {"rate": _RATE, "stop_after_failures": COUNT}
_PREVIEW: Final = record({"dry_run": FLAG, "count": COUNT, "sample": listed(UUID)})
_BULK: Final = record({"count": COUNT, "tasks": listed(record({"task_id": UUID, "status": STATUS, "replayed": FLAG}))})
_MOVED: Final = record({"task_id": UUID, "status": STATUS, "priority": BAND, "queue_position": maybe(COUNT)})
_DEMAND: Final = record(
    {"queue": NAME}
    | dict.fromkeys(("queued", "runnable", "active_slots", "desired_slots", "desired_workers"), COUNT)
    | dict.fromkeys(("mean_seconds", "backlog_seconds"), NUMBER)
)
_ANY_SCOPE: Final = enum([EVERYTHING, *Scope])
_CAP: Final = maybe(whole(1, MAX_CAP))
_SECONDS: Final = maybe({"type": "number", "minimum": 0.001, "maximum": MAX_RATE_SECONDS})
_PACE: Final = {
    **dict.fromkeys(("max_concurrent", "rate_count", "rate_burst"), _CAP),
    **dict.fromkeys(("rate_seconds", "min_delay_seconds"), _SECONDS),
    "throttled_until": maybe(TIME),
}
_LIMIT: Final = record(columns(Limit, representation.limit.names, **_PACE))
_PAUSED: Final = columns(Limit, representation.PAUSE.names)
_PAUSE: Final = record({"scope": _ANY_SCOPE, "name": maybe(TEXT), **_PAUSED})
_WHAT: Final = {"scope": _ANY_SCOPE, "name": TYPE_NAME}
_WHY: Final = {"reason": _REASON, "resume_at": TIME}
_READY: Final = record({"status": TEXT, **dict.fromkeys(PARTS, TEXT), "reasons": listed(TEXT)})
_WAIT: Final = DURATION | {"maximum": parsing.MAX_WAIT}
_ATTEMPT: Final = {"task_id": UUID, "attempt": whole(1, 2**31 - 1)}
_EXAMPLE: Final = {"task_id": "019a2b00-0000-7000-8000-000000000000", "attempt": 1}
_TASK: Final = columns(
    Task, parsing.TASK.names,
    task_id=UUID, priority=BAND, args=listed(ANYTHING), parameters=OBJECT, timeout=NUMBER, max_retries=COUNT,
    retry_delay=NUMBER, queued_at=TIME, started_at=TIME, traceparent=maybe(TEXT),
)  # fmt: skip
_ERROR: Final = {
    "class": TEXT, "message": TEXT, "traceback": TEXT, "retriable": FLAG, "retry_after": DURATION,
    "reason": enum(["error", "timeout", "cancelled"]),
}  # fmt: skip
_THROTTLE: Final = {"scope": enum(THROTTLE_SCOPES), "seconds": DURATION | {"maximum": parsing.MAX_THROTTLE}}
_OUTCOME: Final = {
    "result": ANYTHING, "error": record(_ERROR, optional=_ERROR.keys() - {"class"}),
    "snooze": DURATION | {"description": "Seconds."}, "throttle": record(_THROTTLE),
}  # fmt: skip
_RESULT: Final = record(_ATTEMPT | {"status": enum(parsing.STATUSES)} | _OUTCOME, optional=_OUTCOME)
_PROGRESS: Final = {
    "progress": DURATION | {"maximum": 1}, "message": TEXT,
    "extend": DURATION | {"description": "Seconds from now."}, "lines": TEXT, "dropped": COUNT,
}  # fmt: skip
_REPORT: Final = {
    "running": listed(record(_ATTEMPT | _PROGRESS, optional=_PROGRESS)), "draining": FLAG, "tasks_done": COUNT
}  # fmt: skip
_HEARTBEAT: Final = _REPORT | {"task_types": listed(TYPE_NAME)}
_POLL: Final = {"want": whole(1, parsing.MAX_BATCH), "wait": _WAIT, "holding": listed(UUID)}
_OPTIONS: Final = {
    "queues": listed(NAME), "capabilities": listed(NAME, 20), "concurrency": whole(1, 1000), "version": TEXT
}  # fmt: skip
_REGISTERED: Final = {
    "worker_id": UUID, "queues": listed(TEXT), "capabilities": listed(TEXT), "heartbeat_seconds": NUMBER,
    "missed_heartbeats": COUNT,
}  # fmt: skip
_HEARTBEAT_REPLY: Final = {
    "status": TEXT, "cancel": listed(UUID), "cancel_requested": FLAG, "lost": listed(UUID), "drain": FLAG,
    "unserved": listed(TEXT),
}  # fmt: skip

ENDPOINTS: Final[dict[tuple[Any, str], Endpoint]] = {
    (tasks.TaskListView, "GET"): Endpoint(
        id="list_tasks", answer=page(ref("Task")), parameters=_LIST, problems=(403,),
    ),
    (tasks.TaskListView, "POST"): Endpoint(
        id="submit_task", answer=ref("Submitted"), status=201, also=(200, ref("Submitted")), parameters=(_KEY,),
        request=ref("Submission"), problems=(409,),
        example={"task_type": "shop.tasks.send_receipt", "parameters": {"order_id": 42}, "priority": "high"},
    ),
    (tasks.TaskBulkView, "POST"): Endpoint(
        id="submit_tasks", answer=_BULK, status=201, also=(200, _BULK), parameters=(_KEY,), problems=(409,),
        request=record({"tasks": listed(ref("Submission"), 1000) | {"minItems": 1}}),
        example={"tasks": [{"task_type": "shop.tasks.send_receipt", "parameters": {"order_id": n}} for n in (1, 2)]},
    ),
    (operations.BulkActionView, "POST"): Endpoint(
        id="act_on_tasks", answer=ref("Operation"), status=202, also=(200, _PREVIEW), problems=(403,), tag="tasks",
        request=record(_ACTION, optional=_ACTION.keys() - {"action"}),
        example={"action": "reprioritise", "priority": "high", "filter": {"parameters": {"order_id": 42}}},
    ),
    (tasks.TaskCountView, "GET"): Endpoint(
        id="count_tasks", answer=record({"count": COUNT, "capped": FLAG}), problems=(403,),
        parameters=(*FILTERS, Parameter("exact", enum(["true", "false"]), "true: count beyond 10 000 tasks as well.")),
    ),
    (tasks.TaskExportView, "GET"): Endpoint(
        id="export_tasks", answer=TEXT, media_type="application/x-ndjson", problems=(403,),
        parameters=(*FILTERS, _FIELDS),
    ),
    (tasks.TaskView, "GET"): Endpoint(
        id="get_task", answer=ref("TaskDetail"),
        parameters=(Parameter("wait", whole(0, 60), "Maximum seconds to wait for the end of the task."),),
    ),
    (tasks.TaskView, "DELETE"): Endpoint(
        id="cancel_task", answer=record({"task_id": UUID, "status": STATUS, "cancel_requested": FLAG}),
        problems=(403, 409),
    ),
    (tasks.TaskExplainView, "GET"): Endpoint(id="explain_task", answer=OBJECT),
    (tasks.TaskPriorityView, "PUT"): Endpoint(
        id="reprioritise_task", answer=_MOVED, request=record({"priority": BANDS}), example={"priority": "high"},
        problems=(403, 409),
    ),
    (tasks.AdminTaskListView, "GET"): Endpoint(
        id="list_all_tasks", answer=page(ref("Task")), parameters=_LIST, problems=(403,), tag="staff",
    ),
    (tasks.AdminTaskPriorityView, "PUT"): Endpoint(
        id="reprioritise_any_task", answer=_MOVED, request=record({"priority": BANDS}),
        example={"priority": "critical"}, problems=(403, 409), tag="staff",
    ),
    (events.EventView, "GET"): Endpoint(
        id="stream_events", answer=TEXT, media_type="text/event-stream", problems=(501,),
        parameters=(
            Parameter("queue", NAME), Parameter("task", UUID),
            header("Last-Event-ID", "The id of the last event that the client received."),
        ),
    ),
    (queues.StatsView, "GET"): Endpoint(id="get_stats", answer=ref("Stats")),
    (queues.QueueListView, "GET"): Endpoint(id="list_queues", answer=results(ref("Queue"))),
    (queues.QueueView, "GET"): Endpoint(id="get_queue", answer=ref("Queue")),
    (queues.QueueView, "PATCH"): Endpoint(
        id="edit_queue", answer=ref("Queue"), parameters=(_ETAG,), request=OBJECT, example={"max_concurrent": 10},
        problems=(403, 412, 428),
    ),
    (queues.QueueStatsView, "GET"): Endpoint(id="get_queue_stats", answer=ref("QueueNumbers")),
    (queues.AutoscaleView, "GET"): Endpoint(
        id="get_demand", answer=_DEMAND,
        parameters=(
            Parameter("slots", whole(1, 1000), "Number of slots of one worker."),
            Parameter("seconds", whole(1, 86400) | {"default": 60}, "Time in which the tasks should be finished."),
        ),
    ),
    (queues.PauseView, "POST"): Endpoint(
        id="pause_queue", answer=ref("Queue"), request=record({"reason": _REASON}, optional=["reason"]),
        example={"reason": "the printer is out of paper"}, problems=(403,),
    ),
    (queues.ResumeView, "POST"): Endpoint(id="resume_queue", answer=ref("Queue"), problems=(403,)),
    (queues.PolicyListView, "GET"): Endpoint(id="list_policies", answer=results(ref("Policy"))),
    (queues.PolicyView, "GET"): Endpoint(id="get_policy", answer=ref("Policy")),
    (queues.PolicyView, "PATCH"): Endpoint(
        id="edit_policy", answer=ref("Policy"), parameters=(_ETAG,), request=OBJECT, example={"max_retries": 5},
        problems=(403, 412, 428),
    ),
    (queues.AdminQueueView, "GET"): Endpoint(
        id="get_whole_queue", answer=ref("AdminQueue"), problems=(403,), tag="staff",
    ),
    (queues.WorkerListView, "GET"): Endpoint(
        id="list_workers", answer=results(ref("Worker")), problems=(403,), tag="staff",
    ),
    (dead_letters.DeadLetterListView, "GET"): Endpoint(
        id="list_dead_letters", answer=page(ref("DeadLetter")), problems=(403,),
        parameters=(*_LETTER_FILTERS, Parameter("state", enum([*STATE_NAMES, "all"])), _SIZE),
    ),
    (dead_letters.DeadLetterView, "GET"): Endpoint(id="get_dead_letter", answer=ref("DeadLetterDetail")),
    (dead_letters.DeadLetterView, "DELETE"): Endpoint(
        id="discard_dead_letter", answer=record({"id": UUID, "task_id": UUID, "state": TEXT}), problems=(403, 409),
    ),
    (dead_letters.ReplayView, "POST"): Endpoint(
        id="replay_dead_letter", problems=(403, 409),
        answer=record({"id": UUID, "task_id": UUID, "status": TEXT, "queue_position": maybe(COUNT)}),
        request=record({"parameters": OBJECT, "reason": TEXT}, optional=("parameters", "reason")),
        example={"parameters": {"order_id": 43}, "reason": "the address was wrong"},
    ),
    (dead_letters.ReplayManyView, "POST"): Endpoint(
        id="replay_dead_letters", answer=ref("Operation"), status=202, also=(200, _PREVIEW), problems=(403,),
        request=record(_REPLAY, optional=_REPLAY), example={"filter": {"exception_class": "TimeoutError"}, "rate": 10},
    ),
    (dead_letters.DiscardManyView, "POST"): Endpoint(
        id="discard_dead_letters", answer=ANYTHING, request=record(_SELECTION, optional=_SELECTION), problems=(403,),
        example={"filter": {"reason": "crash_loop"}, "dry_run": True},
    ),
    (operations.OperationView, "GET"): Endpoint(id="get_operation", answer=ref("Operation")),
    (operations.OperationView, "DELETE"): Endpoint(
        id="cancel_operation", answer=ref("Operation"), problems=(403, 409),
    ),
    (limits.LimitListView, "GET"): Endpoint(id="list_limits", answer=results(_LIMIT), problems=(403,)),
    (limits.LimitListView, "POST"): Endpoint(
        id="add_limit", answer=_LIMIT, status=201, problems=(403,),
        request=record({"scope": enum(Scope), "name": TYPE_NAME, **_PACE}, optional=_PACE),
        example={"scope": "key", "name": "customer", "max_concurrent": 2},
    ),
    (limits.LimitView, "GET"): Endpoint(id="get_limit", answer=_LIMIT, problems=(403,)),
    (limits.LimitView, "PATCH"): Endpoint(
        id="edit_limit", answer=_LIMIT, request=record(_PACE, optional=_PACE), problems=(403,),
        example={"rate_count": 100, "rate_seconds": 60},
    ),
    (limits.LimitView, "DELETE"): Endpoint(
        id="lift_limit", answer=record({"id": COUNT, "deleted": FLAG}), problems=(403,),
    ),
    (limits.PauseTypeOrKeyView, "POST"): Endpoint(
        id="pause", answer=_PAUSE, request=record(_WHAT | _WHY, optional=("name", *_WHY)), problems=(403,),
        example={"scope": "type", "name": "shop.tasks.send_receipt", "reason": "the mail server is away"},
    ),
    (limits.ResumeTypeOrKeyView, "POST"): Endpoint(
        id="resume", answer=_PAUSE, request=record(_WHAT, optional=["name"]), problems=(403, 404),
        example={"scope": "type", "name": "shop.tasks.send_receipt"},
    ),
    (health.LiveView, "GET"): Endpoint(id="live", answer=record({"status": TEXT})),
    (health.ReadyView, "GET"): Endpoint(
        id="ready", answer=_READY, also=(503, _READY),
        parameters=(Parameter("require", TEXT, f"Parts that must work too, with commas: {', '.join(PARTS[1:])}."),),
    ),
    (workers.RegisterView, "POST"): Endpoint(
        id="register_worker", answer=record(_REGISTERED), status=201, problems=(403,),
        request=record({"name": TYPE_NAME, "task_types": listed(TYPE_NAME), **_OPTIONS}, optional=_OPTIONS),
        example={"name": "thumbnails-1", "task_types": ["shop.tasks.thumbnail"], "concurrency": 4},
    ),
    (workers.PollView, "POST"): Endpoint(
        id="poll", answer=record({"tasks": listed(record(_TASK))}), problems=(409,),
        request=record(_POLL, optional=_POLL), example={"want": 4, "wait": 20},
    ),
    (workers.WaitView, "POST"): Endpoint(
        id="wait_for_call", answer=record({"called": FLAG}), request=record({"wait": _WAIT}), example={"wait": 20},
        problems=(409,),
    ),
    (workers.ResultView, "POST"): Endpoint(
        id="report", answer=record({"accepted": ANYTHING, "refused": listed(OBJECT)}, optional=["refused"]),
        request={"anyOf": [_RESULT, record({"results": listed(_RESULT)})]}, problems=(409,),
        example=_EXAMPLE | {"status": "completed", "result": {"n": 7}},
    ),
    (workers.HeartbeatView, "POST"): Endpoint(
        id="heartbeat", answer=record(_HEARTBEAT_REPLY), request=record(_HEARTBEAT, optional=_HEARTBEAT),
        problems=(409,),
        example={"running": [_EXAMPLE | {"progress": 0.5}]},
    ),
    (workers.DeregisterView, "POST"): Endpoint(
        id="deregister_worker", answer=record({"status": TEXT}), request=record(_REPORT, optional=_REPORT),
        example={"tasks_done": 12}, problems=(409,),
    ),
}  # fmt: skip
