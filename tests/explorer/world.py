"""What the actors meet on: two tasks of one concurrency key that is capped at one, five workers, and one index.

``World.begin`` makes it anew in a given state; ``World.settle`` lets everything happen that is due, as time would.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final

from django.db import connection

from queue_app import conf
from queue_app.core.records import ClaimedTask
from queue_app.core.states import TERMINAL
from queue_app.exceptions import TaskQueueError
from queue_app.index import Profile, get_index, redis_index
from queue_app.index.streams import RequestStream
from queue_app.models import DeadLetter, Limit, Queue, Schedule, ScheduleTick, Task, Worker, Workflow
from queue_app.models.schedule import Overlap
from queue_app.schedules.edit import create_schedule
from queue_app.schedules.tick import run_due
from queue_app.services.control.pause import resume
from queue_app.services.control.queues import copy_limit
from queue_app.services.lifecycle.claim import claim
from queue_app.services.lifecycle.finish import finish
from queue_app.services.notify.index import breaker
from queue_app.services.repair import reap
from queue_app.services.repair.rebuild import rebuild, rebuild_if_needed
from queue_app.services.repair.reconcile import Reconciler, reconcile_everything
from queue_app.services.requests import backlog, consume
from queue_app.services.upkeep.promote import make_due
from queue_app.services.way import follow
from queue_app.services.worker import registration as workers
from queue_app.sql import snapshot
from tests.explorer import crew, flows, pauses, queues, repeats, ways
from tests.explorer.copies import FORGET, Copy
from tests.explorer.pauses import NOON
from tests.explorer.said_twice import Again
from tests.explorer.waits import answer, let_wait_too_long
from tests.support import index_state
from tests.support.asking import TYPE, aside, ask
from tests.support.engine import assert_index_agrees, done, failed, lane_in_index, new, put, redis_client, row
from tests.support.history import History
from tests.support.rows import forget_known_queues, reset_rows
from tests.support.scene import Hand
from tests.support.swaps import always, swapped

KEY: Final = ways.KEY
#: States that differ from others only for one transition.
OWN_STATES: Final = {
    "requests": "requested",
    "tick": "ticked",
    "signal": "blocked",
    "tick_late": pauses.STATE,
    "damage_again": repeats.STATE,
}
#: How the task ``x`` stands when the actors begin. ``y`` is queued behind it. ``requested``: another service asked for
#: ``x`` in the request stream, by a request that its consumer did not acknowledge; two more requests wait there.
#: ``ticked``: a schedule enqueued ``x``, and its next tick cancels it. ``blocked``: ``x`` waits for a signal, and its
#: time to wait is over. ``paused``: see ``pauses``. ``damaged``: see ``repeats``.
STATES: Final = (
    *("queued", "executing", "overdue", "proposed", "scheduled", "dead", "cancelled", "both"),
    *OWN_STATES.values(),
    *flows.STATES,
    *queues.STATES,
    *crew.STATES,
    *ways.STATES,
)
PAST: Final = timedelta(hours=1)
#: What a worker serves after it has changed its profile.
CHANGED: Final = Profile.of((), ("a", "b"), ())
#: The ids of the readable requests.
REQUESTS: Final = ("request-x", "request-z")


class World:
    """The rows, the index and the workers of one run."""

    def __init__(self, history: History, again: Again) -> None:
        self.history = history
        self.again = again  # what the second delivery of a command changed
        self.x: uuid.UUID
        self.y: uuid.UUID
        self.held: list[ClaimedTask] = []  # what the first worker holds
        self.hands: list[Hand] = []
        self._copies: dict[str, Copy] = {}

    def begin(self, state: str) -> None:
        """Make everything anew, with ``x`` in ``state``: by real transitions once, later from a copy."""
        breaker.reset()
        forget_known_queues()
        ways.beliefs.begin()
        if state not in self._copies:
            self._make(state)
            self._copies[state] = Copy.take(len(self._copies), (self.x, self.y, self.held, self.hands))
        self.is_reordered = False  # whether an actor has changed the order of the queue
        self.was_damaged = False  # whether an actor may have damaged a key that a rebuild must replace
        self.state, copy = state, self._copies[state]
        copy.put_back()
        ways.beliefs.begin()
        self.x, self.y, held, hands = copy.names
        self.held, self.hands = list(held), list(hands)
        self.begun_at = copy.last_event
        self.first_letter = DeadLetter.objects.values_list("id", flat=True).first()
        self.crew, self.stage = list[crew.CrewWorker](), crew.Stage()
        if state in crew.STATES:
            crew.begin(self)

    def _make(self, state: str) -> None:
        reset_rows()
        ways.beliefs.begin()
        index = get_index()
        redis_client().eval(FORGET, 0, index.keys.everything)
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM task_event")
        assert rebuild() is not None
        limit = Limit.objects.create(scope="key", name="customer", max_concurrent=1)
        copy_limit(limit)
        index.flush()
        types = ("a", TYPE, crew.ECHO) if state in crew.STATES else ("a", TYPE)
        self.hands = [self._worker(number, types) for number in range(5)]
        self.held = []
        if state == "both":  # executing, and no limit keeps them apart
            self.x, self.y = put(), put()
            self.held = claim(self.hands[0].profile, self.hands[0].id, 2)
            return
        if state in flows.STATES:
            flows.make(self, state)
            get_index().flush()
            return
        if state in crew.STATES:
            crew.make(self, state)
            get_index().flush()
            return
        if state in queues.STATES:
            queues.make(self, state)
            get_index().flush()
            return
        if state == "requested":
            self._ask()
        elif state == "ticked":
            options = {"task_type": TYPE, "every": 60, "concurrency_key": KEY, "user": "ina"}
            create_schedule("minutely", {**options, "overlap": Overlap.CANCEL_PREVIOUS}, now=NOON)
            tick(1)
            get_index().flush()
            self.x = Task.objects.values_list("id", flat=True).get()
        else:
            self._put_x(ways.STATES.get(state, state))
        if state == pauses.STATE:
            pauses.make()
        self.y = put(concurrency_key=KEY, user="ina")
        if state == repeats.STATE:
            repeats.make(self)
        if state in ways.STATES:
            assert ways.leave()

    def _put_x(self, state: str) -> None:
        options = {"concurrency_key": KEY, "user": "ina", "max_retries": 0 if state == "dead" else 3}
        if state == "scheduled":
            self.x = put(run_after=datetime.now(UTC) + PAST, **options)
            Task.objects.filter(pk=self.x).update(run_after=datetime.now(UTC) - PAST)
            return
        self.x = put(**options)
        first = self.hands[0]
        if state in ("executing", "overdue", "dead", "blocked"):
            self.held = claim(first.profile, first.id, 1)
        if state == "blocked":
            let_wait_too_long(self.held.pop())
        elif state == "overdue":
            Task.objects.filter(pk=self.x).update(deadline=datetime.now(UTC) - PAST)
        elif state == "dead":
            finish([failed(self.held[0])])
        elif state == "cancelled":
            _cancel(self.x)
        elif state == "proposed":
            get_index().claim(first.profile, first.id, 1)

    def _ask(self) -> None:
        ask(request_id=REQUESTS[0], user="ina", concurrency_key=KEY)
        with swapped((RequestStream, "acknowledge", always(None))):
            consume(limit=1)
        get_index().flush()
        self.x = Task.objects.values_list("id", flat=True).get()
        ask(request_id=REQUESTS[1], user="ina", concurrency_key=KEY)
        ask(request_id="unreadable", parameters="{")

    def _worker(self, number: int, types: tuple[str, ...]) -> Hand:
        hand = Hand(uuid.UUID(int=number + 1), Profile.of((), types, ()))
        identity = workers.WorkerIdentity(
            id=hand.id, name=f"worker-{number}", host="h", pid=1, process_identity="elsewhere", version=""
        )
        workers.register(identity, hand.profile, concurrency=4, heartbeat_seconds=3600)
        return hand

    @property
    def letter(self) -> uuid.UUID:
        """The dead letter of ``x``."""
        return DeadLetter.objects.values_list("id", flat=True).filter(task_id=self.x).latest("died_at")

    def statuses_of(self, task_id: uuid.UUID) -> set[str]:
        """Return the states that a task was in since the actors began."""
        events = self.history.events(task_id)
        earlier = [event.after for event in events if event.seq <= self.begun_at][-1:]
        return {*earlier, *(event.after for event in events if event.seq > self.begun_at)}

    # -- judgement ------------------------------------------------------------------------------------

    def broken_now(self, *, damaged: bool) -> Iterator[str]:
        """Yield what must never be, also while the index lags; a damaged index waits for its repair."""
        yield from self._over_cap()
        follow()
        if damaged or get_index().generation().state != "ready":
            return  # a rebuild died on the way: nothing is claimed before the next one
        try:
            state = index_state.check(get_index())
        except AssertionError as error:
            yield f"the index contradicts itself: {_first_line(error)}"
            return
        lanes: dict[uuid.UUID, list[str]] = {}
        for lane, entries in state.lanes.items():
            for task_id in entries:
                lanes.setdefault(task_id, []).append(lane)
        for task_id, names in lanes.items():
            if len(names) > 1:
                yield f"{self.name_of(task_id)} stands in {len(names)} lanes"
        for ref in snapshot.refs(list(lanes)):
            if ref.id not in state.addresses.get(lane_in_index(state, ref), {}):
                yield f"{self.name_of(ref.id)} stands in a lane that its row does not name"

    def memory(self) -> str:
        """Return what the workers of the crew have in their memory, and what was found of their functions."""
        held = [worker.memory(self.name_of) for worker in self.crew]
        starts = [round(time.monotonic() - start) for start in self.stage.starts]
        return f"{held} {self.stage.most} {sorted(self.stage.ended.values())} {starts}"

    def without_slot(self) -> Iterator[str]:
        """Yield which tasks execute without the slot that their row names: none, while nothing fails."""
        for task_id in get_index().missing_leases(snapshot.executing()):
            yield f"{self.name_of(task_id)} executes without its slot"

    def without_place(self) -> Iterator[str]:
        """Yield which queued tasks the index lacks: none, while nothing fails."""
        yield from ways.without_lane()
        index = get_index()
        if index.generation().state != "ready":
            return
        for ref in snapshot.refs(list(Task.objects.filter(status="queued").values_list("id", flat=True))):
            placement = index.explain(ref)
            if not (placement.waits or placement.is_leased):
                yield f"{self.name_of(ref.id)} is queued, and the index lacks it"

    def _over_cap(self) -> Iterator[str]:
        if (most := self._most_executing()) > 1:
            yield f"{most} tasks of a key that is capped at 1 executed at once"

    def _most_executing(self) -> int:
        running = worst = 0
        capped = set(Task.objects.filter(concurrency_key=KEY).values_list("id", flat=True))
        for event in self.history.events():
            if event.task_id not in capped:
                continue
            running += (event.after == "executing") - (event.before == "executing")
            worst = max(worst, running)
        return worst

    def settle(self) -> Iterator[str]:
        """Let dead workers be reaped, the index be repaired, and every task run to its end; yield what is wrong."""
        breaker.reset()
        if self.crew:
            yield from crew.settle(self)
        ways.repair()
        self._claim_more()
        for worker_id in Worker.objects.filter(profile=CHANGED.id).values_list("id", flat=True):
            workers.register_in_index(CHANGED, worker_id)  # again, as it does when a rebuild has forgotten it
        redis_client().delete(f"{redis_index().keys.prefix}:lock:rebuild")  # of a rebuild that died it lapses
        if self.was_damaged:  # its actor may have died
            rebuild()
        reconciler = Reconciler()
        self.forgotten = self.turns = 0
        for _ in range(8):
            self._turn(reconciler)
            if self._is_done():
                break
        else:
            left = Task.objects.exclude(status__in=TERMINAL).values_list("id", "status")
            yield f"it never ends: {[(self.name_of(task_id), status) for task_id, status in left]}"
            return
        state = self._agreeing_index()
        if isinstance(state, str):
            reconcile_everything()
            state = self._agreeing_index()
        if isinstance(state, str):
            yield f"index and rows differ after a reconciliation: {state}"
            return
        if state.leases or state.waiting:
            yield f"{len(state.leases)} slots and {len(state.waiting)} entries are left"
        yield from self._over_cap()
        yield from self._of_state_broken()

    def _of_state_broken(self) -> Iterator[str]:
        if self.state == "requested":
            yield from self._requests_broken()
        elif self.state == "ticked":
            yield from self._ticks_broken()
        elif self.state == pauses.STATE:
            yield from pauses.broken()
        elif self.state in flows.STATES:
            yield from flows.broken(self)

    def _ticks_broken(self) -> Iterator[str]:
        ticks = dict(ScheduleTick.objects.exclude(kind__in=["manual", "backfill"]).values_list("instant", "task_id"))
        if set(ticks) != {NOON + timedelta(minutes=minute) for minute in (1, 2)}:
            yield "not each of the two ticks is recorded"
        if not (all(ticks.values()) or Schedule.objects.get().paused):
            yield "a tick has no task although the schedule is not paused"
        tasks = ScheduleTick.objects.filter(task_id__isnull=False).values_list("task_id", flat=True)
        if sorted(tasks) != sorted(Task.objects.filter(task_type=TYPE).values_list("id", flat=True)):
            yield "the ticks and the tasks differ"

    def _requests_broken(self) -> Iterator[str]:
        for key in REQUESTS:
            if (count := Task.objects.filter(idempotency_key=key).count()) != 1:
                yield f"request {key} has {count} tasks"
        if len(aside(get_index())) != 1:
            yield f"{len(aside(get_index()))} requests are quarantined, and one is unreadable"

    def _claim_more(self) -> None:
        """Claim on what the actors left behind, before anything is repaired: limits hold then, too."""
        last, tasks = self.hands[-1], list[ClaimedTask]()
        with suppress(TaskQueueError):
            for _ in range(3):  # the first proposal may be refused
                tasks += claim(last.profile, last.id, 1)
        finish([done(task) for task in tasks])

    def _agreeing_index(self) -> index_state.IndexState | str:
        try:
            return assert_index_agrees()
        except AssertionError as error:
            return _first_line(error)

    def _turn(self, reconciler: Reconciler) -> None:
        """Let the workers of the run die, everything come due, and the last worker do what waits."""
        if Queue.objects.filter(paused=True):  # by an actor that died before it resumed it
            resume("default")
        *others, last = self.hands
        Worker.objects.filter(id__in=[hand.id for hand in others]).update(status="dead")
        reap.reap_orphans()
        if get_index().way == conf.ROWS:
            rebuild_if_needed()
        elif rebuild_if_needed() or last.profile.id not in {profile for profile, _ in get_index().registered()}:
            get_index().register(last.profile, last.id)
        reconciler.run_once()
        self.turns += 1
        if self.state in flows.STATES:
            self.forgotten += flows.go_on(is_late=self.turns > 2)
        GO_ON.get(self.state, int)()
        answer(self.x)
        if (
            Task.objects.filter(status="scheduled").update(run_after=datetime.now(UTC) - PAST)
            or self.state == "blocked"
        ):
            make_due()
        for _ in range(6):
            try:
                tasks = claim(last.profile, last.id, 1)
            except TaskQueueError:
                break
            if not tasks:
                break
            finish([done(task) for task in tasks])

    def _is_done(self) -> bool:
        has_requests = get_index().way == conf.REDIS and bool(backlog().waiting)
        is_over = not Task.objects.exclude(status__in=TERMINAL).exists() and not has_requests
        return is_over and not Workflow.objects.filter(finished_at=None).exists()

    def name_of(self, task_id: uuid.UUID) -> str:
        """Return x or y, or the id of another."""
        return {self.x: "x", self.y: "y"}.get(task_id, str(task_id))


def tick(minute: int) -> int:
    """Let schedules tick that are due then."""
    return run_due(now=NOON + timedelta(minutes=minute))


#: State -> what the scheduler does there, beside all else.
GO_ON: Final = {"requested": consume, "ticked": lambda: tick(2), pauses.STATE: pauses.go_on, "paced": crew.pass_time}


def _cancel(task_id: uuid.UUID) -> None:
    from queue_app.services.lifecycle.actions import cancel  # noqa: PLC0415

    cancel(task_id)
    get_index().flush()


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__


__all__ = ["KEY", "STATES", "World", "new", "row"]
