"""Every metric of the queue: its name, kind, labels and meaning. The reference page is written from this table."""

from __future__ import annotations

from typing import Final, NamedTuple


class Metric(NamedTuple):
    """One metric. A counter's name ends in ``_total``; all times are in seconds."""

    name: str
    kind: str  # counter, gauge or histogram
    labels: tuple[str, ...]
    help: str


GAUGE: Final = "gauge"
COUNTER: Final = "counter"
HISTOGRAM: Final = "histogram"

ALL: Final = (
    Metric("up", GAUGE, ("component",), "1 while the server (redis, postgresql) answers, else 0."),
    Metric("queue_depth", GAUGE, ("queue", "priority"), "Queued tasks, by effective band."),
    Metric(
        "queue_oldest_age_seconds",
        GAUGE,
        ("queue", "priority"),
        "How long the oldest queued task has been queued; 0 when there is none.",
    ),
    Metric("queue_active", GAUGE, ("queue",), "Slots in use."),
    Metric("queue_paused", GAUGE, ("queue",), "1 while the queue starts nothing, by itself or with all others."),
    Metric("queue_enqueued_total", COUNTER, ("queue", "priority"), "Tasks that were stored."),
    Metric("queue_scheduled_total", COUNTER, ("queue", "priority"), "Tasks that were put off: for later, or to retry."),
    Metric("queue_started_total", COUNTER, ("queue", "priority"), "Attempts that a worker was granted."),
    Metric(
        "queue_wait_seconds",
        HISTOGRAM,
        ("queue", "priority", "status"),
        "From queued to started, of attempts that ended, by the state that followed.",
    ),
    Metric(
        "task_duration_seconds",
        HISTOGRAM,
        ("queue", "priority", "status"),
        "From started to ended, of attempts, by the state that followed.",
    ),
    Metric("tasks_promoted_total", COUNTER, ("from", "to"), "Steps that aged tasks rose."),
    Metric("task_retries_total", COUNTER, ("reason",), "Attempts that failed and are tried again."),
    Metric("tasks_failed_total", COUNTER, ("reason",), "Attempts that failed, whatever follows."),
    Metric("tasks_dlq_total", COUNTER, ("reason",), "Tasks that became dead letters."),
    Metric("task_state_total", COUNTER, ("state",), "Times that a task came into the state."),
    Metric("workers_total", GAUGE, ("status",), "Worker processes, those that ended a while ago included."),
    Metric("worker_slots", GAUGE, (), "Slots of workers that take tasks."),
    Metric("worker_capacity_used_ratio", GAUGE, (), "Slots in use, of those of workers that take tasks."),
    Metric("worker_heartbeat_failures_total", COUNTER, (), "Workers that were declared dead."),
    Metric("index_generation", GAUGE, (), "The generation that claims must belong to."),
    Metric("index_ready", GAUGE, (), "1 while the index may propose work."),
    Metric("index_rebuild_seconds", GAUGE, (), "How long the last rebuild took, or the one under way so far."),
    Metric("index_repairs_total", COUNTER, ("kind",), "What the reconciler repaired."),
    Metric("scheduler_leading", GAUGE, (), "1 while a scheduler leads."),
    Metric("scheduler_leader_age_seconds", GAUGE, (), "Since the leading scheduler last said so."),
    Metric("maintenance_age_seconds", GAUGE, ("job",), "Since the last success of a job of upkeep."),
)

BY_NAME: Final = {metric.name: metric for metric in ALL}
