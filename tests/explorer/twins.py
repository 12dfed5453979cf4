"""Broken twins: the code without one of its guards. The explorer must find each of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from django.db import transaction

from queue_app.core.limits import score
from queue_app.core.records import Lease, NewTask
from queue_app.index import Index, Request, get_index
from queue_app.models import DeadLetter, DependencyCounter
from queue_app.schedules import pause as pausing, tick as ticking
from queue_app.schedules.pause import is_paused
from queue_app.services import requests
from queue_app.services.enqueue import store
from queue_app.services.lifecycle import claim as claim_service, finish as finish_service
from queue_app.services.notify import index as notify_index
from queue_app.services.repair import rebuild
from queue_app.sql import (
    admission,
    claim,
    database,
    dead_letters,
    finish,
    snapshot,
    steps as step_rows,
    waiting,
    workers,
    workflow_advance,
    workflow_settle,
)
from queue_app.sql.workflow_advance import TRY_SHARE
from queue_app.workflows import steer
from tests.explorer.gates import CLOCK, DIE
from tests.explorer.meetings import Meeting
from tests.explorer.search import Explorer, Finding, search
from tests.support.index_state import client_of
from tests.support.swaps import Swap, always, swapped

FENCE: Final = "(SELECT number FROM queue_app_indexgeneration WHERE id = 1 AND abandoned_until < %s) = %s"
STAMP: Final = " AND v.leased_at IN (0, t.leased_at)"
ATTEMPT: Final = f"t.attempt = v.attempt AND t.worker_id = v.worker_id{STAMP}"


@dataclass(frozen=True, slots=True)
class Twin:
    """A guard that is taken away, and the meetings among which that must show."""

    without: str
    #: Returns what stands in its place; called while all guards are there.
    swaps: Callable[[], tuple[Swap, ...]]
    meetings: tuple[Meeting, ...]
    faults: tuple[str, ...] = ()


def _text(module: Any, name: str, old: str, new: str) -> Swap:
    """Replace a part of a statement."""
    text = getattr(module, name)
    assert old in text, (name, old)
    return module, name, text.replace(old, new)


def _old_snapshot(name: str, condition: str) -> tuple[Swap, ...]:
    """Compare the locked row with what the statement's snapshot saw, as the first edition did."""
    text: str = getattr(waiting, name)
    head, _, rest = text.partition("WHERE t.id = ANY(%s)")
    before = f"WITH before AS (SELECT id, status FROM queue_app_task WHERE {condition} ORDER BY id FOR UPDATE) "  # noqa: S608
    tail = rest.replace("RETURNING", "AND t.status = before.status\nRETURNING", 1)
    statement = f"{head}FROM before WHERE t.id = before.id {tail}"
    plain = waiting.fetch_locked

    def fetch(ids: Any, sql: str, params: Any) -> Any:
        if sql != text:
            return plain(ids, sql, params)
        return database.fetch_all(before + statement, [params[-1], *params[:-1]])

    return ((waiting, "fetch_locked", fetch),)


def _count_a_copy() -> tuple[Swap, ...]:
    """Write back what a counter was when it was read, less the ends."""

    def complete(workflows: Any, outcomes: Any) -> Any:
        with database.atomic():
            workflow_advance.share(workflows)
            counters = DependencyCounter.objects.filter(
                task__dependencies__before_id__in=[each.task.id for each in outcomes]
            )
            left = list(counters)
            done = finish.complete(outcomes)
            for counter in left if done else ():
                DependencyCounter.objects.filter(task_id=counter.task_id, shard=0).update(
                    remaining=counter.remaining - len(done)
                )
            opened = workflow_advance.go_on(
                [(counter.task_id, 0, 0) for counter in left if counter.remaining <= len(done)]
            )
        return list(done), opened

    return ((workflow_advance, "complete", complete),)


def _any_stamp() -> tuple[Swap, ...]:
    """Release whichever lease a task holds."""
    plain = Index.release

    def release(index: Index, leases: Any) -> int:
        found = list(leases)
        held = {each.id: each.leased_at for queue in index.queues() for each in index.leases(queue)}
        return plain(index, [Lease(each.id, each.lane, held.get(each.id, 0)) for each in found])

    return ((Index, "release", release),)


def _offer_all() -> tuple[Swap, ...]:
    """Count all leases of the queues as free slots, as if other workers turned them over at this moment."""
    plain = Index.claim

    def claim_(index: Index, *args: Any, exchange: Any = (), **options: Any) -> Any:
        offered = list(exchange)
        free = [
            each
            for queue in index.queues()
            if offered
            for each in index.leases(queue)
            if each.id not in {one.id for one in offered}
        ]
        return plain(index, *args, exchange=[*offered, *free], **options)

    return ((Index, "claim", claim_),)


def _release_first() -> tuple[Swap, ...]:
    """Free the slot before the row says that the attempt has ended."""
    plain = finish.complete

    def complete(outcomes: Any) -> Any:
        get_index().release([Lease(each.task.id, each.task.ref.lane, each.task.leased_at) for each in outcomes])
        return plain(outcomes)

    return ((finish_service.finish_rows, "complete", complete),)


def _without_key() -> tuple[Swap, ...]:
    """Push a replayed task without its concurrency key and weight."""
    plain = dead_letters.replay

    def replay(*args: Any, **options: Any) -> Any:
        return [(letter, replace(ref, concurrency_key="", weight=1)) for letter, ref in plain(*args, **options)]

    return ((dead_letters, "replay", replay),)


def _forget_the_cancel() -> tuple[Swap, ...]:
    """Let a command on a workflow not know that the workflow was cancelled before."""
    plain = steer._locked

    @contextmanager
    def locked(workflow_id: Any) -> Iterator[Any]:
        with plain(workflow_id) as flow:
            flow.cancel_requested_at, flow.state = None, "running"
            yield flow

    return ((steer, "_locked", locked),)


def _cancel_what_undoes() -> tuple[Swap, ...]:
    """Let a second cancel of a workflow cancel what undoes it, as former versions did."""
    return *_forget_the_cancel(), _text(waiting, "_CANCEL", waiting._SPARED, "")


def _pause_that_ends_with_its_check() -> tuple[Swap, ...]:
    """Take a pause that has ended for one that never was."""

    def passed_over(schedule: Any, now: Any, recorded: Any) -> Any:
        return (
            pausing.passed_over(schedule, now, recorded) if is_paused(schedule, now) else (None, schedule.next_instant)
        )

    return (ticking, "passed_over", passed_over), (pausing, "settle_pause", always(None))


def _by_task() -> tuple[Swap, ...]:
    """Replay whichever dead letter the task has now."""
    plain = dead_letters.replay

    def replay(ids: Any, *rest: Any) -> Any:
        letters = DeadLetter.objects.open().filter(task_id__in=dead_letters.tasks_of(ids))
        return plain(list(letters.values_list("id", flat=True)), *rest)

    return ((dead_letters, "replay", replay),)


def _unordered() -> tuple[Swap, ...]:
    """Give tasks back one by one, in no order, and repeat nothing after a deadlock."""

    def give_back(tasks: Any) -> list[Any]:
        with transaction.atomic():
            return [each for task in reversed(tasks) for each in claim.returned(database.fetch_all(*_one(task)))]

    def _one(task: Any) -> tuple[str, list[Any]]:
        return claim._GIVE_BACK, [[task.id], [task.attempt], [task.worker_id]]

    return (claim, "give_back", give_back), (database, "once_more_after_deadlock", lambda action: action())


def _by_the_clock() -> tuple[Swap, ...]:
    """Take the time of the server's clock for the present time of stamps."""

    def now(index: Index) -> int:
        seconds, microseconds = client_of(index).time()
        return int(seconds) * 1_000_000 + int(microseconds)

    return ((Index, "now", now),)


def _read_first() -> tuple[Swap, ...]:
    """Read the rows of a load, and move its border after that."""

    def step(self: Any, parts: Any) -> bool:
        after = {part: self.after[part] for part in parts}
        until = rebuild.snapshot.ends(after, 1) if parts else {}
        lanes = rebuild.snapshot.between(after, {part: rebuild.END if at.is_last else at for part, at in until.items()})
        borders = {part: None if at.is_last else score(part[1], at.queued_at) for part, at in until.items()}
        is_same: bool = self.index.load_until(self.number, borders)
        self._push(lanes)
        self.after = {part: until.get(part, at) for part, at in self.after.items() if borders.get(part, 0) is not None}
        return is_same

    return ((rebuild.Loader, "_step", step),)


def _without_spare() -> tuple[Swap, ...]:
    """Leave no place free for submissions that share the lock."""
    return (_text(admission, "_LOCK_ONE", "'2'", "'0'"),)


def _same_generation() -> tuple[Swap, ...]:
    """Let claims read the rows without a new generation."""

    def raise_generation(above: int = 0, *, rows_because: str | None = None) -> int:
        number = snapshot.generation()
        if rows_because is None or snapshot.way().is_rows:
            return plain(above, rows_because=rows_because)
        with database.atomic():
            snapshot._lock_generation()
            sql = "UPDATE queue_app_indexgeneration SET rows_number = number, way_because = %s, ready_at = NULL"
            database.execute(sql, [rows_because])
        return number

    plain = snapshot.raise_generation
    return ((snapshot, "raise_generation", raise_generation),)


def _by_band() -> tuple[Swap, ...]:
    """Load the bands of a queue by arrival one by one."""
    return ((rebuild.Loader, "_together", lambda _, until: until),)


_plain_new_task = requests._new_task
_plain_try = requests._try


def _without_request_key(values: dict[str, Any]) -> NewTask:
    new = _plain_new_task(values)
    new.options["idempotency_key"] = None
    return new


def _acknowledged_first() -> tuple[Swap, ...]:
    def acknowledge_and_try(request: Request) -> Any:
        if (b"parameters", b"{") not in request.fields:  # that one goes to the quarantine
            get_index().requests.acknowledge([request.id])
        return _plain_try(request)

    return ((requests, "_try", acknowledge_and_try),)


def _keys_as_they_come() -> tuple[Swap, ...]:
    """Take idempotency keys in the caller's order, and repeat nothing after a deadlock."""
    return (
        (store, "sorted", lambda found, key=None: list(found)),
        (store, "once_more_after_deadlock", lambda action: action()),
    )


def _pairs(*names: str, states: tuple[str, ...]) -> tuple[Meeting, ...]:
    return tuple(Meeting(names, state) for state in states)


TWINS: Final[dict[str, Twin]] = {
    "count": Twin(
        "the end of a task lowers the counter of the locked row",
        _count_a_copy,
        _pairs("end_parent", "end_parent", states=("parents",)),
    ),
    "flow-lock": Twin(
        "the end of a task shares the lock of its workflow",
        lambda: ((workflow_advance, "_SHARE", "SELECT %s::uuid[]"),),
        (Meeting(("end_parent", "end_parent", "pause_flow"), "parents"),),
    ),
    "cancel": Twin(
        "cancel looks at the locked row, not at its snapshot",
        lambda: _old_snapshot("_CANCEL", "id = ANY(%s)"),
        _pairs("claim", "cancel", states=("queued",)),
    ),
    "cancel-due": Twin(
        "the same, against a task that becomes due",
        lambda: _old_snapshot("_CANCEL", "id = ANY(%s)"),
        _pairs("due", "cancel", states=("scheduled",)),
    ),
    "cancel-retry": Twin(
        "the same, against a failure that becomes a retry",
        lambda: _old_snapshot("_CANCEL", "id = ANY(%s)"),
        _pairs("fail", "cancel", states=("executing",)),
    ),
    "reprioritise": Twin(
        "reprioritise looks at the locked row",
        lambda: _old_snapshot("_REPRIORITISE", "id = ANY(%s)"),
        _pairs("due", "reprioritise", states=("scheduled",)),
    ),
    "late-removal": Twin(
        "what was queued again before its removal goes back to its place",
        lambda: ((notify_index, "_take_out", lambda index, tasks: index.remove(tasks)),),
        _pairs("cancel", "retry", states=("queued",)),
    ),
    "replay-key": Twin("a replay keeps the whole lane", _without_key, _pairs("replay", "claim", states=("dead",))),
    "replay-once": Twin(
        "a dead letter is replayed once, also when its task has died again",
        _by_task,
        _pairs("replay_twice", "fail_next", states=("dead",)),
    ),
    "cancel-once": Twin(
        "a cancel of a workflow that is said again changes nothing",
        _forget_the_cancel,
        _pairs("end_parent", "cancel_flow_twice", states=("parents",)),
    ),
    "undo-cancel": Twin(
        "a cancel leaves the compensations of a workflow alone",
        _cancel_what_undoes,
        _pairs("end_undo", "cancel_flow", states=("undoing",)),
    ),
    "pause-end": Twin(
        "the end of a pause is compared with each tick, not with the time of the check",
        _pause_that_ends_with_its_check,
        _pairs("tick_late", "end_pause", states=("paused",)),
    ),
    "late-grant": Twin(
        "a grant under an abandoned stamp is refused",
        lambda: (_text(claim, "GRANT", FENCE, FENCE.replace("abandoned_until < %s", "%s::bigint IS NOT NULL")),),
        _pairs("claim", "reconcile", states=("queued",)),
    ),
    "abandon": Twin(
        "the fence is raised before a lease is taken back",
        lambda: ((claim_service.snapshot, "abandon", always(True)),),
        _pairs("claim", "reconcile", states=("queued",)),
    ),
    "generation": Twin(
        "a grant of an earlier generation is refused",
        lambda: (_text(claim, "GRANT", FENCE, "%s::bigint + %s::int IS NOT NULL"),),
        _pairs("claim", "rebuild", states=("queued",)),
    ),
    "generation-lock": Twin(
        "a rebuild waits for grants that are being committed",
        lambda: ((snapshot, "_lock_generation", always(None)),),
        _pairs("claim", "rebuild", states=("queued",)),
    ),
    "border": Twin(
        "a rebuild moves the border of what it loads before it reads the rows up to there",
        _read_first,
        _pairs("rebuild", "enqueue", states=("queued",)),
    ),
    "arrival": Twin(
        "all bands of a queue by arrival are loaded up to the same time",
        _by_band,
        (*_pairs("load", "work", states=("arrival",)), Meeting(("load", "come", "work"), "arrival")),
    ),
    "turned-over": Twin(
        "a turn-over counts as free only what a turn-over ends",
        _offer_all,
        _pairs("turn_twice", "turn_twice", states=("lowered",)),
    ),
    "spare": Twin(
        "a submission that shares its lock leaves places free for those that it cannot see",
        _without_spare,
        _pairs("admit_two", "admit_two", states=("full",)),
    ),
    "admission-lock": Twin(
        "near the limit, submissions take turns",
        lambda: ((admission, "_LOCK", "SELECT %s::text[]"),),
        _pairs("admit_two", "admit_two", states=("full",)),
    ),
    "add-fence": Twin(
        "an attempt adds tasks to its workflow only while it holds its task",
        lambda: ((workflow_settle, "is_held", always(True)),),
        _pairs("add_task", "lose_first", states=("parents",)),
    ),
    "reap-lock": Twin(
        "the reaper has the lock of a workflow before the rows of its tasks",
        lambda: (_text(workers, "_ORPHANS", TRY_SHARE.format(id="gone.workflow_id"), "true"),),
        _pairs("lose_first", "cancel_flow", states=("parents",)),
    ),
    "release-stamp": Twin(
        "a release names its lease", _any_stamp, _pairs("give_back", "reconcile", "claim", states=("executing",))
    ),
    "finish-fence": Twin(
        "a finish names its grant",
        lambda: (_text(finish, "_COMPLETE", ATTEMPT, "v.attempt > 0 AND v.worker_id IS NOT NULL"),),
        _pairs("reap", "claim", "complete", states=("executing",)),
    ),
    "give-back-fence": Twin(
        "a give-back names its grant",
        lambda: (_text(claim, "_GIVE_BACK", ATTEMPT, "v.attempt > 0 AND v.worker_id IS NOT NULL"),),
        _pairs("reap", "claim", "give_back", states=("executing",)),
    ),
    "row-first": Twin(
        "the row is written before the index", _release_first, _pairs("complete", "claim", states=("executing",))
    ),
    "lock-order": Twin(
        "rows are locked in the order of their ids", _unordered, _pairs("give_back", "cancel_many", states=("both",))
    ),
    "key-order": Twin(
        "idempotency keys are taken in their own order",
        _keys_as_they_come,
        _pairs("enqueue_many", "enqueue_many", states=("queued",)),
    ),
    "clock": Twin(
        "the fence of a lease that lost its stamp rises above all stamps, although Valkey's clock went back",
        _by_the_clock,
        _pairs("claim", "lose_leases", "reconcile", states=("queued",)),
        (CLOCK,),
    ),
    "step-fence": Twin(
        "a step is stored while its attempt still holds the task",
        lambda: (_text(step_rows, "_RECORD", "FOR NO KEY UPDATE", ""),),
        _pairs("step", "go_on", states=("executing",)),
    ),
    "signal-lock": Twin(
        "a signal and the end of an attempt that waits for it see one another",
        lambda: ((step_rows, "lock_rows", always(("SELECT 1", ()))),),
        _pairs("signal", "wait", states=("executing",)),
    ),
    "request-key": Twin(
        "a request is its own idempotency key",
        lambda: ((requests, "_new_task", _without_request_key),),
        _pairs("requests", "requests", states=("requested",)),
    ),
    "acknowledge-first": Twin(
        "a request is acknowledged after its task was stored",
        _acknowledged_first,
        _pairs("requests", "cancel", states=("requested",)),
        (DIE,),
    ),
    "grant-stamp": Twin(
        "a finish names the stamp of its grant",
        lambda: tuple(_text(finish, name, STAMP, "") for name in ("COMPLETE_WITH_RESULTS", "_TURN_OVER")),
        _pairs("end", "mend", states=("twice",)),
    ),
    "grant-again": Twin(
        "what PostgreSQL has forgotten is granted again to the worker that runs it",
        lambda: ((claim, "grant_again", always(claim.Comparison())),),
        _pairs("forget", "beat", states=("running",)),
    ),
    "answers": Twin(
        "the reconciler waits for the answers of living workers",
        lambda: ((claim_service.snapshot, "abandon", partial(_abandon_at_once, snapshot.abandon)),),
        (Meeting(("forget", "mend", "crew"), "running"),),
    ),
    "rebuild-answers": Twin(
        "a rebuild waits for the answers of living workers",
        lambda: ((rebuild, "unanswered", always([])),),
        (Meeting(("forget", "renew", "crew"), "running"),),
    ),
    "both-forget": Twin(
        "the same, where Redis forgets its last second, too",
        lambda: ((rebuild, "unanswered", always([])),),
        (Meeting(("forget", "lose_second", "crew"), "running"),),
    ),
    "late-start": Twin(
        "a task that passed a rate starts within a second of its claim",
        lambda: ((claim_service, "as_claimed", lambda granted, _proposal: granted),),
        _pairs("turn", "pass_time", states=("paced",)),
    ),
    "condemned-again": Twin(
        "damage that each rebuild has cured is repaired at once",
        lambda: tuple(_text(snapshot, name, snapshot._HELPED, "false") for name in ("_MAY_CONDEMN", "_HELPED")),
        (Meeting(("damage_again",), "damaged"),),
    ),
    "rows-generation": Twin(
        "claims leave Redis with a new generation",
        _same_generation,
        (Meeting(("claim", "leave"), "queued"),),
    ),
    "withdrawal": Twin(
        "a worker that undoes a claim keeps the leases of what it runs",
        lambda: ((claim_service, "withdraw_last", partial(_withdraw_all, claim_service.withdraw_last)),),
        (Meeting(("forget", "trouble", "crew"), "running"),),
    ),
}


def _abandon_at_once(plain: Any, leased_at: int, _unless: str = "") -> bool:
    return bool(plain(leased_at))


def _withdraw_all(plain: Any, index: Index, worker_id: Any, _known: Any = ()) -> int:
    return int(plain(index, worker_id))


def broken(name: str | None) -> AbstractContextManager[None]:
    """Take a guard away for a block."""
    return swapped(*TWINS[name].swaps()) if name else nullcontext()


def find_twin(explorer: Explorer, name: str) -> tuple[Finding | None, int, float]:
    """Return the schedule that shows the twin, how many were tried, and the seconds that it took."""
    began = time.perf_counter()
    with broken(name):
        explorer = Explorer(explorer.world, explorer.control)  # that has not learnt the steps of the whole code
        tally = search(explorer, list(TWINS[name].meetings), faults=TWINS[name].faults)
    return (tally.findings or [None])[0], tally.schedules, time.perf_counter() - began


def find_twins(explorer: Explorer, names: list[str]) -> int:
    """Print what was found of each twin; return how many were missed."""
    missed = 0
    for name in names or TWINS:
        finding, schedules, seconds = find_twin(explorer, name)
        missed += finding is None
        print(f"{name}: {TWINS[name].without}: ", "MISSED" if finding is None else f"found in {seconds:.1f} s", end="")
        print(f", {schedules} schedules", flush=True)
        if finding is not None:
            print(finding, flush=True)
    return missed
