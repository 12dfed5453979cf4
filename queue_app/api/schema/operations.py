"""Every endpoint: what it takes and what it answers, one entry each; long because there are so many."""

from __future__ import annotations

from typing import Any, Final

from queue_app.api.operations import ACTIONS
from queue_app.api.schema.components import (
    ANYTHING,
    BAND,
    COUNT,
    FLAG,
    NAME,
    NUMBER,
    OBJECT,
    STATUS,
    TEXT,
    TIME,
    UUID,
    listed,
    maybe,
    page,
    record,
    ref,
)
from queue_app.api.schema.endpoint import Endpoint, header, query, within
from queue_app.api.task_filters import STATUS_NAMES, TIME_NAMES
from queue_app.api.views import autoscale, dead_letters, events, health, operations, queues, staff, tasks
from queue_app.core.priorities import Band
from queue_app.models.dead_letter import STATE_NAMES

_BANDS: Final = {"type": "string", "enum": [*(band.label for band in Band), "medium"]}
_SIZE: Final = query("page_size", {"type": "integer", "minimum": 1, "maximum": 200, "default": 50}, "Rows of a page.")
_CURSOR: Final = query("cursor", UUID, "next_cursor of the page before.")
_NEEDS: Final = "Of others' tasks only with queue_app.view_payload, else 403."
FILTERS: Final = (
    query("status", {"type": "string", "enum": list(STATUS_NAMES)}, "pending: all that has not ended."),
    query("priority", _BANDS, "The task's own band."),
    query("effective_priority", _BANDS, "The band to which it has risen by now."),
    query("queue", NAME, ""),
    query("task_type", {"type": "string", "minLength": 1, "maxLength": 255}, ""),
    query("capability", NAME, "One that it requires."),
    query("user", {"type": "string", "minLength": 1, "maxLength": 150}, "For those who may see all tasks."),
    query("worker", UUID, "Who runs it, or ran it last."),
    query("error", {"type": "string", "minLength": 1, "maxLength": 200}, f"Text in the error of an attempt. {_NEEDS}"),
    *(query(name, TIME, "At or after." if name.endswith("after") else "Before.") for name in TIME_NAMES),
)  # fmt: skip
_FIELDS: Final = query("fields", TEXT, "Names of fields with commas; others are left out.")
_TASK: Final = within("task_id")
_QUEUE: Final = within("name", NAME)
_ETAG: Final = header("If-Match", "The ETag that was read, or *.", required=True)
_RATE: Final = {"type": "number", "exclusiveMinimum": 0}
_REASON: Final = {"type": "string", "maxLength": 200}
_NOTHING: Final = record({}, closed=True)
_FILTER: Final = {"type": "object", "description": f"As in the query of a list; parameters is an object. {_NEEDS}"}
_LETTER_FILTERS: Final = (
    query("queue", NAME, ""),
    query("task_type", {"type": "string", "minLength": 1, "maxLength": 255}, ""),
    query("exception_class", {"type": "string", "minLength": 1, "maxLength": 255}, "With or without its module."),
    query("user", {"type": "string", "minLength": 1, "maxLength": 150}, ""),
    query("text", {"type": "string", "minLength": 1, "maxLength": 255}, f"In the message. {_NEEDS}"),
    query("died_after", TIME, ""),
    query("died_before", TIME, ""),
)
_SELECTION: Final = {
    "ids": {"type": "array", "items": UUID, "maxItems": 1000},
    "filter": OBJECT,
    "limit": {"type": "integer", "minimum": 1},
    "reason": _REASON,
    "dry_run": FLAG,
}
_PREVIEW: Final = record({"dry_run": FLAG, "count": COUNT, "sample": listed(UUID)})
_BULK: Final = record(
    {
        "count": COUNT,
        "tasks": listed(record({"task_id": UUID, "status": STATUS, "replayed": FLAG})),
    }
)
_MOVED: Final = record({"task_id": UUID, "status": STATUS, "priority": BAND, "queue_position": maybe(COUNT)})
_DEMAND: Final = record(
    {
        "queue": NAME,
        "queued": COUNT,
        "runnable": COUNT,
        "active_slots": COUNT,
        "mean_seconds": NUMBER,
        "backlog_seconds": NUMBER,
        "desired_slots": COUNT,
        "desired_workers": COUNT,
    }
)
_HEALTH: Final = record({"status": TEXT})

OPERATIONS: Final[dict[tuple[Any, str], Endpoint]] = {
    (tasks.TaskListView, "GET"): Endpoint(
        id="list_tasks", summary="List tasks, newest first", tag="tasks", problems=(403,),
        responses={200: page(ref("Task"))},
        parameters=(*FILTERS, _FIELDS, _SIZE, _CURSOR),
    ),
    (tasks.TaskListView, "POST"): Endpoint(
        id="submit_task", summary="Submit a task", tag="tasks", problems=(409, 413, 415),
        responses={201: ref("Submitted"), 200: ref("Submitted")}, request=ref("Submission"),
        parameters=(header("Idempotency-Key", "Repeating a request with it stores one task."),),
        example={"task_type": "shop.tasks.send_receipt", "parameters": {"order_id": 42}, "priority": "high"},
    ),
    (tasks.TaskBulkView, "POST"): Endpoint(
        id="submit_tasks", summary="Submit many tasks, all or nothing", tag="tasks", problems=(409, 413, 415),
        responses={201: _BULK, 200: _BULK},
        request=record({"tasks": {"type": "array", "items": ref("Submission"), "minItems": 1, "maxItems": 1000}}),
        parameters=(header("Idempotency-Key", "Repeating the request with it stores the tasks once."),),
        example={"tasks": [{"task_type": "shop.tasks.send_receipt", "parameters": {"order_id": n}} for n in (1, 2)]},
    ),
    (tasks.BulkActionView, "POST"): Endpoint(
        id="act_on_tasks", summary="Cancel, reprioritise, replay, retry or run many tasks now", tag="tasks",
        problems=(403, 413, 415),
        responses={202: ref("Operation"), 200: _PREVIEW},
        request=record(
            {
                "action": {"type": "string", "enum": list(ACTIONS)},
                "priority": _BANDS,
                "ids": {"type": "array", "items": UUID, "maxItems": 1000},
                "filter": _FILTER,
                "rate": _RATE,
                "limit": COUNT,
                "reason": _REASON,
                "dry_run": FLAG,
            },
            optional=("priority", "ids", "filter", "rate", "limit", "reason", "dry_run"),
        ),
        example={"action": "reprioritise", "priority": "high", "filter": {"parameters": {"order_id": 42}}},
    ),
    (tasks.TaskCountView, "GET"): Endpoint(
        id="count_tasks", summary="Count tasks", tag="tasks", problems=(403,),
        responses={200: record({"count": COUNT, "capped": FLAG})},
        parameters=(*FILTERS, query("exact", {"type": "string", "enum": ["true", "false"]}, "Beyond 10 000 as well.")),
    ),
    (tasks.TaskExportView, "GET"): Endpoint(
        id="export_tasks", summary="Stream tasks as NDJSON or CSV", tag="tasks", media_type="application/x-ndjson",
        problems=(403,), responses={200: {"type": "string"}},
        parameters=(*FILTERS, _FIELDS),
    ),
    (tasks.TaskView, "GET"): Endpoint(
        id="get_task", summary="Inspect a task, or wait for its end", tag="tasks", problems=(404,),
        responses={200: ref("TaskDetail")},
        parameters=(_TASK, query("wait", {"type": "integer", "minimum": 0, "maximum": 60}, "Seconds.")),
    ),
    (tasks.TaskView, "DELETE"): Endpoint(
        id="cancel_task", summary="Cancel a task", tag="tasks", problems=(403, 404, 409, 413, 415),
        responses={200: record({"task_id": UUID, "status": STATUS, "cancel_requested": FLAG})}, parameters=(_TASK,),
    ),
    (tasks.TaskExplainView, "GET"): Endpoint(
        id="explain_task", summary="Why a task does not run", tag="tasks", problems=(404,),
        responses={200: OBJECT}, parameters=(_TASK,),
    ),
    (tasks.TaskPriorityView, "PUT"): Endpoint(
        id="reprioritise_task", summary="Move a waiting task to another band", tag="tasks",
        problems=(403, 404, 409, 413, 415), responses={200: _MOVED}, parameters=(_TASK,),
        request=record({"priority": _BANDS}), example={"priority": "high"},
    ),
    (events.EventView, "GET"): Endpoint(
        id="stream_events", summary="Stream what happens to tasks (SSE)", tag="events", problems=(501,),
        media_type="text/event-stream", responses={200: {"type": "string"}},
        parameters=(query("queue", NAME, ""), query("task", UUID, ""), header("Last-Event-ID", "Where to go on.")),
    ),
    (queues.StatsView, "GET"): Endpoint(
        id="get_stats", summary="Depth, age, workers and throughput", tag="queues", responses={200: ref("Stats")},
    ),
    (queues.QueueListView, "GET"): Endpoint(
        id="list_queues", summary="List queues", tag="queues",
        responses={200: record({"results": listed(ref("Queue"))})},
    ),
    (queues.QueueView, "GET"): Endpoint(
        id="get_queue", summary="Inspect a queue", tag="queues", problems=(404,), responses={200: ref("Queue")},
        parameters=(_QUEUE,),
    ),
    (queues.QueueView, "PATCH"): Endpoint(
        id="edit_queue", summary="Edit a queue", tag="queues", problems=(403, 404, 412, 413, 415, 428),
        responses={200: ref("Queue")}, parameters=(_QUEUE, _ETAG), request=OBJECT, example={"max_concurrent": 10},
    ),
    (queues.QueueStatsView, "GET"): Endpoint(
        id="get_queue_stats", summary="Depth and age by band of a queue", tag="queues", problems=(404,),
        responses={200: ref("QueueNumbers")}, parameters=(_QUEUE,),
    ),
    (autoscale.AutoscaleView, "GET"): Endpoint(
        id="get_demand", summary="How many workers a queue could use", tag="queues", problems=(404,),
        responses={200: _DEMAND},
        parameters=(
            _QUEUE,
            query("slots", {"type": "integer", "minimum": 1, "maximum": 1000}, "Of one worker."),
            query("seconds", {"type": "integer", "minimum": 1, "maximum": 86400, "default": 60}, "To be done within."),
        ),
    ),
    (queues.PauseView, "POST"): Endpoint(
        id="pause_queue", summary="Start nothing new from a queue", tag="queues", problems=(403, 404, 413, 415),
        responses={200: ref("Queue")}, parameters=(_QUEUE,),
        request=record({"reason": _REASON}, optional=("reason",)), example={"reason": "the printer is out of paper"},
    ),
    (queues.ResumeView, "POST"): Endpoint(
        id="resume_queue", summary="Let a paused queue go on", tag="queues", problems=(403, 404, 413, 415),
        responses={200: ref("Queue")}, parameters=(_QUEUE,),
    ),
    (queues.PolicyListView, "GET"): Endpoint(
        id="list_policies", summary="What holds for each band", tag="queues",
        responses={200: record({"results": listed(ref("Policy"))})},
    ),
    (queues.PolicyView, "GET"): Endpoint(
        id="get_policy", summary="What holds for a band", tag="queues", problems=(404,), responses={200: ref("Policy")},
        parameters=(within("band", _BANDS),),
    ),
    (queues.PolicyView, "PATCH"): Endpoint(
        id="edit_policy", summary="Edit what holds for a band", tag="queues", problems=(403, 404, 412, 413, 415, 428),
        responses={200: ref("Policy")}, parameters=(within("band", _BANDS), _ETAG), request=OBJECT,
        example={"max_retries": 5},
    ),
    (dead_letters.DeadLetterListView, "GET"): Endpoint(
        id="list_dead_letters", summary="List dead letters, latest death first", tag="dead letters", problems=(403,),
        responses={200: page(ref("DeadLetter"))},
        parameters=(*_LETTER_FILTERS, query("state", {"type": "string", "enum": [*STATE_NAMES, "all"]}, ""), _SIZE),
    ),
    (dead_letters.DeadLetterView, "GET"): Endpoint(
        id="get_dead_letter", summary="Inspect a dead letter", tag="dead letters", problems=(404,),
        responses={200: ref("DeadLetterDetail")}, parameters=(within("letter_id"),),
    ),
    (dead_letters.DeadLetterView, "DELETE"): Endpoint(
        id="discard_dead_letter", summary="Discard a dead letter", tag="dead letters",
        problems=(403, 404, 409, 413, 415),
        responses={200: record({"id": UUID, "task_id": UUID, "state": TEXT})}, parameters=(within("letter_id"),),
    ),
    (dead_letters.ReplayView, "POST"): Endpoint(
        id="replay_dead_letter", summary="Queue the task of a dead letter again", tag="dead letters",
        problems=(403, 404, 409, 413, 415), parameters=(within("letter_id"),),
        responses={200: record({"id": UUID, "task_id": UUID, "status": TEXT, "queue_position": maybe(COUNT)})},
        request=record({"parameters": OBJECT, "reason": TEXT}, optional=("parameters", "reason")),
        example={"parameters": {"order_id": 43}, "reason": "the address was wrong"},
    ),
    (dead_letters.ReplayManyView, "POST"): Endpoint(
        id="replay_dead_letters", summary="Replay many dead letters", tag="dead letters", problems=(403, 413, 415),
        responses={202: ref("Operation"), 200: _PREVIEW},
        request=record(
            _SELECTION | {"rate": _RATE, "stop_after_failures": COUNT},
            optional=(*_SELECTION, "rate", "stop_after_failures"),
        ),
        example={"filter": {"exception_class": "TimeoutError"}, "rate": 10},
    ),
    (dead_letters.DiscardManyView, "POST"): Endpoint(
        id="discard_dead_letters", summary="Discard many dead letters", tag="dead letters", problems=(403, 413, 415),
        responses={200: ANYTHING}, request=record(_SELECTION, optional=tuple(_SELECTION)),
        example={"filter": {"reason": "crash_loop"}, "dry_run": True},
    ),
    (operations.OperationView, "GET"): Endpoint(
        id="get_operation", summary="How far an operation has come", tag="operations", problems=(404,),
        responses={200: ref("Operation")}, parameters=(within("operation_id"),),
    ),
    (operations.OperationView, "DELETE"): Endpoint(
        id="cancel_operation", summary="Cancel an operation", tag="operations", problems=(403, 404, 409, 413, 415),
        responses={200: ref("Operation")}, parameters=(within("operation_id"),),
    ),
    (staff.AdminTaskListView, "GET"): Endpoint(
        id="list_all_tasks", summary="List everybody's tasks", tag="staff", problems=(403,),
        responses={200: page(ref("Task"))}, parameters=(*FILTERS, _FIELDS, _SIZE, _CURSOR),
    ),
    (staff.AdminTaskPriorityView, "PUT"): Endpoint(
        id="reprioritise_any_task", summary="Move anybody's waiting task to another band", tag="staff",
        problems=(403, 404, 409, 413, 415), responses={200: _MOVED}, parameters=(_TASK,),
        request=record({"priority": _BANDS}), example={"priority": "critical"},
    ),
    (staff.AdminQueueView, "GET"): Endpoint(
        id="get_whole_queue", summary="Depth, active tasks, cap, by band", tag="staff", problems=(403,),
        responses={200: ref("AdminQueue")},
    ),
    (staff.WorkerListView, "GET"): Endpoint(
        id="list_workers", summary="List workers", tag="staff", problems=(403,),
        responses={200: record({"results": listed(ref("Worker"))})},
    ),
    (health.LiveView, "GET"): Endpoint(
        id="live", summary="Whether the process lives", tag="operations", responses={200: _HEALTH},
    ),
}  # fmt: skip
