"""Every metric of the queue; the reference page is generated from this table."""

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
    Metric(
        "up",
        GAUGE,
        ("component",),
        "1 while the server (redis, postgresql) answers; 0 if PostgreSQL is read-only.",
    ),
    Metric("queue_depth", GAUGE, ("queue", "priority"), "Queued tasks by effective band."),
    Metric(
        "queue_oldest_age_seconds", GAUGE, ("queue", "priority"), "Age of the oldest queued task; 0 when there is none."
    ),
    Metric("queue_active", GAUGE, ("queue",), "Slots in use."),
    Metric("queue_paused", GAUGE, ("queue",), "1 while the queue, or the whole system, is paused."),
    Metric("queue_enqueue_total", COUNTER, ("queue", "priority"), "Stored tasks."),
    Metric("tasks_delayed_total", COUNTER, ("queue", "priority"), "Tasks scheduled for later or for a retry."),
    Metric("queue_schedule_total", COUNTER, ("queue", "priority"), "Started attempts."),
    Metric(
        "queue_wait_time",
        HISTOGRAM,
        ("queue", "priority", "status"),
        "Time from queued to started of ended attempts, by resulting state.",
    ),
    Metric(
        "attempt_duration_seconds",
        HISTOGRAM,
        ("queue", "priority", "status"),
        "Time from started to ended of attempts, by resulting state.",
    ),
    Metric("tasks_promoted_total", COUNTER, ("from", "to"), "Promotions of aged tasks by one band."),
    Metric(
        "task_duration_seconds",
        HISTOGRAM,
        ("queue", "priority", "status"),
        "Time from enqueue to end of tasks that an attempt ended, by final state.",
    ),
    Metric(
        "queue_age_seconds",
        GAUGE,
        ("priority", "percentile"),
        "Time from queued to started of the last 2000 tasks that ended: p50, p95 and p99.",
    ),
    Metric("task_retries_total", COUNTER, ("priority", "reason"), "Failed attempts that are retried."),
    Metric("tasks_failed_total", COUNTER, ("reason",), "Failed attempts, retried or not."),
    Metric("tasks_dlq_total", COUNTER, ("reason",), "Tasks that became dead letters."),
    Metric(
        "task_state_total",
        GAUGE,
        ("status",),
        "Stored tasks by state. Queued and executing are exact; other numbers above 50 000 are estimates.",
    ),
    Metric("task_transitions_total", COUNTER, ("status",), "Transitions into the state."),
    Metric("workers_total", GAUGE, ("status",), "Worker processes, including those that have ended."),
    Metric("worker_slots", GAUGE, (), "Slots of active workers."),
    Metric("worker_capacity_used_ratio", GAUGE, (), "Share of active workers' slots in use."),
    Metric("worker_heartbeat_failures_total", COUNTER, (), "Workers that were declared dead."),
    Metric("index_generation", GAUGE, (), "Current generation of the index."),
    Metric("index_way", GAUGE, ("way",), "1 for the place in which claims find tasks: redis, or rows of PostgreSQL."),
    Metric(
        "index_away_seconds", GAUGE, (), "How long claims have read the rows because Redis is away; 0: they do not."
    ),
    Metric("index_ready", GAUGE, (), "1 while the index is ready for claims."),
    Metric("index_rebuild_seconds", GAUGE, (), "Duration of the current or last rebuild."),
    Metric("index_repairs_total", COUNTER, ("kind",), "Repairs by the reconciler."),
    Metric("scheduler_leading", GAUGE, (), "1 while a scheduler leads."),
    Metric("scheduler_leader_age_seconds", GAUGE, (), "Time since the leading scheduler renewed its lock."),
    Metric("stalled", GAUGE, ("kind",), "Current stalls: work that could continue but stands still."),
    Metric("stalls_total", COUNTER, ("kind",), "Stalls that the scheduler found."),
    Metric("schedule_ticks_total", COUNTER, ("outcome",), "Ticks of schedules: enqueued, skipped or refused."),
    Metric("schedule_lateness_seconds", HISTOGRAM, (), "Time from a tick to the enqueue of its task."),
    Metric("schedule_overdue_seconds", GAUGE, (), "How long the most overdue schedule has been due; 0: none."),
    Metric(
        "schedule_failures_in_a_row",
        GAUGE,
        ("schedule",),
        "Latest ticks in a row whose tasks failed, of each failing schedule.",
    ),
    Metric("workflow_state_total", GAUGE, ("state",), "Stored workflows by state; numbers above 50 000 are estimates."),
    Metric("workflows_held", GAUGE, (), "Workflows that a failed task holds until a person retries or discards it."),
    Metric("workflow_held_seconds", GAUGE, (), "How long the longest-held workflow has been held; 0: none."),
    Metric("limit_value", GAUGE, ("scope", "name"), "Adaptive limits: the value in force."),
    Metric("limit_run_time_ratio", GAUGE, ("scope", "name"), "Adaptive limits: run times / their baseline."),
    Metric("limits_adapted_total", COUNTER, (), "Changes of adaptive limits."),
    Metric("maintenance_age_seconds", GAUGE, ("job",), "Time since the last success of an upkeep job."),
)

BY_NAME: Final = {metric.name: metric for metric in ALL}
