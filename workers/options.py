"""The options of a worker, validated, and the identity under which it registers."""

import os
import socket
import uuid
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

from queue_app.core.process import process_identity
from queue_app.exceptions import InvalidTaskData
from queue_app.services.enqueue.validate import check_capabilities, check_queue_name
from queue_app.services.worker.registration import WorkerIdentity
from queue_app.workers.auto_slots import SlotRange
from queue_app.workers.resources import ResourceLimits

DISTRIBUTION = "django-priority-taskqueue"
MAX_CONCURRENCY = 1000
MAX_PROCESSES = 256
MAX_NAME = 200
MAX_SECONDS = 1e9
POOLS = ("threads", "processes", "async")


def default_name() -> str:
    """Return the host name and process id."""
    return f"{socket.gethostname()}:{os.getpid()}"


def numbered_name(name: str, number: int) -> str:
    """Return the name of one of several processes, cut to the maximum length."""
    suffix = f"/{number}"
    return name[: MAX_NAME - len(suffix)] + suffix


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Options of one worker process. Raises ``InvalidTaskData`` for values out of range."""

    queues: tuple[str, ...] = ()  # empty: all queues
    excluded: tuple[str, ...] = ()  # queues that it does not serve, if it serves all others
    capabilities: tuple[str, ...] = ()
    concurrency: int = 5  # with ``auto``, to begin with
    auto: SlotRange | None = None  # the worker changes its slots within this range
    name: str = field(default_factory=default_name)
    max_tasks: int | None = None  # number of tasks after which the worker exits
    burst: bool = False  # exit when nothing can start, now or soon
    grace_seconds: float = 30.0
    heartbeat_seconds: float = 10.0
    look_ahead_ms: float = 20.0
    with_scheduler: bool = False  # run a scheduler in a thread
    pool: str = "threads"
    limits: ResourceLimits = field(default_factory=ResourceLimits)  # of each process of the process pool

    def __post_init__(self) -> None:
        object.__setattr__(self, "queues", tuple(sorted({check_queue_name(name) for name in self.queues})))
        object.__setattr__(self, "excluded", tuple(sorted({check_queue_name(name) for name in self.excluded})))
        if self.queues and self.excluded:
            raise InvalidTaskData("exclude-queues", "exclude-queues serves all other queues; leave --queues out.")
        object.__setattr__(self, "capabilities", check_capabilities(self.capabilities))
        if self.auto is not None:
            _check_range("concurrency", self.auto.least, 1, self.auto.most)
            _check_range("concurrency", self.auto.most, 1, MAX_CONCURRENCY)
            object.__setattr__(self, "concurrency", self.auto.clamp(self.concurrency))
        _check_range("concurrency", self.concurrency, 1, MAX_CONCURRENCY)
        if self.max_tasks is not None:
            _check_range("max-tasks", self.max_tasks, 1, 10**12)
        _check_range("grace", self.grace_seconds, 0, MAX_SECONDS)
        if self.pool not in POOLS:
            raise InvalidTaskData("pool", f"pool must be one of {', '.join(POOLS)}, not {self.pool!r}.")
        if self.limits.any and self.pool != "processes":
            message = "limits of memory, tasks and resources need slots that are processes: add --pool processes."
            raise InvalidTaskData("pool", message)
        if not self.name.isprintable() or not 0 < len(self.name) <= MAX_NAME:
            raise InvalidTaskData("name", f"name must have 1 to {MAX_NAME} printable characters.")


def _check_range(field_name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # refuses NaN too
        message = f"{field_name} must lie between {low} and {high:.0f}, not {value}."
        raise InvalidTaskData(field_name, message, limit=int(high))


def check_processes(value: int) -> int:
    """Return the number of processes; raise ``InvalidTaskData`` if it is out of range."""
    _check_range("processes", value, 1, MAX_PROCESSES)
    return value


def release() -> str:
    """Return the installed version of the queue."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:  # run from a checkout
        return "development"


def identify(worker_id: uuid.UUID, name: str, supervisor_pid: int | None = None) -> WorkerIdentity:
    """Return the identity under which this process registers."""
    return WorkerIdentity(
        id=worker_id,
        name=name,
        host=socket.gethostname(),
        pid=os.getpid(),
        process_identity=process_identity(os.getpid()),
        version=release(),
        supervisor_pid=supervisor_pid,
    )
