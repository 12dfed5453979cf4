"""Compare the index with the rows, by state, and repair the differences.

Each step is bounded, and cheap when nothing is wrong:

- limits are copied again;
- all queued tasks are compared, page by page, once in ``FULL_PASS_SECONDS``, and missing or misplaced ones are pushed;
- tasks that were queued within the last seconds are compared in the same way, newest first, unless the pages of this
  step were all queued tasks;
- leases that no executing row names are ended: at once if the row was granted under the lease and has ended since;
  else if two consecutive steps find the lease, so that claims under way are left alone, and not before every living
  worker has named the tasks that it runs since PostgreSQL last started (``services.lifecycle.claim``);
- executing rows without their lease, or with part of it, get it back, so that limits hold; a slow query of
  all executing rows pauses (``core.process``), and so does the full pass, for ``FULL_PASS_SECONDS`` at most;
- a sweep removes entries of rows that are no longer queued, from lanes with more entries than queued rows;
- workers whose rows have ended are retired;
- profiles and heads are audited. Nothing but damage from outside makes them wrong, and a new generation replaces them.
"""

import math
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from queue_app import conf, signals
from queue_app.core import rooms
from queue_app.core.limits import kind_of
from queue_app.core.process import FACTOR, QueryPauses
from queue_app.core.records import PackedLane
from queue_app.core.states import Status
from queue_app.exceptions import IndexDamaged
from queue_app.index import Index, Lease, get_index
from queue_app.index.calls import QUEUES
from queue_app.services.lifecycle.claim import abandon
from queue_app.services.notify import events
from queue_app.services.repair.rebuild import copy_limits
from queue_app.sql import snapshot, workers
from queue_app.sql.claim import UNANSWERED, statuses

# Audit profiles and heads, by which claims find tasks; the reconciler compares the tasks themselves.
#
# Every script leaves them in agreement with the lanes. So a difference was made from outside: a deleted key, junk, an
# old copy. It is not repaired piece by piece: a new generation replaces the index.

#: Calls of the script in one step; each looks at up to 300 lanes, or 100 queues.
CALLS = 20


@dataclass(slots=True)
class Audit:
    """Remembers how far the audit has come."""

    generation: int = -1
    known: set[str] = field(default_factory=set)  # profiles of the last step; a new one's heads may not be complete yet
    left: list[tuple[str, str]] = field(default_factory=list)  # profiles and queues that this pass has yet to look at
    cursor: int = 0

    def step(self, index: Index) -> None:
        """Look at the next part; raise ``IndexDamaged`` if it is wrong."""
        generation, profiles = index.profiles()
        if generation.state != "ready":
            profiles = {}
        known = self.known & set(profiles) if generation.number == self.generation else set()
        self.generation, self.known = generation.number, set(profiles)
        for profile, is_intact in profiles.items():
            if not is_intact:
                raise IndexDamaged(f"The profile {profile!r} is incomplete.")
        if not self.left or self.left[-1][0] not in known:
            self.left, self.cursor = [(profile, queue) for profile in sorted(known) for queue in index.queues()], 0
        for _ in range(CALLS):
            if not self.left:
                break
            profile = self.left[-1][0]
            queues = [queue for of, queue in self.left[: -QUEUES - 1 : -1] if of == profile]
            done, self.cursor, queue, wrong = index.audit(profile, queues, self.cursor)
            if wrong:
                raise IndexDamaged(f"The heads of profile {profile} are wrong for the queue {queue!r}: {wrong}.")
            del self.left[len(self.left) - done :]


#: Length of the recent window: several reconcile periods, because commits may come late.
RECENT_SECONDS = 30.0
#: Maximum number of rows of the recent window that a step compares, newest first. With a step every 5 s, each task is
#: compared within 5 s at up to 6 000 enqueued tasks/s; above that rate the full pass compares the rest.
RECENT_ROWS = 30_000
#: The push of a big batch takes a while after its commit. So a step looks again for missing tasks after ``GRACE``
#: seconds, as long as they become fewer, and waits for at most ``LONGEST_GRACE`` in all: the other jobs of the
#: scheduler wait meanwhile, and due tasks are promised within 0.5 s.
GRACE = 0.1
LONGEST_GRACE = 0.4
#: Minimum number of rows that a step of the full pass compares. Most of what a page costs beside its rows is the same
#: for any size, so a step that needs more reads them as one page.
PAGE = 5000
#: Maximum number of rows of a page, which this process holds in memory.
LARGEST_PAGE = 50_000
#: Approximate number of entries per step of a sweep.
STEP = 5000


@dataclass(slots=True)
class Sweep:
    """The kinds of task that have more entries than queued rows, and how far each of their lanes has been swept."""

    counted: Counter[str] = field(default_factory=Counter)  # queued rows that the current pass has met, by kind
    suspects: set[str] = field(default_factory=set)  # kinds with more entries than rows at the end of the last pass
    cursors: dict[str, int] = field(default_factory=dict)  # lanes to sweep, and where to continue

    def count(self, lanes: Iterable[PackedLane]) -> None:
        """Count rows that the comparison has met."""
        for lane in lanes:
            self.counted[kind_of(lane.lane)] += lane.size

    def end_pass(self, index: Index) -> None:
        """Compare the counts with the index; mark the lanes of kinds with more entries after two passes for a sweep."""
        sizes = dict(index.lane_sizes())
        held: Counter[str] = Counter()
        for lane, size in sizes.items():
            held[kind_of(lane)] += size
        fuller = {kind for kind, size in held.items() if size > self.counted[kind]}
        self.counted.clear()
        for lane in sizes:
            if kind_of(lane) in fuller & self.suspects:
                self.cursors.setdefault(lane, 0)
        self.suspects = fuller

    def step(self, index: Index) -> int:
        """Sweep about ``STEP`` entries; return how many entries without a queued row were removed."""
        seen = removed = 0
        while self.cursors and seen < STEP:
            lane, cursor = next(iter(self.cursors.items()))
            cursor, entries = index.entries(lane, cursor)
            removed += _sweep_page(index, entries)
            seen += len(entries)
            if cursor:
                self.cursors[lane] = cursor
            else:
                del self.cursors[lane]
        return removed


def _sweep_page(index: Index, entries: list[tuple[str, uuid.UUID]]) -> int:
    found = statuses([task_id for _, task_id in entries])
    doomed = [(address, task_id) for address, task_id in entries if found.get(task_id) is not Status.QUEUED]
    if not doomed:
        return 0
    removed = index.remove_entries(doomed)
    return removed - index.push(snapshot.refs([task_id for _, task_id in doomed]))


@dataclass(slots=True)
class Reconciler:
    """Repairs the index step by step, and remembers how far its full pass has come."""

    cursor: snapshot.Cursor | None = None
    compared: int = 0  # rows of the current full pass
    total: int = 0  # rows of the last full pass
    sweep: Sweep = field(default_factory=Sweep)
    unconfirmed: set[Lease] = field(default_factory=set)  # leases that no row named in the last step
    key_cursor: int = 0
    wrong: list[str] = field(default_factory=list)  # keys of the wrong type that the last step met
    audit: Audit = field(default_factory=Audit)
    pauses: QueryPauses = field(default_factory=lambda: QueryPauses(conf.get().scheduler.reconcile_seconds))
    pass_began_at: float = -math.inf  # monotonic
    pass_seconds: float = 0.0  # what the pages of the full pass have cost
    repaired: Counter[str] = field(default_factory=Counter)
    grace: float = 0.0  # seconds that this step may still wait for pushes on their way
    pause: Callable[[float], object] = time.sleep

    def run_once(self) -> dict[str, int]:
        """Run one bounded step of every comparison; return the repairs made, by kind.

        Raises ``IndexDamaged`` for what only a new generation can repair.
        """
        index, self.grace = get_index(), LONGEST_GRACE
        if index.way == conf.ROWS:
            return self._name_lanes(index)
        limits = copy_limits()  # first, so that they hold for what is pushed next
        missing, ended = self._compare(index), self._end_leases(index)
        self.key_cursor, left_gates, self.wrong = index.look_through(self.key_cursor)
        repairs = {
            "limits": limits,
            "missing": missing,
            "leases_ended": ended + left_gates,
            "leases_restored": self._restore_leases(index),
            "entries_ended": self.sweep.step(index),
            "workers_retired": _retire_ended_workers(index),
        }
        for kind, count in repairs.items():
            if count:
                self.repaired[kind] += count
                signals.index_repaired.send(None, kind=kind, count=count)
        events.count({f"repair:{kind}": count for kind, count in repairs.items() if count})
        if self.wrong:
            raise IndexDamaged(f"{self.wrong[0]!r} has the wrong type.")
        self.audit.step(index)
        return repairs

    def _name_lanes(self, index: Index) -> dict[str, int]:
        """Repair an index whose entries and leases are the rows themselves: only a lane can be missing."""
        rooms.part("forget_expired")()
        copy_limits()
        missing = 0
        if "lanes" not in self.pauses:
            began = time.monotonic()
            missing = self._repair(index, snapshot.RowPage([], None))
            self.pauses.begin("lanes", time.monotonic() - began)
        if missing:
            self.repaired["missing"] += missing
            signals.index_repaired.send(None, kind="missing", count=missing)
            events.count({"repair:missing": missing})
        return {"missing": missing}

    def _repair(self, index: Index, page: snapshot.RowPage) -> int:
        """Push the missing and misplaced tasks of the page that are still queued when read again; return how many.

        Leaves out those that are on their way.
        """
        differing = index.misplaced(page.lanes)
        before = len(differing) + 1
        while 0 < len(differing) < before and self.grace > 0:
            self.pause(GRACE)
            self.grace -= GRACE
            before, known = len(differing), set(differing)
            differing = [task_id for task_id in index.misplaced(page.lanes) if task_id in known]
        if not differing or index.generation().state == "loading":  # then much is missing, and on its way
            return 0
        return index.push(snapshot.refs(differing))

    def _compare(self, index: Index) -> int:
        """Compare the next pages of the full pass, and the recent window unless they were the whole pass."""
        began = time.monotonic()
        missing = self._roll_on(index)
        if self.cursor is None and self.pass_began_at >= began:
            return missing
        return missing + self._repair(index, snapshot.packed_recent(RECENT_SECONDS, RECENT_ROWS))

    def _roll_on(self, index: Index) -> int:
        """Compare as many rows as a full pass within ``FULL_PASS_SECONDS`` needs."""
        settings = conf.get().scheduler
        wait = min(FACTOR * self.pass_seconds, settings.full_pass_seconds)
        if self.cursor is None and settings.reconcile_seconds < wait > time.monotonic() - self.pass_began_at:
            return 0
        total = max(self.total, snapshot.queued_estimate())
        rows = max(PAGE, math.ceil(total * settings.reconcile_seconds / settings.full_pass_seconds))
        missing = 0
        while rows > 0:
            missing += self.next_page(index, min(rows, LARGEST_PAGE))
            rows -= LARGEST_PAGE
            if self.cursor is None:
                break
        return missing

    def next_page(self, index: Index, size: int) -> int:
        """Compare the next page of the full pass; return how many tasks were missing or misplaced."""
        began = time.monotonic()
        if self.cursor is None:
            self.pass_began_at, self.pass_seconds = began, 0.0
        page = snapshot.packed_page(self.cursor, size)
        self.pass_seconds += time.monotonic() - began
        self.compared += page.size
        self.sweep.count(page.lanes)
        self.cursor = page.end
        if self.cursor is None:
            self.total, self.compared = self.compared, 0
            self.sweep.end_pass(index)
        return self._repair(index, page)

    def full_pass(self, index: Index) -> int:
        """Compare all pages, from the cursor to the end; return how many tasks were missing or misplaced."""
        if index.way == conf.ROWS:
            return self._repair(index, snapshot.RowPage([], None))
        missing = self.next_page(index, LARGEST_PAGE)
        while self.cursor is not None:
            missing += self.next_page(index, LARGEST_PAGE)
        return missing

    def _end_leases(self, index: Index) -> int:
        """End the leases that no executing row names; return how many.

        If the row names the lease and has ended since, only the release was lost or is on its way: the lease ends after
        a moment.
        A claim may still be about to grant any other lease, or the row may have forgotten its grant. So that one ends
        only if the next step finds it again, and every living worker has named its grants since PostgreSQL started.
        """
        leases = _leases(index)
        leases += index.incomplete_leases({lease.id for lease in leases})
        found = snapshot.leases([lease.id for lease in leases])
        ended, unconfirmed = [], []
        for lease in leases:
            status, granted = found.get(lease.id, (None, None))
            if granted is None or not lease.leased_at or granted.leased_at != lease.leased_at:
                unconfirmed.append(lease)  # an incomplete lease (0) does not tell its stamp
            elif status is not Status.EXECUTING:
                ended.append(lease)
        abandoned = [lease for lease in unconfirmed if lease in self.unconfirmed]
        self.unconfirmed = set(unconfirmed)
        abandon(abandoned, unless=f"EXISTS (SELECT FROM queue_app_worker WHERE {UNANSWERED})")
        while ended and self.grace > 0:  # a release follows its commit: most are on their way
            self.pause(GRACE)
            self.grace -= GRACE
            held = set(_leases(index))
            ended = [lease for lease in ended if lease in held]
        if ended:
            index.release(ended)
            index.push(snapshot.refs([lease.id for lease in ended]))  # one may be queued again since
        return len(ended) + len(abandoned)

    def _restore_leases(self, index: Index) -> int:
        """Restore leases of executing rows that are missing or incomplete in the index; return how many.

        Reads the rows again after the index: a restored lease of a task that ended in between would block a slot until
        the next step.
        """
        if "leases" in self.pauses:
            return 0
        began = time.monotonic()
        executing = snapshot.executing()
        self.pauses.begin("leases", time.monotonic() - began)
        missing = index.missing_leases(executing)
        return index.restore_leases(snapshot.executing(missing)) if missing else 0


def _leases(index: Index) -> list[Lease]:
    return [lease for queue in index.leased_queues(index.queues()) for lease in index.leases(queue)]


def _retire_ended_workers(index: Index) -> int:
    """Retire workers whose rows have ended; the last worker of a profile takes the profile's heads with it."""
    registered = index.registered()
    ended = workers.ended([worker_id for _, worker_id in registered])
    gone = [(profile, worker_id) for profile, worker_id in registered if worker_id in ended]
    for profile, worker_id in gone:
        index.unregister(profile, worker_id)
    return len(gone)


def push_missing() -> int:
    """Compare all queued tasks with the index once, and push those that are missing or misplaced; return how many."""
    return Reconciler().full_pass(get_index())


def reconcile_everything() -> dict[str, int]:
    """Run two full passes at once, so that surplus entries go too; return the number of repairs by kind."""
    reconciler, index = Reconciler(), get_index()
    total = Counter(reconciler.run_once())
    total.update(reconciler.run_once())  # ends leases that are unconfirmed twice
    reconciler.grace = 0.0
    for _ in range(2):
        total["missing"] += reconciler.full_pass(index)
    while reconciler.sweep.cursors:
        total["entries_ended"] += reconciler.sweep.step(index)
    return dict(total)
