"""Transitions on queues of their own kinds.

``arrival``: a queue by arrival that runs one task at a time; two low tasks wait, and behind them ``y`` in a higher
band.
``lowered``: the caps of two queues were lowered below what two workers run there.
``full``: a queue with two tasks and three places, two of which a submission that shares its lock leaves free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

from queue_app.core.priorities import Band
from queue_app.exceptions import QueueFull, UnknownProfile
from queue_app.models import Queue, Task
from queue_app.services.control.queues import set_queue_limits
from queue_app.services.enqueue.store import enqueue
from queue_app.services.lifecycle.claim import claim
from queue_app.services.lifecycle.finish import finish, turn_over
from queue_app.services.repair.rebuild import rebuild
from queue_app.services.worker.registration import register_in_index
from queue_app.sql import admission
from tests.support.engine import done, new, put
from tests.support.swaps import swapped

STATES: Final = ("arrival", "full", "lowered")
#: Maximum number of waiting tasks in the state ``full``.
LENGTH: Final = 5
#: Two queues, and their lowered cap.
CAPPED: Final = ("slow", "quick")
CAP: Final = 2
WAITING: Final = ("scheduled", "queued")
_CONNECTIONS: Final = "current_setting('max_connections')"


def few_connections() -> Any:
    """Let a submission leave two places free, for two other actors, and share the lock of a limit of five."""
    text = admission._LOCK_ONE
    assert text.count(f"4 * {_CONNECTIONS}::int") == 1
    text = text.replace(f"4 * {_CONNECTIONS}::int", f"{LENGTH - 1}")
    return swapped((admission, "_LOCK_ONE", text.replace(_CONNECTIONS, "'2'")))


def make(world: Any, state: str) -> None:
    """Store the queue of a state and its tasks."""
    queue, _ = Queue.objects.get_or_create(pk="default")
    if state == "full":
        queue.max_length = LENGTH
        queue.save()
        world.x, world.y = put(), put()
        return
    if state == "lowered":
        for name in CAPPED:
            Queue.objects.create(name=name, max_concurrent=3)
        world.x, world.y = (put(queue=name) for name in CAPPED)
        for name in CAPPED * 6:
            put(queue=name)
        for hand in world.hands[1:3]:
            world.held += claim(hand.profile, hand.id, 3)
        for name in CAPPED:
            set_queue_limits(name, max_concurrent=CAP)
        return
    queue.order, queue.max_concurrent = "arrival", 1
    queue.save()
    world.x = put(priority=Band.LOW)
    put(priority=Band.LOW)
    world.y = put(priority=Band.HIGH)


def _work(world: Any, number: int) -> None:
    """Claim and complete one task after the other."""
    hand = world.hands[1 + number]
    for _ in range(3):
        try:
            tasks = claim(hand.profile, hand.id, 1)
        except UnknownProfile:  # the index was rebuilt
            register_in_index(hand.profile, hand.id)
            tasks = claim(hand.profile, hand.id, 1)
        finish([done(task) for task in tasks])


def _turn_twice(world: Any, number: int) -> None:
    """Turn over: a worker ends one task of each queue, and once more what it got and one other."""
    hand = world.hands[1 + number]
    held = [task for task in world.held if task.worker_id == hand.id]
    for _ in range(2):
        ends = [next((task for task in held if task.queue == name), None) for name in CAPPED]
        outcomes = [done(task) for task in ends if task is not None]
        granted: list[Any] = []
        if outcomes:
            turn_over(hand.profile, hand.id, outcomes, len(outcomes), granted.extend, lambda *_: None)
        held = granted + [task for task in held if task not in ends]


def _lowered_broken(world: Any, _value: Any, _error: BaseException | None) -> Iterator[str]:
    """No task starts while more than the lowered cap would run."""
    for name in CAPPED:
        ids = set(Task.objects.filter(queue=name).values_list("id", flat=True))
        running = 0
        for event in world.history.events():
            if event.task_id in ids:
                running += (event.after == "executing") - (event.before == "executing")
                if event.seq > world.begun_at and event.after == "executing" and running > CAP:
                    yield f"a task of {name} started, and {running} ran under a cap of {CAP}"


def _change_order(world: Any, _number: int) -> None:
    """Let the bands count for a moment."""
    world.is_reordered = True
    for order in ("fifo", "arrival"):
        queue = Queue.objects.get(pk="default")
        queue.order = order
        queue.save()


def _order_broken(world: Any, _value: Any, _error: BaseException | None) -> Iterator[str]:
    """No task starts before an older one that still waits; the queue runs one at a time."""
    if world.is_reordered:
        return
    order = list(Task.objects.order_by("queued_at", "id").values_list("id", flat=True))
    untouched = {event.task_id for event in world.history.events() if event.seq <= world.begun_at}
    for event in world.history.events():
        if event.seq <= world.begun_at:
            continue
        untouched.discard(event.task_id)
        older = set(order[: order.index(event.task_id)]) & untouched
        if event.after == "executing" and older:
            yield f"{world.name_of(event.task_id)} started before {len(older)} older tasks"


def _admit(_world: Any, _number: int) -> int:
    """Submit two tasks; return how many were refused."""
    refused = 0
    for _ in range(2):
        try:
            enqueue(new(user="ina"), outside=True)
        except QueueFull:
            refused += 1
    return refused


def _store(_world: Any, _number: int) -> int:
    """Enqueue a task by code; return whether it was refused."""
    with suppress(QueueFull):
        enqueue(new())
        return 0
    return 1


def _room_broken(world: Any, value: Any, _error: BaseException | None) -> Iterator[str]:
    waiting = worst = 0
    for event in world.history.events():
        waiting += (event.after in WAITING) - (event.before in WAITING)
        worst = max(worst, waiting)
    if worst > LENGTH:
        yield f"{worst} tasks waited in a queue for {LENGTH}"
    if value and worst < LENGTH:
        yield f"a task was refused, and only {worst} waited in a queue for {LENGTH}"


#: Name -> what it does, in which states, and what it promises.
QUEUES: Final[dict[str, tuple[Callable[[Any, int], Any], tuple[str, ...], Any]]] = {
    "load": (lambda _world, _: rebuild(), ("arrival",), _order_broken),
    "work": (_work, ("arrival",), _order_broken),
    "come": (lambda _world, _: enqueue(new(priority=Band.CRITICAL)), ("arrival",), None),
    "change_order": (_change_order, ("arrival",), None),
    "turn_twice": (_turn_twice, ("lowered",), _lowered_broken),
    "lower_again": (lambda _world, _: set_queue_limits("slow", max_concurrent=CAP), ("lowered",), None),
    "admit_two": (_admit, ("full",), _room_broken),
    "store_one": (_store, ("full",), _room_broken),
}
