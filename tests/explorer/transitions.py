"""The transitions that meet: what an actor does, in which states it means something, and what its answer promises."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from queue_app import conf
from queue_app.core.priorities import Band
from queue_app.core.records import Throttling
from queue_app.core.states import TERMINAL
from queue_app.exceptions import InvalidTransition
from queue_app.index import get_index
from queue_app.models import Limit
from queue_app.models.operation import OperationKind
from queue_app.schedules.backfill import run_schedule
from queue_app.schedules.edit import update_schedule
from queue_app.schedules.pause import pause_schedule
from queue_app.services.control.pause import pause, resume
from queue_app.services.control.queues import copy_limit
from queue_app.services.enqueue.admission import expire_stale
from queue_app.services.enqueue.store import enqueue, enqueue_many
from queue_app.services.lifecycle import claim as claiming
from queue_app.services.lifecycle.actions import cancel, cancel_many, discard, replay, reprioritise, retry, run_now
from queue_app.services.lifecycle.finish import finish, turn_over
from queue_app.services.repair import reap
from queue_app.services.repair.rebuild import rebuild
from queue_app.services.repair.reconcile import Reconciler
from queue_app.services.requests import consume
from queue_app.services.upkeep.maintenance import purge_tasks
from queue_app.services.upkeep.promote import make_due, promote
from queue_app.services.worker import registration as worker_services
from tests.explorer import crew, flows, pauses, queues, repeats, said_twice, ways
from tests.explorer.waits import WAITS
from tests.explorer.world import CHANGED, KEY, STATES, World, new, row, tick
from tests.support.engine import done, failed, redis_client

EVERYWHERE: Final = tuple(
    state for state in STATES if state not in ("both", *flows.STATES, *queues.STATES, *crew.STATES, *ways.STATES)
)
#: Of these, the ones in which the loss of keys is tried.
LOSSES: Final = ("queued", "executing", "proposed", "scheduled", "dead")
HELD: Final = ("executing", "overdue")
PENDING: Final = ("queued", "executing", "proposed", "scheduled", "requested", "ticked", "blocked")
TWO: Final = (*PENDING, "both")


type Broken = Callable[[World, Any, BaseException | None], Iterator[str]]


@dataclass(frozen=True, slots=True)
class Transition:
    """What an actor does. ``number`` tells two actors of the same kind apart."""

    act: Callable[[World, int], Any]
    states: tuple[str, ...] = EVERYWHERE
    #: Yields the promises of an answer (or of a refusal) that do not hold once all actors have ended.
    broken: Broken | None = None
    damages: bool = False  # it takes keys of the index away


def _claim(world: World, number: int) -> list[Any]:
    hand = world.hands[1 + number]
    return claiming.claim(hand.profile, hand.id, 1)


def _turn_over(world: World, _number: int) -> list[Any]:
    hand = world.hands[0]
    granted: list[Any] = []
    turn_over(hand.profile, hand.id, [done(task) for task in world.held], 1, granted.extend, lambda *_: None)
    return granted


def _cancel_broken(world: World, value: Any, error: BaseException | None) -> Iterator[str]:
    if error is not None and not isinstance(error, InvalidTransition):
        return
    ended = bool(world.statuses_of(world.x) & {str(status) for status in TERMINAL})
    task = row(world.x)
    if error is not None:
        if not ended:
            yield f"cancel was refused ({error}), and x had not ended"
    elif not ended and task.cancel_requested_at is None:
        yield f"cancel was acknowledged, and x is {task.status}"


def _cancel_many_broken(world: World, value: Any, error: BaseException | None) -> Iterator[str]:
    if error is None and world.x not in value:
        yield from _cancel_broken(world, None, InvalidTransition("left out of a bulk cancel", status=""))
    elif error is None:
        yield from _cancel_broken(world, value, None)


def _reprioritise_broken(world: World, _value: Any, error: BaseException | None) -> Iterator[str]:
    if error is not None and not isinstance(error, InvalidTransition):
        return
    was = world.statuses_of(world.x)
    if error is not None:
        if was <= {"queued", "scheduled", "blocked"}:
            yield f"reprioritise was refused ({error}), and x waited all the time"
    elif row(world.x).priority != Band.HIGH:
        yield "reprioritise was acknowledged, and the row has the old priority"


def _stale_broken(ended: str) -> Broken:
    def broken(world: World, _value: Any, _error: BaseException | None) -> Iterator[str]:
        for event in world.history.events(world.x):
            if event.before == "executing" and event.after == ended and event.attempt != world.held[0].attempt:
                yield f"an attempt that had lost x made attempt {event.attempt} of another worker {ended}"

    return broken


def _edit_limit(_world: World, _number: int) -> None:
    limit = Limit.objects.get(scope="key", name="customer")
    limit.rate_count, limit.rate_seconds, limit.rate_burst = 1000, 1.0, 1000
    limit.save()
    copy_limit(limit)


def _reconcile(_world: World, _number: int) -> Any:
    reconciler = Reconciler()
    reconciler.run_once()
    return reconciler.run_once()  # as much later as it takes for a lease to be abandoned


def _purge(_world: World, _number: int) -> int:
    retention = replace(conf.get().retention, success_seconds=0.0, failure_seconds=0.0, idempotency_seconds=0.0)
    return purge_tasks(retention, 100, math.inf)


def _change_profile(world: World, number: int) -> None:
    hand = world.hands[1 + number]
    worker_services.change_profile(hand.id, hand.profile, CHANGED)


def _flush(_world: World, _number: int) -> None:
    redis_client().flushdb()


def _lose_leases(_world: World, _number: int) -> None:
    index = get_index()
    redis_client().delete(index.keys.queue_leases("default"))


def _register(world: World, number: int) -> None:
    hand = world.hands[1 + number]
    worker_services.register_in_index(hand.profile, hand.id)


TRANSITIONS: Final[dict[str, Transition]] = {
    "claim": Transition(_claim),
    "complete": Transition(
        lambda world, _: finish([done(task) for task in world.held]), HELD, _stale_broken("completed")
    ),
    "turn_over": Transition(_turn_over, HELD, _stale_broken("completed")),
    "fail": Transition(lambda world, _: finish([failed(task) for task in world.held]), HELD),
    "die_in_attempt": Transition(lambda world, _: finish([failed(task, retriable=False) for task in world.held]), HELD),
    "snooze": Transition(lambda world, _: finish([replace(done(world.held[0]), snooze=0.001)]), HELD),
    "throttle": Transition(
        lambda world, _: finish([replace(done(world.held[0]), throttle=Throttling("key", 0.001))]), HELD
    ),
    "give_back": Transition(
        lambda world, _: claiming.give_back(list(world.held)), (*HELD, "both"), _stale_broken("queued")
    ),
    "recover": Transition(lambda world, _: claiming.recover(world.hands[0].id, []), ("executing", "proposed")),
    "cancel": Transition(lambda world, _: cancel(world.x), PENDING, _cancel_broken),
    "cancel_many": Transition(lambda world, _: cancel_many([world.y, world.x]), TWO, _cancel_many_broken),
    "reprioritise": Transition(
        lambda world, _: reprioritise(world.x, Band.HIGH),
        ("queued", "scheduled", "proposed", "requested", "blocked"),
        _reprioritise_broken,
    ),
    "due": Transition(lambda _world, _number: make_due(), ("scheduled", "executing", "blocked")),
    "run_now": Transition(lambda world, _: run_now(world.x), ("scheduled",)),
    "promote": Transition(lambda _world, _number: promote(), ("queued", "executing", "requested")),
    "expire": Transition(
        lambda _world, _number: expire_stale("default", 0.0), ("queued", "proposed", "scheduled", "requested")
    ),
    "reap": Transition(lambda world, _: reap.mark_dead(world.hands[0].id), ("executing", "proposed", "queued")),
    "overdue": Transition(lambda _world, _number: reap.reap_overdue(), ("overdue",)),
    "reconcile": Transition(_reconcile),
    "rebuild": Transition(lambda _world, _number: rebuild()),
    "replay": Transition(lambda world, _: replay(world.letter, by="ina"), ("dead", "held")),
    "discard": Transition(lambda world, _: discard(world.letter, by="ina"), ("dead", "held")),
    "retry": Transition(lambda world, _: retry(world.x, by="ina"), ("dead", "cancelled", "held")),
    "pause": Transition(lambda _world, _number: pause("default", by="ina") and resume("default")),
    "edit_limit": Transition(_edit_limit),
    "enqueue": Transition(
        lambda _world, _number: enqueue(new(concurrency_key=KEY, user="ina", idempotency_key="k")),
        ("queued", "executing", "requested"),
    ),
    "enqueue_many": Transition(
        lambda _world, number: enqueue_many(
            [new(user="ina", idempotency_key=key) for key in (("k", "l") if number else ("l", "k"))]
        ),
        ("queued",),
    ),
    "admit": Transition(
        lambda _world, _number: enqueue(new(concurrency_key=KEY, user="ina"), outside=True), ("queued", "executing")
    ),
    "purge": Transition(_purge, ("dead", "cancelled")),
    "operation": Transition(
        said_twice.operation(OperationKind.CANCEL), ("queued", "executing", "scheduled", "requested")
    ),
    "replay_all": Transition(said_twice.operation(OperationKind.REPLAY), ("dead",)),
    "tick": Transition(lambda _world, _number: tick(2), ("ticked",)),
    "run_schedule": Transition(lambda _world, _number: run_schedule("minutely"), ("ticked",)),
    "edit_schedule": Transition(lambda _world, _number: update_schedule("minutely", {"max_retries": 7}), ("ticked",)),
    "pause_schedule": Transition(lambda _world, _number: pause_schedule("minutely"), ("ticked",)),
    "requests": Transition(lambda _world, _number: consume(), ("requested",)),
    "register": Transition(_register, ("queued", "executing", "proposed")),
    "change_profile": Transition(_change_profile, ("queued", "executing", "proposed")),
    "flush": Transition(_flush, LOSSES, damages=True),
    "lose_leases": Transition(_lose_leases, ("executing", "proposed"), damages=True),
    "deregister": Transition(
        lambda world, _: worker_services.deregister(world.hands[0].id, world.hands[0].profile, tasks_done=0),
        ("executing", "proposed"),
    ),
    **{name: Transition(*of_steps) for name, of_steps in WAITS.items()},
    **{name: Transition(*of_flows) for name, of_flows in flows.FLOWS.items()},
    **{name: Transition(*of_queues) for name, of_queues in queues.QUEUES.items()},
    **{name: Transition(*of_pauses) for name, of_pauses in pauses.PAUSES.items()},
    said_twice.LIVES_ON: Transition(said_twice.fail_next, ("queued", "scheduled", "dead")),
    **{
        name: Transition(said_twice.twice(command), command.states, said_twice.changes_nothing(command))
        for name, command in said_twice.COMMANDS.items()
    },
    **{name: Transition(*of_crew) for name, of_crew in crew.ACTS.items()},
    **{name: Transition(*of_repeats) for name, of_repeats in repeats.REPEATS.items()},
    **{name: Transition(*of_ways) for name, of_ways in ways.WAYS.items()},
}


def _also_away(transition: Transition) -> Transition:
    """Return a transition that acts while claims read the rows, too."""
    more = [state for state, origin in ways.STATES.items() if origin in transition.states]
    return replace(transition, states=tuple(dict.fromkeys([*transition.states, *more])))


TRANSITIONS |= {
    name: _also_away(transition)
    for name, transition in TRANSITIONS.items()
    if not transition.damages and name not in ways.OF_REDIS
}
