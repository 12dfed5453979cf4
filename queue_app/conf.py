"""The ``TASKQUEUE`` setting as one typed, validated object.

``conf.get()`` returns the current settings; they follow ``override_settings``. The environment
variable ``TASKQUEUE__SECTION__KEY`` overrides a key. ``queue_app.checks`` reports unknown keys
and invalid values.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from queue_app.core.parsing import Problem, build, merge_environment
from queue_app.core.payload import PayloadLimits

#: The probes that every project has: dotted paths by name.
PROBES = {
    "cpu": "queue_app.adaptive.probes.host_cpu",
    "postgresql": "queue_app.adaptive.probes.postgresql_active",
}
#: Where claims find tasks: an index in Redis, or tables of PostgreSQL.
REDIS, ROWS = "redis", "rows"
NEEDS_USE_TZ = "The task queue needs USE_TZ = True: without it, Django returns times that have no time zone."


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Defaults of ``runworker``."""

    concurrency: int = 5  # slots of one process
    heartbeat_seconds: float = 10.0  # interval of heartbeats
    missed_heartbeats: int = 3  # missed heartbeats after which a worker is dead
    grace_seconds: float = 30.0  # time that a draining worker waits for running tasks
    look_ahead_ms: float = 20.0  # claim this much work in advance; 0: only for free slots


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """Intervals of the jobs of ``runscheduler``, in seconds."""

    leader_seconds: float = 15.0  # silence after which another scheduler leads
    due_seconds: float = 1.0  # check for scheduled tasks whose time has come, and for an index to rebuild
    fallback_seconds: float = 10.0  # repeat wake-up calls that may have been lost
    reap_seconds: float = 1.0  # check for dead workers
    overdue_seconds: float = 10.0  # time past its deadline after which a stuck worker loses a task
    reconcile_seconds: float = 5.0  # compare the next part of rows and index
    full_pass_seconds: float = 300.0  # interval in which every queued row is compared with the index
    maintenance_seconds: float = 60.0  # check for overdue upkeep jobs
    promote_batch: int = 500  # aged tasks that one call of the index promotes; a run has several calls


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrySettings:
    """Backoff of failed tasks: ``base * 2^n`` seconds, at most ``cap``."""

    base_seconds: float = 20.0  # wait before the first retry; it doubles with each further one
    cap_seconds: float = 6 * 3600.0  # longest wait, unless the task asks for a longer first one
    jitter: bool = False  # wait a random part of it, which spreads the retries of tasks that failed together
    max_crashes: int = 3  # dead workers after which a task becomes a dead letter; a stored step resets the count
    timeout_factor: float = 1.5  # factor by which the timeout grows with each retry


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """Retention of ended tasks and other records, in seconds."""

    success_seconds: float = 7 * 86_400.0  # completed tasks
    failure_seconds: float = 30 * 86_400.0  # tasks that ended in any other state
    dead_letter_seconds: float = 30 * 86_400.0  # dead letters
    stats_seconds: float = 8 * 86_400.0  # statistics of queues
    task_stats_seconds: float = 31 * 86_400.0  # statistics of task types, users and concurrency keys
    audit_seconds: float = 365 * 86_400.0  # entries of the audit log
    tick_seconds: float = 90 * 86_400.0  # ticks of schedules
    worker_seconds: float = 86_400.0  # workers that have ended
    idempotency_seconds: float = 86_400.0  # how long a task keeps its idempotency key after its creation


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSettings:
    """The stream of lifecycle events in Redis."""

    max_length: int = 100_000  # approximate number of stored events; 0 stores none
    log: bool = False  # also log each transition, with the logger `taskqueue.transitions`


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLogSettings:
    """Stored log lines of each attempt."""

    level: str = "INFO"  # lowest stored level, if the loggers emit it
    max_lines: int = 200  # stored lines, the last ones; 0 stores none
    max_characters: int = 50_000  # total length of these lines


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """Metrics at ``/metrics``."""

    enabled: bool = True  # whether the index counts events and times
    access: str = "local"  # who may read them: `local` (this machine), `token`, `staff` or `open`; staff always may
    token: str = ""  # with the access `token`: what a scraper sends as `Authorization: Bearer …`
    max_queues: int = 100  # queues with their own labels; the rest share `other`


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSettings:
    """The stream in which other services submit tasks."""

    enabled: bool = False  # whether the scheduler reads it
    user: str = "*"  # owner of the tasks; `*` stands for the user in the request, also in `billing:*`


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSettings:
    """Who may submit over the REST API, and its limits by user and by process."""

    submit_needs_permission: bool = True  # whether only users with the permission queue_app.add_task may submit
    submits_per_minute: int = 60_000  # submissions by one user; 0: no limit
    reads_per_minute: int = 60_000  # other requests by one user; 0: no limit
    heavy_per_minute: int = 120  # exports, exact counts, bulk submissions and actions by one user; 0: no limit
    max_waiters: int = 4  # open requests with ?wait= and worker polls of one WSGI process; ASGI allows MAX_STREAMS
    max_streams: int = 100  # open event streams of one process
    max_open_per_caller: int = 50  # waiting requests of one user or token in one process; the same for event streams
    max_connections: int = 20  # requests that use PostgreSQL at once in one ASGI process; others wait up to 10 s
    body_seconds: float = 60.0  # time for the body of a request to arrive under ASGI (queue_app.api.asgi)
    failed_logins_per_minute: int = 20  # wrong passwords from one address for one user in one process; 0: no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionSettings:
    """Limits of submissions by API and request stream, unless a row sets others."""

    max_length: int = 10_000  # waiting tasks of one queue
    stale_seconds: float = 3600.0  # age at which a task makes room in a full queue; 1e9: never
    max_pending_per_user: int = 100  # pending tasks of one user
    lock_seconds: float = 10.0  # longest wait of a submission for earlier ones of the same queue or user


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowSettings:
    """Limits of one workflow."""

    max_tasks: int = 250_000  # tasks of one workflow
    max_dependencies: int = 1_000_000  # dependencies between them
    max_input_bytes: int = 16 * 1024 * 1024  # bytes of JSON text of the results that flow into one task


@dataclass(frozen=True, slots=True, kw_only=True)
class EncryptionSettings:
    """Encryption of arguments, results, errors and log lines at rest."""

    keys: list[str] = field(default_factory=list)  # `id:key`, newest first: the first encrypts, all decrypt
    tasks: list[str] = field(default_factory=list)  # encrypted types, `*` for any characters; or `encrypted=True`


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskQueueSettings:
    """All settings in ``TASKQUEUE``."""

    redis_alias: str = "default"  # CACHES alias (django-redis) of the server that holds the index
    database_alias: str = "default"  # DATABASES alias of the rows; any other than `default` needs a router
    key_prefix: str = "taskqueue"  # prefix of all keys; projects that share a Redis need different ones
    index: str = ""  # where claims find tasks: `redis` or `rows` (no Redis); empty: by the cache of `REDIS_ALIAS`
    task_modules: list[str] = field(default_factory=lambda: ["tasks"])  # modules of installed apps that define tasks
    sensitive: list[str] = field(default_factory=list)  # names of parameters whose values are masked for all tasks
    codecs: list[str] = field(default_factory=list)  # codecs for arguments: built-in names, or dotted paths
    queues: list[str] = field(default_factory=list)  # names of the project's queues; any other name causes a warning
    strict_queues: bool = False  # refuse a queue that neither QUEUES nor a row names, instead of a warning
    typed_arguments: bool = False  # also check arguments against the annotations of functions, with typeguard
    hooks: list[str] = field(default_factory=list)  # dotted paths of hooks around enqueue and run, outermost first
    says_medium: bool = False  # whether queue statistics and metrics call the band normal `medium`
    payload: PayloadLimits = field(default_factory=PayloadLimits)
    worker: WorkerSettings = field(default_factory=WorkerSettings)
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    retry: RetrySettings = field(default_factory=RetrySettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    events: EventSettings = field(default_factory=EventSettings)
    requests: RequestSettings = field(default_factory=RequestSettings)
    api: ApiSettings = field(default_factory=ApiSettings)
    task_logs: TaskLogSettings = field(default_factory=TaskLogSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    admission: AdmissionSettings = field(default_factory=AdmissionSettings)
    workflows: WorkflowSettings = field(default_factory=WorkflowSettings)
    encryption: EncryptionSettings = field(default_factory=EncryptionSettings)
    schedules: dict[str, Any] = field(default_factory=dict)  # schedules by name, as `@schedule` declares them
    webhooks: dict[str, Any] = field(default_factory=dict)  # endpoints by name, see `queue_app.webhooks`
    probes: dict[str, str] = field(default_factory=dict)  # more probes of adaptive limits: dotted paths by name

    @property
    def all_probes(self) -> dict[str, str]:
        """The dotted paths of the probes by name, with the ready-made ones."""
        return PROBES | self.probes


@cache
def get() -> TaskQueueSettings:
    """Return the settings, with the ``index`` in force.

    Raises ``ImproperlyConfigured`` with all problems, or if times would have no zone.
    """
    if not django_settings.USE_TZ:
        raise ImproperlyConfigured(NEEDS_USE_TZ)
    settings, problems = load()
    if problems:
        raise ImproperlyConfigured(" ".join(f"{problem} {problem.hint}" for problem in problems))
    return replace(settings, index=way_of(settings))


@cache
def load() -> tuple[TaskQueueSettings, tuple[Problem, ...]]:
    """Return the settings, with defaults for invalid values, and all problems."""
    raw = getattr(django_settings, "TASKQUEUE", {})
    problems: list[Problem] = []
    if not isinstance(raw, Mapping):
        problems.append(Problem("", f"is a {type(raw).__name__}.", "Make it a dict."))
        raw = {}
    merged = merge_environment(raw, os.environ, problems)
    return build(TaskQueueSettings, merged, "", problems), tuple(problems)


def way_of(settings: TaskQueueSettings) -> str:
    """Return where claims find tasks; if the project does not say, in Redis, unless the cache is another one."""
    cache = django_settings.CACHES.get(settings.redis_alias)
    is_redis = cache is None or is_django_redis(cache.get("BACKEND", ""))
    return settings.index or (REDIS if is_redis else ROWS)


def is_django_redis(backend: str) -> bool:
    """Whether a cache backend is that of django-redis or extends it, as that of django-prometheus does."""
    if "django_redis" in backend:
        return True
    try:
        found = import_string(backend)
    except ImportError:
        return False
    return any(base.__module__.startswith("django_redis.") for base in getattr(found, "__mro__", ()))


def reset() -> None:
    """Read the settings and the environment again at the next use."""
    get.cache_clear()
    load.cache_clear()


def _reset(*, setting: str, **_: Any) -> None:
    if setting in ("TASKQUEUE", "USE_TZ", "CACHES"):
        reset()


setting_changed.connect(_reset, dispatch_uid="queue_app.conf")
