"""Checks of the work: index, scheduler, maintenance, workers, queues; and what only a person can mend."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

from django.utils import timezone

from queue_app import conf
from queue_app.core.limits import Scope, parse_lane
from queue_app.core.reasons import KINDS, Finding, Level, fail, ok, paused, say, subject, warn
from queue_app.core.sentence import joined
from queue_app.diagnose import system
from queue_app.diagnose.system import System, troubles
from queue_app.diagnose.waits import waits
from queue_app.exceptions import IndexOfAnotherDatabase
from queue_app.index import Index, get_index
from queue_app.models import IndexGeneration, Limit, MaintenanceJob, Queue, RuntimeSettings, Worker
from queue_app.models.worker import WorkerStatus
from queue_app.services.control.advice import advice
from queue_app.services.owner import ADVICE, check_owner, without_advice
from queue_app.services.read.stats import READY
from queue_app.services.upkeep.jobs import leader_lapses
from queue_app.services.upkeep.maintenance import JOBS, OVERDUE_INTERVALS
from queue_app.services.way import follow, is_detour
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
DEATHS_PER_MINUTE: Final = 10
DEATH_WINDOW: Final = 300.0
#: Checks whose troubles have functions of their own.
OF_OTHER_CHECKS: Final = frozenset({"", "redis", "index", "scheduler", "stalls", "workers", "queues", "schedules"})


def _troubles(check: str, state: System) -> Iterator[Finding]:
    """Yield the troubles of the installation that one check reports."""
    for trouble in troubles(state):
        if trouble.kind.check == check:
            yield Finding(check, trouble.kind.level, trouble.text, trouble.remedy)


def check_way() -> Iterator[Finding]:
    """Report why claims read the rows if the project has Redis, and processes that go another way than the others."""
    way = follow()
    if is_detour(way):
        yield from _troubles("redis", System(READY, way=way))
    elif way.number and way.is_rows != (conf.get().index == conf.ROWS):
        yield warn(
            "index",
            f"claims use {'the rows' if way.is_rows else 'Redis'}, but INDEX is {conf.get().index!r} here",
            "Give all processes the same INDEX and the same CACHES, and restart them.",
        )
    elif alone := rows.processes_without_redis():
        yield warn(
            "redis",
            f"cannot be reached by {' and '.join(alone)}, which {'stand' if alone[1:] else 'stands'} by: claims use"
            " Redis until others miss it too",
            "Look at the network, and at CACHES, where these processes run.",
        )


def check_system() -> Iterator[Finding]:
    """Report troubles of the installation that no other check reports."""
    state = system.read()
    for check in dict.fromkeys(kind.check for kind in KINDS.values() if kind.check not in OF_OTHER_CHECKS):
        yield from _troubles(check, state)


def check_index() -> Iterator[Finding]:
    """Report an index that may not propose tasks."""
    row = IndexGeneration.objects.filter(pk=1).first()
    now, state = timezone.now(), system.read()
    try:
        check_owner()
    except IndexOfAnotherDatabase as error:
        yield fail("index", without_advice(error), ADVICE)
        return
    since = (now - row.started_at).total_seconds() if row is not None and row.started_at else None
    if state.index == "rebuilding" and since is not None and since < REBUILD_SECONDS:
        message = f"{say('index_rebuilding', state=state.index)} It began {since:.0f} s ago."
        yield warn("index", message, "Wait until the scheduler has rebuilt it.")
    elif found := list(_troubles("index", state)):
        yield from found
    elif row is not None and row.ready_at:
        if row.condemned >= CONDEMNED and row.condemned_at and now - row.condemned_at < CONDEMNED_RECENTLY:
            message = (
                f"it was condemned {row.condemned} times in a row and rebuilt, last because: {row.condemned_because}"
            )
            yield warn(
                "index", message, "Find out what damages it: another program on this Redis and prefix, or eviction."
            )
        else:
            age = (now - row.ready_at).total_seconds()
            yield ok("index", f"generation {row.number}, ready for {age:,.0f} s")


def check_scheduler() -> Iterator[Finding]:
    """Report a missing scheduler."""
    lapses = leader_lapses()
    if lapses is None:
        yield from _troubles("scheduler", System(READY, has_leader=False))
    else:
        age = max(0.0, conf.get().scheduler.leader_seconds - lapses)
        yield ok("scheduler", f"one leads; it renewed its leadership {age:.1f} s ago")


def check_stalls() -> Iterator[Finding]:
    """Report work that stands still although nothing prevents it, and a scheduler that does not look for it."""
    state = system.read(watchdog=True)
    watched = state.watched
    if watched is None:
        return
    when = "never" if watched.age is None else f"{watched.age:,.0f} s ago"
    found = list(_troubles("stalls", state))
    for each in found:
        level = each.level if watched.age else Level.WARN  # it has just begun, or is of an earlier version
        yield replace(each, level=level, message=f"{each.message} Last look: {when}.")
    if not found and state.has_leader:
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
    level = fail if any(rows.counts_to_compare(1)) else warn
    return level("workers", say("no_worker"), KINDS["no_worker"].remedy)


def check_queues() -> Iterator[Finding]:
    """Report pauses, and queued tasks that no worker can run."""
    index = get_index()
    stopped = {queue.name: queue for queue in Queue.objects.filter(paused=True)}
    depths = {depth.queue: depth.total for depth in index.stats().queues if depth.total}
    total = sum(depths.values())
    findings: list[Finding] = []
    overall = RuntimeSettings.objects.filter(pk=1).first()
    if overall is not None and overall.paused:
        findings.append(_pause(subject("everything"), "--all", overall, total))
    findings += _paused_types_and_keys(index, list(depths))
    for name in stopped.keys() & depths:
        findings.append(_pause(subject("queue", name), name, stopped[name], depths[name]))
    for wait in waits(depths.keys() - stopped):
        if wait.is_severe:
            message = f"{wait.queue}: {wait.text} It holds {count_tasks(wait.count)}."
            findings.append(fail("queues", message, wait.remedy))
    yield from findings or [ok("queues", f"{count_tasks(total)} queued, each with a worker that can run it")]


def _pause(what: str, option: str, row: Queue | Limit | RuntimeSettings, waiting: int | None = None) -> Finding:
    """Return the finding about a pause; ``option`` names it to ``taskqueue resume``."""
    held = "" if waiting is None else f"It holds {count_tasks(waiting)}."
    return warn("queues", joined(paused(what, row), held), f"Run `taskqueue resume {option}` to resume.")


def _paused_types_and_keys(index: Index, queues: Sequence[str]) -> Iterator[Finding]:
    """Yield the paused task types that hold tasks in these queues, and the paused keys."""
    limits = list(Limit.objects.filter(paused=True))
    if not any(limit.scope == Scope.TYPE for limit in limits):
        queues = []
    lanes = {lane: size for queue in queues for lane, size in index.lane_sizes(queue)}  # a lane may come twice
    waiting: Counter[str] = Counter()
    for lane, size in lanes.items():
        waiting[parse_lane(lane).task_type] += size
    for limit in limits:
        if limit.scope == Scope.KEY:
            yield _pause(subject(limit.scope, limit.name), f"--key {limit.name}", limit)
        elif waiting[limit.name]:
            yield _pause(subject(limit.scope, limit.name), f"--type {limit.name}", limit, waiting[limit.name])


def count_tasks(count: int) -> str:
    """Return a number of tasks as text."""
    return "1 task" if count == 1 else f"{count:,} tasks"


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


def check_advice() -> Iterator[Finding]:
    """Suggest changes, at most three; none is a problem by itself."""
    for each in advice():
        yield Finding("advice", Level.OK, each.text, each.hint)


def check_deaths() -> Iterator[Finding]:
    """Report a high rate of deaths."""
    found = rows.deaths(DEATH_WINDOW)
    deaths, minutes = sum(each.number for each in found), DEATH_WINDOW / 60
    named = ", ".join(f"{each.task_type} ({each.cause}) {each.number:,}" for each in found[:NAMED])
    within = f"within the last {minutes:.0f} minutes" + (f": {named}" if named else "")
    if deaths / minutes > DEATHS_PER_MINUTE:
        hint = "See their errors in the admin, pause the queue or type, fix the cause, then replay."
        yield warn("dead letters", f"{deaths:,} tasks died {within}", hint)
    else:
        yield ok("dead letters", f"{deaths:,} {within}")
