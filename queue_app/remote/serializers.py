"""What requests of remote workers may hold, and what they are answered."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from queue_app import conf, models
from queue_app.api.answers import ANYTHING, BAND, COUNT, FLAG, NUMBER, TEXT, Shape, answer, listed, maybe
from queue_app.api.serializers import kinds
from queue_app.api.serializers.base import Body, Field, ListOf, Schema, shared
from queue_app.api.serializers.kinds import OBJECT, TIME, UUID
from queue_app.api.serializers.rules import Rule, needs
from queue_app.core.options import API_NAMES, MAX_TIMEOUT_SECONDS, OF_ROWS
from queue_app.core.priorities import Band
from queue_app.core.records import (
    MAX_MESSAGE,
    MAX_STACK,
    MAX_TRACEBACK,
    UNMASKED_FACTOR,
    ClaimedTask,
    TaskFailure,
    Throttling,
)
from queue_app.core.steps import STEP_NAME_LENGTH, Step, StepKind
from queue_app.exceptions import MAX_DEFER_SECONDS, THROTTLE_SCOPES, InvalidTaskData
from queue_app.models.fields import TYPE_LENGTH
from queue_app.services.enqueue.validate import check_signal_name, check_text, check_until

MAX_BATCH: Final = 100
MAX_RUNNING: Final = 1000
MAX_TYPES: Final = 10_000
MAX_QUEUES: Final = 1000
MAX_CAPABILITIES: Final = 100
MAX_WAIT: Final = 60.0
MAX_NUMBER: Final = 2**31 - 1
#: Maximum characters before secrets are masked.
MESSAGE: Final = UNMASKED_FACTOR * MAX_MESSAGE
TRACEBACK: Final = UNMASKED_FACTOR * MAX_TRACEBACK
STATUSES: Final = ("completed", "failed", "snoozed", "throttled", "waiting", "released")
#: Maximum seconds for which a remote worker may throttle a limit, which holds for the tasks of other workers too.
MAX_THROTTLE: Final = 3600.0
#: Status of a result -> the field that it requires, and the error without it.
REQUIRED: Final = {
    "failed": ("error", "A failed attempt needs an error."),
    "snoozed": ("snooze", "A snoozed attempt needs snooze, in seconds."),
    "throttled": ("throttle", "A throttled attempt needs throttle: scope, seconds."),
}


def _types(**options: Any) -> ListOf:
    return kinds.sorted_set(kinds.text(TYPE_LENGTH), MAX_TYPES, **options)


def _wait(**options: Any) -> Field:
    return kinds.number(0, MAX_WAIT, help_text="Seconds.", **options)


def _worker_name(value: Any, name: str) -> str:
    found = check_text(value, name, 200)
    if not found.strip():
        raise InvalidTaskData(name, f"{name} must not be blank.", code="blank")
    return found


class WorkerRegistration(Body):
    example: ClassVar[Any] = {"name": "thumbnails-1", "task_types": ["shop.tasks.thumbnail"], "capacity": 4}
    aliases: ClassVar[Mapping[str, str]] = {"concurrency": "capacity"}
    name = Field(
        _worker_name, {"type": "string", "minLength": 1, "maxLength": 200, "pattern": r"\S"}, default="",
        help_text="Left out: the server makes one.",
    )  # fmt: skip
    queues = kinds.sorted_set(kinds.name(), MAX_QUEUES, default=())
    capabilities = kinds.sorted_set(kinds.name(), MAX_CAPABILITIES, default=())
    task_types = _types(allow_null=True, default=None, help_text="Left out: all that the server knows now.")
    capacity = kinds.whole(1, 1000, default=5, source="concurrency", help_text="Tasks that it runs at once.")
    heartbeat_seconds = kinds.number(1, 300, default=30.0, help_text="Interval of its heartbeats.")
    version = kinds.text(50, 0, default="")


class Poll(Body):
    example: ClassVar[Any] = {"available_capacity": 4, "wait": 20}
    aliases: ClassVar[Mapping[str, str]] = {"want": "available_capacity"}
    available_capacity = kinds.whole(1, MAX_BATCH, default=1, source="want")
    capabilities = kinds.sorted_set(
        kinds.name(), MAX_CAPABILITIES, allow_null=True, help_text="What it offers from now on; left out: as before."
    )
    wait = _wait(default=0.0)
    holding = ListOf(
        kinds.identifier(), MAX_RUNNING, allow_null=True, help_text="Tasks that the worker has; others go back."
    )


class WakeRequest(Body):
    example: ClassVar[Any] = {"wait": 20}
    wait = _wait(required=True)


class _Attempt(Body):
    example: ClassVar[Any] = {"task_id": "019a2b00-0000-7000-8000-000000000000", "attempt": 1}
    task_id = kinds.identifier(required=True)
    attempt = kinds.whole(1, MAX_NUMBER, required=True)
    leased_at = kinds.whole(
        0,
        2**53,
        default=0,
        help_text="As the poll gave it. After a crash of PostgreSQL, attempt 1 may be granted twice.",
    )


#: Class of an error whose reporter names none.
NO_CLASS: Final = "Error"


class Failure(Body):
    into = TaskFailure
    exception_class = kinds.tail(MESSAGE, default=NO_CLASS)
    message = kinds.tail(MESSAGE, default="")
    traceback = kinds.tail(TRACEBACK, default="")
    retriable = kinds.flag(default=True)
    retry_after = kinds.number(0, MAX_DEFER_SECONDS, allow_null=True)
    reason = kinds.word(("error", "timeout", "cancelled"), "unknown_status", default="error")

    def get_fields(self) -> dict[str, Any]:
        """Call the class of the exception ``class``, which Python reserves."""
        fields = super().get_fields()
        named = fields.pop("exception_class")
        named.source = "exception_class"
        return {"class": named, **fields}


class AttemptThrottle(Body):
    into = Throttling
    scope = kinds.word(THROTTLE_SCOPES, required=True)
    seconds = kinds.number(0, MAX_THROTTLE, required=True)


class Result(_Attempt):
    example: ClassVar[Any] = _Attempt.example | {"status": "completed", "result": {"n": 7}}
    rules = tuple(needs("status", {status}, *missing) for status, missing in REQUIRED.items())
    attempt = kinds.whole(
        1, MAX_NUMBER, default=None, help_text="Left out: the attempt under which the worker holds the task."
    )
    status = kinds.word(STATUSES, "unknown_status", required=True)
    result = kinds.payload(allow_null=True)
    error = Failure(allow_null=True)
    snooze = kinds.number(0, MAX_DEFER_SECONDS, allow_null=True, help_text="Seconds.")
    throttle = AttemptThrottle(allow_null=True)


class Results(Body):
    results = ListOf(Result(), MAX_BATCH, required=True)


class Report(Body):
    """One result, or many in ``results``."""

    example: ClassVar[Any] = Result.example
    is_demanded = True  # an empty body is neither

    def run_validation(self, data: Any = None) -> Any:
        if isinstance(data, dict) and "results" in data:
            return shared(Results).run_validation(data)["results"]
        return [shared(Result).run_validation(data)]

    def schema(self) -> Schema:
        return {"anyOf": [shared(Result).schema(), shared(Results).schema()]}


class StepForm(Body):
    position = kinds.whole(1, MAX_NUMBER, required=True)
    name = kinds.text(STEP_NAME_LENGTH, required=True)
    kind = kinds.word(StepKind, required=True)
    value = kinds.payload(allow_null=True)
    until = kinds.moment(check_until, allow_null=True)
    signal = Field(
        lambda value, _: "" if value == "" else check_signal_name(value),
        {"type": "string", "maxLength": kinds.NAME["maxLength"], "pattern": rf"^$|{kinds.NAME['pattern']}"},
        default="",
    )

    def run_validation(self, data: Any = None) -> Any:
        values = super().run_validation(data)
        return None if values is None else Step(**values, is_done=not values["signal"])


def _signal_of_wait(values: Mapping[str, Any]) -> InvalidTaskData | None:
    step = values.get("step")
    if values["action"] != "wait" or step is None or step.signal:
        return None
    return InvalidTaskData("step", "A step that waits needs the name of a signal.", code="required")


class StepCall(_Attempt):
    """What an attempt does with the steps of its task: list them, store one, or wait for a signal in one."""

    example: ClassVar[Any] = _Attempt.example | {
        "action": "store", "step": {"position": 1, "name": "charge", "kind": "step", "value": 7},
    }  # fmt: skip
    rules = (
        needs("action", {"store", "wait"}, "step", "step is missing."),
        Rule(
            _signal_of_wait,
            {
                "if": {"properties": {"action": {"const": "wait"}}},
                "then": {"properties": {"step": {"required": ["signal"], "properties": {"signal": {"minLength": 1}}}}},
            },
        ),
    )
    action = kinds.word(("list", "store", "wait"), required=True)
    step = StepForm(allow_null=True)
    payload_fields = kinds.payload_object(allow_null=True, help_text="The declared payload of the signal.")


class AttemptProgress(_Attempt):
    progress = kinds.number(0, 1, allow_null=True)
    message = kinds.tail(200, " ", default="")
    extend = kinds.number(0, MAX_TIMEOUT_SECONDS, default=0.0, help_text="Seconds by which the deadline moves.")
    lines = kinds.tail(lambda: conf.get().task_logs.max_characters, "\n", allow_null=True, help_text="All log lines.")
    dropped = kinds.whole(0, MAX_NUMBER, default=0, help_text="Number of earlier log lines that are not in lines.")
    stack = kinds.tail(MAX_STACK, "\n", allow_null=True, help_text="Where the attempt is now, if the answer asked.")


def _once(running: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    attempts = [(report["task_id"], report["attempt"], report["leased_at"]) for report in running]
    if len(set(attempts)) < len(attempts):
        raise InvalidTaskData("", "running names an attempt twice; name each once.", code="duplicate_in_batch")
    return running


class Deregistration(Body):
    example: ClassVar[Any] = {"tasks_done": 12}
    running = ListOf(AttemptProgress(), MAX_RUNNING, default=(), into=_once, unique=True)
    draining = kinds.flag(default=False)
    tasks_done = kinds.whole(0, 2**53, default=0)


class WorkerHeartbeat(Deregistration):
    example: ClassVar[Any] = {"running": [_Attempt.example | {"progress": 0.5}]}
    status = kinds.word(("active", "draining"), "unknown_status", help_text="draining: the same as draining=true.")
    current_load = kinds.whole(0, 1000, help_text="Slots in use, by the worker's own count; the rows decide.")
    free_slots = kinds.whole(0, 1000, default=0, help_text="Slots for which its last poll brought no task.")
    cpu_percent = kinds.number(0, MAX_NUMBER, allow_null=True, help_text="Processor time, in percent of one core.")
    memory_bytes = kinds.whole(0, 2**53, allow_null=True, help_text="Resident memory.")
    task_types = _types(allow_null=True, help_text="The task types that the worker serves from now on.")


# Answers.

CLAIMED: Final = Shape(
    models.Task, "id", "task_id", "attempt", "task_type", "queue", "priority", *(API_NAMES[name] for name in OF_ROWS),
    "args", "parameters", "retry_count", "created_at", "queued_at", "started_at", "leased_at", "trace_id",
    "traceparent", "metadata",
    task_id="id", priority=BAND, required_capabilities="capabilities", timeout_seconds=("timeout", NUMBER),
    args=listed(ANYTHING), parameters=OBJECT, retry_count="failures", max_retries=COUNT, queued_at=TIME,
    started_at=TIME, trace_id=TEXT, traceparent=TEXT, metadata=maybe(OBJECT),
)  # fmt: skip
_CLAIMED: Final = answer("ClaimedTask", CLAIMED.schemas | {"start_within_ms": maybe(COUNT)})
answer(
    "ClaimedTasks",
    {"tasks": listed(_CLAIMED), "poll_interval_ms": COUNT, "drain": FLAG, "notified": FLAG, "loading": FLAG}
    | {"next_start_ms": maybe(COUNT)},
)
answer("WorkerCall", {"called": FLAG, "notified": FLAG})
_ONE_OR_SEVERAL: Final = {"anyOf": [FLAG, listed(UUID)]}
_REFUSED: Final = answer("RefusedResult", {"task_id": UUID, "attempt": COUNT, "code": TEXT})
answer(
    "ReportedResults",
    {"accepted": _ONE_OR_SEVERAL, "replayed": _ONE_OR_SEVERAL, "refused": listed(_REFUSED)},
    optional=("replayed", "refused"),
)
_STORED_STEP: Final = answer(
    "StoredStep",
    {"position": COUNT, "name": TEXT, "kind": TEXT, "value": ANYTHING, "until": maybe(TIME), "signal": TEXT}
    | {"is_done": FLAG},
)
answer("StoredSteps", {"steps": listed(_STORED_STEP)})
REGISTERED: Final = Shape(
    models.Worker, "id", "worker_id", "queues", "capabilities", "heartbeat_seconds", worker_id="id"
)
HEARTBEAT_REPLY: Final = Shape(
    None, "cancel", "lost", "drain", "unserved", "again", "stacks", cancel=listed(UUID), lost=listed(UUID),
    drain=FLAG, unserved=listed(TEXT), again=FLAG, stacks=listed(UUID),
)  # fmt: skip
answer(
    "RegisteredWorker",
    REGISTERED.schemas | {"missed_heartbeats": COUNT, "poll_interval_ms": COUNT, "unserved": listed(TEXT)},
)
answer("HeartbeatReply", HEARTBEAT_REPLY.schemas | {"acknowledged": FLAG, "status": TEXT, "cancel_requested": FLAG})


def step(found: Step) -> dict[str, Any]:
    """Return a step for the worker that runs the task."""
    return found._asdict() | {"value": None if found.value is None else json.loads(found.value)}


def claimed(task: ClaimedTask, polled_at: float) -> dict[str, Any]:
    """Return a task for the worker that runs it, with its arguments; its poll arrived at ``polled_at`` (monotonic)."""
    return CLAIMED(task) | {
        "start_within_ms": None if task.start_by is None else math.floor((task.start_by - polled_at) * 1000),
        "priority": Band(task.priority).label,
        "args": json.loads(task.args),
        "parameters": json.loads(task.parameters),
        "metadata": None if task.metadata is None else json.loads(task.metadata),
    }
