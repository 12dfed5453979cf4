"""Whether work flows: index, scheduler, upkeep, workers, queues, dead letters."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from django.utils import timezone

from queue_app import conf
from queue_app.core.finding import Finding, fail, ok, warn
from queue_app.index import IndexStats, get_index
from queue_app.index.server import waiting_kinds
from queue_app.models import IndexGeneration, MaintenanceJob, Queue, RuntimeSettings, Worker
from queue_app.models.worker import WorkerStatus
from queue_app.services.upkeep.maintenance import JOBS, OVERDUE_INTERVALS
from queue_app.sql import doctor as rows

REBUILD_SECONDS: Final = 60.0
#: Rows are counted up to so many when they are compared with the index.
COMPARED: Final = 2_000_000
#: A difference is looked at again after so long: tasks move between the two counts.
SETTLE_SECONDS: Final = 1.0
DEATHS_PER_MINUTE: Final = 10
DEATH_WINDOW: Final = 300.0
RECENTLY: Final = 3600.0
SHOWN: Final = 5


def check_index() -> Iterator[Finding]:
    """Report an index that may not propose work, and how old its generation is."""
    stats = get_index().stats()
    row = IndexGeneration.objects.filter(pk=1).first()
    now = timezone.now()
    if stats.state == "ready" and row is not None and stats.generation == row.number and row.ready_at:
        age = (now - row.ready_at).total_seconds()
        yield ok("index", f"generation {row.number}, ready for {age:,.0f} s")
        return
    since = (now - row.started_at).total_seconds() if row is not None and row.started_at else None
    what = f"the index is {stats.state}"
    if stats.state == "ready":
        what = f"the index carries generation {stats.generation}, the rows {row.number if row else 0}"
    if stats.state == "rebuilding" and since is not None and since < REBUILD_SECONDS:
        yield warn("index", f"{what} since {since:.0f} s; claims wait", "Wait; the scheduler is at it.")
    else:
        yield fail(
            "index",
            f"{what}; nothing is claimed",
            "Start `manage.py runscheduler`, or run `manage.py taskqueue rebuild`.",
        )


def check_scheduler() -> Iterator[Finding]:
    """Report that no scheduler leads."""
    lapses = get_index().stats().leader_lapses
    if lapses is None:
        yield fail(
            "scheduler",
            "nobody leads: due tasks, dead workers and repairs wait",
            "Start `manage.py runscheduler`, best as two processes on two machines.",
        )
    else:
        age = max(0.0, conf.get().scheduler.leader_seconds - lapses)
        yield ok("scheduler", f"one leads; it said so {age:.1f} s ago")


def check_maintenance() -> Iterator[Finding]:
    """Report jobs of upkeep that nobody has done for long."""
    found = {job.name: job for job in MaintenanceJob.objects.all()}
    limit = OVERDUE_INTERVALS * conf.get().scheduler.maintenance_seconds
    late: list[str] = []
    errors: list[str] = []
    for name in JOBS:
        job = found.get(name)
        if job is not None and job.error:
            errors.append(f"{name}: {job.error:.200}")
        at = job.succeeded_at if job is not None else None
        if at is None:
            late.append(f"{name} never ran")
        elif (timezone.now() - at).total_seconds() > limit:
            late.append(f"{name} {(timezone.now() - at).total_seconds():,.0f} s ago")
    if errors:
        yield fail("maintenance", f"failed the last time: {'; '.join(errors)}", "See the log of who ran it.")
    elif late:
        yield warn(
            "maintenance",
            f"overdue: {', '.join(late)}",
            "Start Celery's worker and beat, or `manage.py runscheduler`, which runs what is overdue.",
        )
    else:
        yield ok("maintenance", f"{', '.join(JOBS)}: all on time")


def check_workers() -> Iterator[Finding]:
    """Report that there is no worker, and workers that are silent, stuck, or died lately."""
    settings = conf.get()
    silent = rows.silent_workers(settings.worker.missed_heartbeats)
    if silent:
        told = ", ".join(f"{w.name} ({w.host}, pid {w.pid}) for {w.seconds:.0f} s" for w in silent[:SHOWN])
        yield fail(
            "workers",
            f"{len(silent)} silent and not yet declared dead: {told}",
            "A scheduler does that; if one leads, its clock or its database is slow.",
        )
    stuck = rows.overdue_tasks(settings.scheduler.overdue_seconds)
    if stuck:
        told = ", ".join(f"{kind} {task_id} for {late:.0f} s" for task_id, kind, late in stuck[:SHOWN])
        yield fail(
            "workers",
            f"{len(stuck)} tasks are past their deadline and still executing: {told}",
            "A scheduler takes them away; if one leads, look at the worker: a thread that blocks cannot be ended.",
        )
    dead = rows.workers_dead_within(RECENTLY)
    if dead:
        yield warn(
            "workers",
            f"{dead} declared dead within the last hour",
            "Look into their logs, and for the kernel's out-of-memory killer.",
        )
    if not (silent or stuck or dead):
        yield _presence()


def _presence() -> Finding:
    active = list(Worker.objects.filter(status=WorkerStatus.ACTIVE).values_list("concurrency", flat=True))
    if active:
        return ok("workers", f"{len(active)} active with {sum(active)} slots")
    hint = "Start `manage.py runworker`."
    if any(rows.counts_to_compare(1)):
        return fail("workers", "none is active, and tasks wait", hint)
    return warn("workers", "none is active", hint)


def check_queues() -> Iterator[Finding]:
    """Report what waits and nobody can run, paused queues, and a pause of everything."""
    index = get_index()
    stats = index.stats()
    workers = list(Worker.objects.filter(status=WorkerStatus.ACTIVE))
    paused = {queue.name: queue for queue in Queue.objects.filter(paused=True)}
    overall = RuntimeSettings.objects.filter(pk=1).first()
    found = False
    if overall is not None and overall.paused:
        found = True
        yield warn("queues", f"all are paused by {overall.paused_by or 'somebody'}", "`taskqueue resume --all`")
    for depth in (depth for depth in stats.queues if depth.total):
        name = depth.queue
        if name in paused:
            found = True
            queue = paused[name]
            yield warn(
                "queues",
                f"{name} is paused by {queue.paused_by or 'somebody'} and holds {depth.total:,} tasks",
                f"`taskqueue resume {name}` when it may go on. {queue.paused_reason}".strip(),
            )
            continue
        serving = [worker for worker in workers if not worker.queues or name in worker.queues]
        if not serving:
            found = True
            yield fail(
                "queues",
                f"{name} holds {depth.total:,} tasks and no worker serves it",
                f"Start `manage.py runworker --queues {name}`, or one without --queues.",
            )
            continue
        unserved = [kind for kind in sorted(waiting_kinds(index, name)) if not any(_runs(w, kind) for w in serving)]
        if unserved:
            found = True
            told = ", ".join(t + (f" (needs {', '.join(caps)})" if caps else "") for t, caps in unserved[:SHOWN])
            yield fail(
                "queues",
                f"{name} holds tasks of {len(unserved)} kinds that no worker can run: {told}",
                "Deploy the code of these task types to the workers, or start one with these --capabilities.",
            )
    if not found:
        yield ok(
            "queues", f"{sum(depth.total for depth in stats.queues):,} tasks wait; each has a worker that can run it"
        )


def _runs(worker: Worker, kind: tuple[str, tuple[str, ...]]) -> bool:
    task_type, capabilities = kind
    return task_type in worker.task_types and set(capabilities) <= set(worker.capabilities)


def check_agreement() -> Iterator[Finding]:
    """Report an index that counts other than the rows; repairs nothing."""
    differs = _difference(get_index().stats())
    if differs:
        time.sleep(SETTLE_SECONDS)
        differs = _difference(get_index().stats())
    if differs:
        yield warn(
            "agreement",
            f"rows and index differ: {differs}",
            "The scheduler repairs it within some minutes; `manage.py taskqueue rebuild` does at once.",
        )
    else:
        yield ok("agreement", "the index counts what the rows count")


def _difference(stats: IndexStats) -> str:
    queued, executing = rows.counts_to_compare(COMPARED)
    indexed, leased = sum(queue.total for queue in stats.queues), sum(queue.active for queue in stats.queues)
    told = []
    if queued < COMPARED and abs(queued - indexed) > max(50, queued // 100):
        told.append(f"{queued:,} rows are queued, {indexed:,} are indexed")
    if abs(executing - leased) > max(50, executing // 10):
        told.append(f"{executing:,} rows execute, {leased:,} leases are held")
    return "; ".join(told)


def check_deaths() -> Iterator[Finding]:
    """Report that many tasks die."""
    lately = rows.deaths(DEATH_WINDOW)
    rate = lately / (DEATH_WINDOW / 60)
    if rate > DEATHS_PER_MINUTE:
        yield warn(
            "dead letters",
            f"{lately:,} tasks died within the last {DEATH_WINDOW / 60:.0f} minutes",
            "Look at their errors in the admin, pause the queue, fix the cause, then replay.",
        )
    else:
        yield ok("dead letters", f"{lately:,} within the last {DEATH_WINDOW / 60:.0f} minutes")
