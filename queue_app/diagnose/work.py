"""Checks of the work: index, scheduler, maintenance, workers, queues."""

import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final

from django.utils import timezone

from queue_app import conf, registry
from queue_app.core.finding import Finding, fail, ok, warn
from queue_app.core.stall import StallKind
from queue_app.diagnose import pauses, stalls
from queue_app.diagnose.pauses import count_tasks
from queue_app.exceptions import IndexOfAnotherDatabase
from queue_app.index import get_index
from queue_app.index.server import index_health, waiting_kinds
from queue_app.models import IndexGeneration, MaintenanceJob, Queue, RuntimeSettings, Worker
from queue_app.models.worker import WorkerStatus
from queue_app.services.owner import ADVICE, check_owner, without_advice
from queue_app.services.upkeep.maintenance import JOBS, OVERDUE_INTERVALS
from queue_app.sql import doctor as rows

#: Duration of a rebuild that is still normal.
REBUILD_SECONDS: Final = 60.0
#: Condemnations in a row that are reported, and for how long.
CONDEMNED: Final = 3
CONDEMNED_RECENTLY: Final = timedelta(minutes=10)
#: Maximum number of rows that are counted for the comparison with the index.
COMPARED: Final = 2_000_000
#: Number of tasks by which the counts may differ while tasks move.
SLACK: Final = 50
#: Pause before a difference is counted again: tasks move between the two counts.
SETTLE_SECONDS: Final = 1.0
#: Period in seconds for which dead workers are reported.
RECENTLY: Final = 3600.0
#: Maximum number of workers, tasks or task types that a finding names.
NAMED: Final = 5
#: Maximum number of unknown task types whose cause a hint explains.
EXPLAINED: Final = 3


def check_index() -> Iterator[Finding]:
    """Report an index that may not propose tasks."""
    stats = get_index().stats()
    row = IndexGeneration.objects.filter(pk=1).first()
    now = timezone.now()
    try:
        check_owner()
    except IndexOfAnotherDatabase as error:
        yield fail("index", without_advice(error), ADVICE)
        return
    if stats.state == "ready" and row is not None and stats.generation == row.number and row.ready_at:
        age = (now - row.ready_at).total_seconds()
        if row.condemned >= CONDEMNED and row.condemned_at and now - row.condemned_at < CONDEMNED_RECENTLY:
            message = (
                f"it was condemned {row.condemned} times in a row and rebuilt, last because: {row.condemned_because}"
            )
            yield warn(
                "index", message, "Find out what damages it: another program on this Redis and prefix, or eviction."
            )
        else:
            yield ok("index", f"generation {row.number}, ready for {age:,.0f} s")
        return
    since = (now - row.started_at).total_seconds() if row is not None and row.started_at else None
    what = f"the index is {stats.state}"
    if stats.state in ("ready", "loading"):
        what = f"the index carries generation {stats.generation}, the rows {row.number if row else 0}"
    if stats.state == "loading" and row is not None and stats.generation == row.number:
        message = f"it is being rebuilt, for {since or 0:.0f} s now; claims continue"
        yield warn("index", message, "Wait until all waiting tasks are in it.")
    elif stats.state == "rebuilding" and since is not None and since < REBUILD_SECONDS:
        yield warn("index", f"{what}, for {since:.0f} s now; claims wait", "Wait until the scheduler has rebuilt it.")
    else:
        yield fail(
            "index",
            f"{what}; no task is claimed",
            "Start `manage.py runscheduler`, or run `manage.py taskqueue rebuild`.",
        )


def check_scheduler() -> Iterator[Finding]:
    """Report a missing scheduler."""
    lapses = get_index().stats().leader_lapses
    if lapses is None:
        yield fail(
            "scheduler",
            "none leads: due tasks, dead workers and repairs wait",
            "Start `manage.py runscheduler`, preferably on two machines.",
        )
    else:
        age = max(0.0, conf.get().scheduler.leader_seconds - lapses)
        yield ok("scheduler", f"one leads; it renewed its leadership {age:.1f} s ago")


def check_stalls() -> Iterator[Finding]:
    """Report work that stands still although nothing prevents it, and a scheduler that does not look for it."""
    watched = stalls.read()
    when = "never" if watched.age is None else f"{watched.age:,.0f} s ago"
    for stall in watched.stalls:
        done = f" What the scheduler has done: {stall.steps}" if stall.steps else ""
        hint = "See the runbook `stalled`. The scheduler repairs the index itself, ever less often; to do it now, run"
        hint = f"{hint} `manage.py taskqueue rebuild`."
        if stall.kind is StallKind.JOB:
            hint = "Remove the cause; the scheduler tries the job again by itself. Its log has the traceback."
        yield fail("stalls", f"{stall.text} Last look: {when}.{done}", hint)
    leads = index_health(get_index()).has_leader
    if leads and watched.age is None:
        hint = "Wait for a moment; if it stays so, the scheduler is of an earlier version: restart it."
        yield warn("stalls", "a scheduler leads, and has never looked for work that stands still", hint)
    elif leads and not watched.is_running:
        yield fail(
            "stalls",
            f"a scheduler leads, but its last look for work that stands still: {when}",
            "Its loop may hang: see its log, then restart it.",
        )
    elif leads and not watched.stalls:
        yield ok("stalls", f"nothing stands still; last look {when}")


def check_maintenance() -> Iterator[Finding]:
    """Report maintenance jobs that failed or are overdue."""
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
        hint = "See the log of the scheduler or of Celery."
        yield fail("maintenance", f"the last run failed: {'; '.join(errors)}", hint)
    elif late:
        yield warn(
            "maintenance",
            f"overdue: {', '.join(late)}",
            "Start Celery's worker and beat, or `manage.py runscheduler`, which runs overdue jobs.",
        )
    else:
        yield ok("maintenance", f"{', '.join(JOBS)}: all on time")


def check_workers() -> Iterator[Finding]:
    """Report missing workers, and workers that are silent, stuck, or died recently."""
    settings = conf.get()
    silent = rows.silent_workers(settings.worker.missed_heartbeats)
    if silent:
        named = ", ".join(f"{w.name} ({w.host}, pid {w.pid}) for {w.seconds:.0f} s" for w in silent[:NAMED])
        yield fail(
            "workers",
            f"{len(silent)} silent and not yet declared dead: {named}",
            "The scheduler declares workers dead; if one leads, its clock or its database is slow.",
        )
    stuck = rows.overdue_tasks(settings.scheduler.overdue_seconds)
    if stuck:
        named = ", ".join(f"{kind} {task_id} for {late:.0f} s" for task_id, kind, late in stuck[:NAMED])
        count = f"{len(stuck)} tasks are" if len(stuck) > 1 else "1 task is"
        yield fail(
            "workers",
            f"{count} executing past the deadline: {named}",
            "The scheduler reaps such tasks; if one leads, examine the worker: a blocked thread cannot be ended.",
        )
    dead = rows.workers_dead_within(RECENTLY)
    if dead:
        yield warn(
            "workers",
            f"{dead} declared dead within the last hour",
            "See their logs, and the kernel's log for the out-of-memory killer.",
        )
    if not (silent or stuck or dead):
        yield _active_workers()


def _active_workers() -> Finding:
    active = list(Worker.objects.filter(status=WorkerStatus.ACTIVE).values_list("concurrency", flat=True))
    if active:
        return ok("workers", f"active: {len(active)}, slots: {sum(active)}")
    hint = "Start `manage.py runworker`."
    if any(rows.counts_to_compare(1)):
        return fail("workers", "none is active, and tasks wait", hint)
    return warn("workers", "none is active", hint)


def check_queues() -> Iterator[Finding]:
    """Report pauses, and queued tasks that no worker can run."""
    index = get_index()
    workers = list(Worker.objects.filter(status=WorkerStatus.ACTIVE))
    paused = {queue.name: queue for queue in Queue.objects.filter(paused=True)}
    depths = {depth.queue: depth.total for depth in index.stats().queues if depth.total}
    total = sum(depths.values())
    findings: list[Finding] = []
    overall = RuntimeSettings.objects.filter(pk=1).first()
    if overall is not None and overall.paused:
        findings.append(pauses.finding("everything", "--all", overall, total))
    findings += pauses.of_types_and_keys(index, list(depths))
    for name, waiting in depths.items():
        if name in paused:
            findings.append(pauses.finding(name, name, paused[name], waiting))
            continue
        serving = [worker for worker in workers if worker.serves(name)]
        if not serving:
            hint = f"Start `manage.py runworker --queues {name}`, or a worker without --queues."
            findings.append(fail("queues", f"{name} holds {count_tasks(waiting)} and no worker serves it", hint))
            continue
        unserved = [kind for kind in sorted(waiting_kinds(index, name)) if not any(w.can_run(*kind) for w in serving)]
        if unserved:
            named = ", ".join(t + (f" (needs {', '.join(caps)})" if caps else "") for t, caps in unserved[:NAMED])
            kinds = f"{len(unserved)} kinds" if len(unserved) > 1 else "1 kind"
            hint = _how_to_serve(unserved, serving)
            findings.append(fail("queues", f"{name} holds tasks of {kinds} that no worker can run: {named}", hint))
    yield from findings or [ok("queues", f"{count_tasks(total)} queued, each with a worker that can run it")]


def _how_to_serve(unserved: Sequence[tuple[str, tuple[str, ...]]], serving: Sequence[Worker]) -> str:
    """Return what to do about kinds of tasks that no worker can run: the first unknown types with why."""
    known = {name for worker in serving for name in worker.task_types}
    unknown = list(dict.fromkeys(name for name, _ in unserved if name not in known))
    hints = [f"{name}: {registry.why_unknown(name)}" for name in unknown[:EXPLAINED]]
    if any(name in known for name, _ in unserved):
        hints.append("Start a worker with these --capabilities.")
    return " ".join(hints)


def check_agreement() -> Iterator[Finding]:
    """Report an index whose counts differ from the rows; repairs nothing.

    While tasks move, counts of one moment differ by some tasks. If nothing moves, each missing task counts.
    """
    counts, moving = _counts(), ""
    differs = _difference(counts, 0)
    if differs:
        moving = ", but for tasks that move now"
        time.sleep(SETTLE_SECONDS)
        before, counts = counts, _counts()
        differs = _difference(counts, SLACK if counts != before else 0)
    if differs:
        yield warn(
            "agreement",
            f"rows and index differ: {differs}",
            "The scheduler repairs this within minutes, `manage.py taskqueue rebuild` at once.",
        )
    else:
        yield ok("agreement", f"the index and the rows have the same counts{moving}")


def _counts() -> tuple[int, int, int, int]:
    """Return queued tasks in the rows and in the index, executing tasks and leases."""
    queues = get_index().stats().queues
    queued, executing = rows.counts_to_compare(COMPARED)
    return queued, sum(queue.total for queue in queues), executing, sum(queue.active for queue in queues)


def _difference(counts: tuple[int, int, int, int], slack: int) -> str:
    """Return how counts differ in words; empty if the numbers of queued tasks differ by ``slack`` or 1 % at most."""
    queued, indexed, executing, leased = counts
    found = []
    if queued < COMPARED and abs(queued - indexed) > (slack and max(slack, queued // 100)):
        found.append(f"queued tasks: {queued:,} in the rows, {indexed:,} in the index")
    if abs(executing - leased) > max(SLACK, executing // 10):
        found.append(f"executing tasks: {executing:,} in the rows, {leased:,} leases in the index")
    return "; ".join(found)
