"""The frozen records that services, SQL, the index and workers exchange."""

import uuid
from collections.abc import Sequence, Set as AbstractSet
from copy import copy
from dataclasses import dataclass, field, fields
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, Unpack

from queue_app.core import trace
from queue_app.core.limits import lane_name, score
from queue_app.core.options import DEFAULTS, OF_ROWS, CallOptions, CallValues, RowOptions
from queue_app.core.priorities import Band
from queue_app.core.states import Status

if TYPE_CHECKING:
    from queue_app.core.unique import Unique

#: One grant: the task's id, the number of the attempt, and the stamp of the lease that it was granted under. A crash of
#: PostgreSQL can undo a grant, so a worker may run two attempts of a task, and even two of the same number.
type AttemptKey = tuple[uuid.UUID, int, int]


_NO_PARAMETERS: Final[dict[str, Any]] = {}


class NewTask:
    """An unchecked request for a task.

    A missing option, or ``None``, means the default; for a task that is submitted by its type, the option of the
    registered task. A ``delay`` in seconds from now may stand for ``run_after``. ``metadata`` is that of the original
    of a copy; ``None``: hooks decide.
    """

    __slots__ = ("args", "delay", "metadata", "options", "parameters", "priority", "queue", "run_after", "task_type")

    def __init__(  # noqa: PLR0913 - by name
        self,
        *,
        task_type: str,
        args: Sequence[Any] = (),
        parameters: dict[str, Any] = _NO_PARAMETERS,
        queue: str | None = None,
        priority: Band | str | None = None,
        run_after: datetime | None = None,
        delay: float | None = None,
        metadata: dict[str, Any] | None = None,
        **options: Unpack[CallValues],
    ) -> None:
        if unknown := options.keys() - DEFAULTS.keys():
            raise TypeError(f"A task has no option {min(unknown)!r}.")
        self.task_type, self.args, self.parameters = task_type, args, parameters
        if parameters is _NO_PARAMETERS:
            self.parameters = {}
        self.queue, self.priority, self.run_after, self.delay = queue, priority, run_after, delay
        self.metadata, self.options = metadata, options

    @property
    def user(self) -> str:
        """The owner of the task."""
        return self.options.get("user", "")

    def of(self, user: str) -> Self:
        """Return the same request for another user."""
        found = copy(self)
        found.options = {**self.options, "user": user}
        return found


def call_options(row: Any) -> dict[str, Any]:
    """Return the options of a task, a ``TaskSpec`` or a schedule as JSON values, for ``NewTask``."""
    values = {name: getattr(row, name) for name in ("task_type", "queue", *OF_ROWS)}
    values["priority"] = Band(row.priority).label
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec(CallOptions):
    """The checked options that all calls of one task share."""

    task_type: str
    queue: str
    priority: int
    lane: str
    run_after: datetime | None = None
    capabilities: tuple[str, ...] = ()
    unique: "Unique | None" = None
    unique_key: str | None = None  # of one call, see core.unique

    @property
    def band(self) -> Band:
        """The band of the priority."""
        return Band(self.priority)


class TaskRow(NamedTuple):
    """A task that is ready to be stored; in bulk, the payload is checked later (``sql.insert``)."""

    id: uuid.UUID
    spec: TaskSpec
    args: str = "[]"  # JSON text
    parameters: str = "{}"  # JSON text
    metadata: str | None = None  # JSON text of what hooks added


class Enqueued(NamedTuple):
    """A stored task: a new one, or with ``created=False`` the task that holds the idempotency key.

    ``queue_position`` is set if the caller asked for it, the task waits and the index answered.
    """

    id: uuid.UUID
    spec: TaskSpec
    status: Status
    created_at: datetime
    queued_at: datetime | None = None  # of a new task that is queued
    created: bool = True
    queue_position: int | None = None
    sent_trace: str | None = None  # the W3C trace context that its caller sent; None: it begins a trace

    @property
    def trace_id(self) -> str:
        """The id of the task's trace."""
        return trace.trace_id(trace.of_task(self.id, self.sent_trace))

    @property
    def replayed(self) -> bool:
        """Whether the task was there before."""
        return not self.created

    @property
    def entry(self) -> "Entry | None":
        """The task's place in the index; ``None`` if it is not queued."""
        spec, at = self.spec, self.queued_at
        return None if at is None else Entry(spec.lane, score(spec.priority, at), self.id)


class Entry(NamedTuple):
    """A queued task's place in the index."""

    lane: str
    score: float
    id: uuid.UUID


class PackedLane(NamedTuple):
    """Queued tasks of one lane: ids of 16 bytes and, in the same order, scores as big-endian doubles."""

    lane: str
    ids: bytes
    scores: bytes

    @property
    def size(self) -> int:
        """The number of tasks."""
        return len(self.scores) // 8

    def part(self, start: int, end: int) -> Self:
        """Return the tasks from position ``start`` up to, but not including, ``end``."""
        return type(self)(self.lane, self.ids[16 * start : 16 * end], self.scores[8 * start : 8 * end])


@dataclass(frozen=True, slots=True)
class TaskRef:
    """A stored task as the index needs it: its identity, its lane and its score."""

    id: uuid.UUID
    task_type: str
    queue: str
    priority: int
    capabilities: tuple[str, ...]
    queued_at: datetime
    user: str = field(default="", compare=False)
    concurrency_key: str = ""
    weight: int = 1
    workflow_id: uuid.UUID | None = field(default=None, compare=False)

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> Self:
        """Return the record of a row with the columns ``sql.columns.REF``."""
        task_id, task_type, queue, priority, capabilities, *rest = row
        return cls(task_id, task_type, queue, priority, tuple(capabilities), *rest)

    @classmethod
    def of(cls, task: Any) -> Self:
        """Return the record of a queued task: a model or a ``ClaimedTask``."""
        return cls.from_row(_ref_fields(task))

    @property
    def lane(self) -> str:
        """The name of the lane that the task waits in."""
        return lane_name(*_lane_of(self))

    @property
    def score(self) -> float:
        """The task's place in the lane."""
        return score(self.priority, self.queued_at)

    @property
    def entry(self) -> Entry:
        """The task's lane, score and id."""
        return Entry(lane_name(*_lane_of(self)), score(self.priority, self.queued_at), self.id)


_lane_of: Final = attrgetter("queue", "task_type", "capabilities", "user", "concurrency_key", "weight")
_ref_fields: Final = attrgetter(*(each.name for each in fields(TaskRef)))


@dataclass(frozen=True, slots=True)
class Proposal:
    """Tasks that the index proposes to one worker; each holds a lease taken at ``leased_at`` (index time, µs)."""

    generation: int
    leased_at: int
    tasks: tuple[tuple[uuid.UUID, str], ...]  # (id, queue)
    wait: float | None = None  # seconds until a limit allows the next start
    is_loading: bool = False  # whether a rebuild loads tasks that the claim may have missed
    paced: AbstractSet[uuid.UUID] = frozenset()  # tasks that a rate or a minimum delay lets start now
    asked_at: float = 0.0  # when the worker asked the index (monotonic, s)
    granted: "tuple[ClaimedTask, ...] | None" = None  # those that the rows granted with the claim, where that is one


class Lease(NamedTuple):
    """A slot in use: the task, its lane (or only the queue) and the stamp of the lease (index time, µs)."""

    id: uuid.UUID
    lane: str
    leased_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedTask(RowOptions):
    """A task whose row a worker holds under the fencing token ``attempt``.

    The commit of a claim does not wait for the disk. If PostgreSQL crashes right after the commit, it may grant the
    same attempt number again, so the worker and the stamp of the lease are part of the fence.
    """

    id: uuid.UUID
    attempt: int
    task_type: str
    queue: str
    priority: int
    created_at: datetime
    queued_at: datetime
    started_at: datetime
    timeout: float
    max_retries: int
    retry_delay: float | None = None
    failures: int
    args: str  # JSON text, decoded by the slot that runs the task
    parameters: str  # JSON text
    capabilities: tuple[str, ...] = ()
    worker_id: uuid.UUID | None = None  # part of the fence
    trace: str | None = None  # W3C traceparent of the caller
    leased_at: int = 0  # stamp of the lease that it was granted under (index time, µs), part of the fence
    workflow_id: uuid.UUID | None = None
    metadata: str | None = None  # JSON text of what hooks added at the enqueue
    start_by: float | None = None  # when its rate's or delay's leave to start ends, by this machine's monotonic clock

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> Self:
        """Return the record of a row with the columns ``sql.columns.CLAIMED``."""
        task = object.__new__(cls)  # a call by name of the class takes twice as long
        put = object.__setattr__
        for name, value in zip(CLAIMED_FIELDS, row, strict=True):
            put(task, name, value)
        put(task, "capabilities", tuple(task.capabilities))
        return task

    @property
    def key(self) -> AttemptKey:
        """The grant that the worker holds."""
        return self.id, self.attempt, self.leased_at

    @property
    def traceparent(self) -> str:
        """The W3C trace context of the task, also if its caller sent none."""
        return trace.of_task(self.id, self.trace)

    @property
    def trace_id(self) -> str:
        """The trace id of the task."""
        return trace.trace_id(self.traceparent)

    @property
    def ref(self) -> TaskRef:
        """The task as the index knows it."""
        return TaskRef.of(self)

    @property
    def lease(self) -> Lease:
        """The lease that it was granted under."""
        return Lease(self.id, lane_name(*_lane_of(self)), self.leased_at)


#: The fields of a claimed task in the order of ``sql.columns.CLAIMED``: the id first.
CLAIMED_FIELDS: Final = tuple(sorted((each.name for each in fields(ClaimedTask)), key="id".__ne__))


class Returned(NamedTuple):
    """A task whose attempt ended without an outcome: its status now, and the stamp of the lease to release."""

    status: Status
    leased_at: int
    task: TaskRef

    @property
    def lease(self) -> Lease:
        """The lease to release."""
        return Lease(self.task.id, self.task.lane, self.leased_at)


#: Maximum characters of a stored failure; of a traceback the end is kept. Texts are cut only after their secrets are
#: masked, because a part of a secret is not recognised. Until then they may be ``UNMASKED_FACTOR`` times as long.
MAX_CLASS: Final = 255
MAX_MESSAGE: Final = 2_000
MAX_TRACEBACK: Final = 20_000
#: Maximum characters of the stack of a running attempt.
MAX_STACK: Final = 10_000
UNMASKED_FACTOR: Final = 4
#: The class of the failure of an attempt whose process ended.
WORKER_DIED: Final = "queue_app.exceptions.WorkerDied"


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """The exception of an attempt."""

    exception_class: str
    message: str
    traceback: str
    retriable: bool = True
    retry_after: float | None = None  # seconds; None: by the backoff
    reason: str = "error"  # error, timeout, cancelled


class Throttling(NamedTuple):
    """A request of a task to close one of its gates (queue, type or key) for some seconds."""

    scope: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one attempt ended: with ``result`` (JSON text, ``None`` for null), with ``failure``, or put off.

    ``snooze`` delays the task by that many seconds without counting a failure. ``throttle`` returns the
    task to its place in the queue and closes one of its gates for a while. ``waits``: the task waits for the signal
    that its step names.
    """

    task: ClaimedTask
    started_at: datetime
    finished_at: datetime
    result: str | None = None
    failure: TaskFailure | None = None
    snooze: float | None = None
    throttle: Throttling | None = None
    waits: bool = False
    #: Whether the attempt could start only after its ``start_by``: the function was not called, and the task goes back.
    is_late: bool = False
    #: The exception itself, if this process raised it in a last attempt; for the log, never stored.
    error: BaseException | None = field(default=None, compare=False, repr=False)

    @property
    def is_completion(self) -> bool:
        """Whether the function has returned."""
        is_put_off = self.snooze is not None or self.throttle is not None or self.waits or self.is_late
        return self.failure is None and not is_put_off


class Usage(NamedTuple):
    """What a worker used of its machine between two heartbeats, by columns of its row; ``None``: unknown."""

    cpu_percent: float | None = None  # of one core
    memory_bytes: int | None = None


UNKNOWN_USAGE: Final = Usage()


class WorkerReport(NamedTuple):
    """What a worker reports about itself with each heartbeat."""

    draining: bool = False
    tasks_done: int = 0
    free_slots: int = 0  # slots for which its last claim brought no task; 0 if the worker wants none
    usage: Usage = UNKNOWN_USAGE
    slots: int | None = None  # its number of slots, if that changes


class HeartbeatAnswer(NamedTuple):
    """What a worker learns from its heartbeat."""

    alive: bool  # false: it was declared dead, and must stop its tasks, or has stopped
    should_drain: bool = False
    lost: frozenset[AttemptKey] = frozenset()  # what it holds and the rows grant no more
    is_first: bool = False  # PostgreSQL has restarted since its last heartbeat: it sends another at once
    stacks: Sequence[uuid.UUID] = ()  # tasks whose stacks staff want to see


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """What one attempt reported since its last report: progress, log lines, and a request for more time."""

    task_id: uuid.UUID
    attempt: int
    worker_id: uuid.UUID | None
    progress: float | None = None
    message: str = ""
    lines: str | None = None  # all log lines that are kept; None: nothing new
    dropped: int = 0  # number of earlier lines left out
    extend: float = 0.0  # seconds
    leased_at: int = 0  # 0: a remote worker that sends no stamp
    stack: str | None = None  # where the attempt is now, if staff asked
