"""The ``TASKQUEUE`` setting as one typed, validated object.

``conf.get()`` returns the settings in force; they follow ``override_settings``. Every key
can be overridden from the environment as ``TASKQUEUE__SECTION__KEY``. Unknown keys and
wrong values are collected as problems, which ``queue_app.checks`` reports with a suggestion.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from queue_app.core.payload import PayloadLimits
from queue_app.core.setting_values import Problem, build, merge_environment


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Defaults of ``runworker``."""

    concurrency: int = 5  # slots of one process
    heartbeat_seconds: float = 10.0  # between two heartbeats
    missed_heartbeats: int = 3  # after so many the worker is dead
    grace_seconds: float = 30.0  # how long a drain waits for running tasks
    look_ahead_ms: float = 20.0  # claim ahead as much work as takes this long; 0 claims for free slots only


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """How often each job of ``runscheduler`` runs, in seconds."""

    leader_seconds: float = 15.0  # a silent leader is replaced after this
    due_seconds: float = 0.5
    fallback_seconds: float = 10.0
    reap_seconds: float = 1.0
    overdue_seconds: float = 10.0  # past its deadline for so long, a task is taken from a worker that is stuck
    reconcile_seconds: float = 5.0
    full_pass_seconds: float = 300.0  # every queued row is compared with the index at least this often
    maintenance_seconds: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrySettings:
    """Backoff of failed tasks: ``base * 2^n`` seconds, at most ``cap``."""

    base_seconds: float = 20.0
    cap_seconds: float = 6 * 3600.0
    jitter: bool = False  # wait a random time up to that, so that what failed together comes back apart
    max_crashes: int = 3  # a task whose worker died under it so often is dead-lettered
    timeout_factor: float = 1.5  # each retry may take so many times as long as the try before


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """How long finished things are kept, and keys remembered, in seconds."""

    success_seconds: float = 7 * 86_400.0
    failure_seconds: float = 30 * 86_400.0
    dead_letter_seconds: float = 30 * 86_400.0
    stats_seconds: float = 8 * 86_400.0
    audit_seconds: float = 365 * 86_400.0  # who changed what
    worker_seconds: float = 86_400.0
    idempotency_seconds: float = 86_400.0  # from its creation on, a task stands for its idempotency key so long


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSettings:
    """The stream of lifecycle events in Redis."""

    max_length: int = 100_000  # about so many events are kept; 0 writes none
    log: bool = False  # whether each transition is a log line too, of the logger `taskqueue.transitions`


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLogSettings:
    """What is kept of the log lines of each attempt."""

    level: str = "INFO"  # and above, as far as the loggers let it pass
    max_lines: int = 200  # the last so many; 0 keeps none
    max_characters: int = 50_000  # of these lines together


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """The figures at ``/metrics``."""

    enabled: bool = True  # whether the index counts what happens, and how long it takes
    access: str = "local"  # who may read them: `local` (this machine), `token`, `staff`, or `open`; staff always may
    token: str = ""  # what a scraper sends as `Authorization: Bearer …`, where the access is `token`
    max_queues: int = 100  # so many queues get labels of their own; the others are shown together as `other`


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSettings:
    """The stream through which other services submit tasks."""

    enabled: bool = False  # whether the scheduler reads it
    user: str = "*"  # owner of the tasks; `*` stands for what the request says, as in `billing:*`


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSettings:
    """What one caller, and one process, of the REST API may use."""

    submits_per_minute: int = 60_000  # submissions of one user; 0: no limit
    reads_per_minute: int = 60_000  # other requests of one user; 0: no limit
    heavy_per_minute: int = 120  # exports, exact counts, submissions and actions of many; 0: no limit
    max_waiters: int = 4  # requests with ?wait= that one process under WSGI holds; under ASGI as many as streams
    max_streams: int = 100  # event streams that one process holds


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionSettings:
    """How much may be submitted from outside (API, request stream) where no row says otherwise."""

    max_pending_per_user: int = 100  # scheduled, queued or executing tasks of one user
    lock_seconds: float = 10.0  # a submission waits at most so long for those of the same queue or user before it


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskQueueSettings:
    """Everything that a project may set in ``TASKQUEUE``."""

    redis_alias: str = "default"  # the CACHES alias (django-redis) whose server holds the index
    database_alias: str = "default"
    key_prefix: str = "taskqueue"  # all keys lie under {key_prefix}
    task_modules: list[str] = field(default_factory=lambda: ["tasks"])  # looked for in every installed app
    sensitive: list[str] = field(default_factory=list)  # names of parameters of any task whose values are masked
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


@cache
def get() -> TaskQueueSettings:
    """Return the settings in force; raise ``ImproperlyConfigured`` with every problem at once."""
    settings, problems = load()
    if problems:
        raise ImproperlyConfigured(" ".join(f"TASKQUEUE {p.key}: {p.message} {p.hint}".strip() for p in problems))
    return settings


@cache
def load() -> tuple[TaskQueueSettings, tuple[Problem, ...]]:
    """Return the settings, and what is wrong with them (defaults stand in for wrong values)."""
    raw = getattr(django_settings, "TASKQUEUE", {})
    problems: list[Problem] = []
    if not isinstance(raw, Mapping):
        problems.append(Problem("", f"is a {type(raw).__name__}.", "Make it a dict."))
        raw = {}
    merged = merge_environment(raw, os.environ, problems)
    return build(TaskQueueSettings, merged, "", problems), tuple(problems)


def reset() -> None:
    """Read the settings and the environment again at the next use."""
    get.cache_clear()
    load.cache_clear()


def _reset(*, setting: str, **_: Any) -> None:
    if setting == "TASKQUEUE":
        reset()


setting_changed.connect(_reset, dispatch_uid="queue_app.conf")
