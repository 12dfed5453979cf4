"""Run queued rows in a test: by the claim from rows, in the test's thread, session and transaction.

A test case of Django rolls its transaction back, so nothing commits: no hook of ``on_commit`` runs, and the index hears
of no task. So the lanes of the index are made anew before each claim, and hooks that were captured run before tasks do.
"""

import logging
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Final, cast

import psycopg
from django.apps import apps
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import timezone
from psycopg.pq import TransactionStatus

from queue_app.backend.results import load_results
from queue_app.core import rooms
from queue_app.core.records import ClaimedTask
from queue_app.exceptions import TaskTimeout
from queue_app.index import Profile
from queue_app.models import IndexGeneration, Queue
from queue_app.services.lifecycle.claim import claim
from queue_app.services.lifecycle.finish import finish, record_progress
from queue_app.services.upkeep.promote import make_due
from queue_app.sql import snapshot
from queue_app.sql.database import around, connection, depth, fetch_all
from queue_app.tasks import AnyResult
from queue_app.testing.clock import current, tell_sessions
from queue_app.workers import sessions
from queue_app.workers.context import ClaimedAttempt
from queue_app.workers.executor import Executor
from queue_app.workers.outcomes import failed
from queue_app.workers.progress import ProgressReports

#: Maximum number of attempts of one ``drain``.
MAX_ATTEMPTS = 10_000
#: The worker of a test; it has no row.
WORKER: Final = uuid.UUID(int=0x7E57)

_WAITING: Final = """
SELECT array_agg(DISTINCT task_type), max(weight),
    (SELECT array_agg(DISTINCT need) FROM queue_app_task, unnest(capabilities) AS need WHERE status = 'queued')
FROM queue_app_task WHERE status = 'queued'
"""
# Tasks that are blocked and have a time wait for a signal.
_NEXT: Final = """
SELECT min(run_after) FROM queue_app_task
WHERE (status = 'scheduled' OR status = 'blocked' AND attempt > 0 AND queued_at IS NULL)
    AND queue = COALESCE(%s::text, queue) AND run_after > statement_timestamp()
"""

_log = logging.getLogger("taskqueue.testing")


@contextmanager
def prepared(limits: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """Prepare the tables for a block in which tasks run, and give queues these values."""
    if not IndexGeneration.objects.exists():  # a TransactionTestCase has emptied the tables of models
        import_module("queue_app.migrations.0002_defaults").create_rows(apps, SimpleNamespace(connection=connection()))
        rooms.part("empty_lanes")()
    Queue.objects.bulk_create([Queue(name=name) for name in limits], ignore_conflicts=True)
    before = list(Queue.objects.filter(name__in=limits))
    for name, values in limits.items():
        paused_at = {"paused_at": timezone.now()} if values.get("paused") else {}
        Queue.objects.filter(name=name).update(**values, **paused_at)
    rooms.part("begin_gates")(snapshot.limits().items(), full=True)
    try:
        yield
    finally:
        for queue in before:
            queue.save(update_fields=[*limits[queue.name], "paused_at"])


def run_hooks(since: int) -> None:
    """Call the hooks of ``on_commit`` that the test has captured from the place ``since`` on, each once.

    Those of ``setUpTestData`` belong to all tests of a class, and wait for ever.
    """
    for each in connections.all(initialized_only=True):
        place = since
        while place < len(hooks := cast("list[Any]", each.run_on_commit)):  # a rollback makes another list
            sids, hook, robust = hooks[place]
            if sids and hook is not _ran:
                hooks[place] = (sids, _ran, robust)
                try:
                    hook()
                except Exception:
                    if not robust:
                        raise
                    _log.exception("a hook of on_commit failed")
            place += 1


def _ran() -> None:
    """Stand in for a hook that was called."""


@dataclass(slots=True)
class Drain:
    """What a run of tasks takes, from which queue and with which capabilities, and what has ended."""

    alias: str
    queue: str | None = None
    capabilities: Collection[str] | None = None
    hooks_since: int = 0  # place of the first hook of ``on_commit`` to call
    ended: list[AnyResult] = field(default_factory=list)
    _unread: list[uuid.UUID] = field(default_factory=list)  # completed tasks whose results are read later, together
    _opens_in: float | None = None  # seconds until a limit allows another start

    def run(self, *, to_the_end: bool = False) -> None:
        """Run what is due; with ``to_the_end``, move the frozen clock to what starts next until nothing does."""
        tell_sessions()
        run_hooks(self.hooks_since)
        while True:
            rooms.call("in_tests")
            while make_due() or self._run_queued():
                pass
            clock, at = current(), self._next_at() if to_the_end else None
            if clock is None or at is None:
                break
            clock.move_to(at)
        self._read()

    def _run_queued(self) -> bool:
        """Run what is queued, and what that enqueues; return whether there was something."""
        before = len(self.ended) + len(self._unread)
        while tasks := self._claim():
            for task in tasks:
                if len(self.ended) + len(self._unread) >= MAX_ATTEMPTS:
                    raise RuntimeError(f"Tasks still wait after {MAX_ATTEMPTS} attempts: does a task enqueue itself?")
                is_over = run(task, self.hooks_since)
                self._unread.append(task.id)
                if not is_over:
                    self._read()
        return len(self.ended) + len(self._unread) > before

    def _read(self) -> None:
        found = load_results(self._unread, self.alias)
        self.ended += [found[task_id] for task_id in self._unread if task_id in found]  # a task may delete rows
        self._unread.clear()

    def _claim(self) -> list[ClaimedTask]:
        """Return the tasks that start next: one, unless a task that takes several slots waits."""
        types, weight, needs = fetch_all(_WAITING)[0]
        self._opens_in = None
        if types is None:
            return []
        rooms.part("fill_lanes")(snapshot.generation())
        offers = needs or () if self.capabilities is None else self.capabilities
        profile = Profile.of([self.queue] if self.queue else [], types, offers)
        return claim(profile, WORKER, weight, reserve=False, on_wait=self._wait)

    def _wait(self, seconds: float | None, _: bool) -> None:  # noqa: FBT001 - as ``claim`` calls it
        self._opens_in = seconds

    def _next_at(self) -> datetime | None:
        """Return when something can start that cannot start now."""
        at: datetime | None = fetch_all(_NEXT, [self.queue])[0][0]
        if self._opens_in is None:
            return at
        opens = timezone.now() + timedelta(seconds=self._opens_in)
        return opens if at is None else min(opens, at)


class _Attempt(ClaimedAttempt):
    """An attempt by the test's clock."""

    def row_time(self, at: float) -> Any:
        clock = current()
        return ClaimedAttempt.row_time(self, at) if clock is None else clock.now


def run(task: ClaimedTask, hooks_since: int) -> bool:
    """Run one attempt and record how it ended, as a worker does; return whether it has completed the task.

    Its hooks of ``on_commit`` run in between.
    """
    reports, held, began = ProgressReports(lambda: None), _Attempt(task, time.monotonic()), timezone.now()
    with _savepoints(held) as depths:
        token = around.set(depths)
        try:
            outcome = Executor(WORKER, reports).run(held)
        finally:
            around.reset(token)
    if outcome.failure is not None and outcome.failure.exception_class == "builtins.KeyboardInterrupt":
        raise KeyboardInterrupt
    if outcome.is_completion and timezone.now() - began > timedelta(seconds=held.timeout):
        outcome = failed(
            held, time.monotonic(), TaskTimeout(f"The attempt took longer than its timeout of {held.timeout:g} s.")
        )
    tell_sessions()
    run_hooks(hooks_since)
    record_progress(reports.take({held.key}))
    finish([replace(outcome, started_at=task.started_at)])
    run_hooks(hooks_since)
    return outcome.is_completion


@contextmanager
def _savepoints(held: ClaimedAttempt) -> Iterator[Mapping[str, int]]:
    """Yield how many ``atomic`` blocks are open by database; roll back what a broken one leaves behind."""
    with ExitStack() as stack:
        for each in connections.all(initialized_only=True):
            if each.in_atomic_block:
                block: Any = transaction.atomic(using=each.alias)
                block._from_testcase = True  # noqa: SLF001 - so that a task may use atomic(durable=True)
                stack.enter_context(block)
        depths = {each.alias: depth(each) for each in connections.all(initialized_only=True)}
        yield depths
        for each in connections.all(initialized_only=True):
            if not depths.get(each.alias):
                sessions.clean(each, held)
            elif depth(each) > depths[each.alias] or each.needs_rollback or _is_broken(each):
                del each.atomic_blocks[depths[each.alias] :], each.savepoint_ids[depths[each.alias] - 1 :]
                transaction.set_rollback(True, using=each.alias)


def _is_broken(database: BaseDatabaseWrapper) -> bool:
    raw = database.connection
    return isinstance(raw, psycopg.Connection) and raw.info.transaction_status is TransactionStatus.INERROR
