"""The way of claims changes: to the rows, although Redis answers, which is harder than if it were gone; and back.

``away``: claims read the rows, and ``x`` is queued; ``away_held``: and ``x`` executes. Each actor is a process, and
believes what the rows said when it began, until it hears otherwise.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

from django.db import connection

from queue_app import conf
from queue_app.core.priorities import Band
from queue_app.exceptions import IndexUnavailable, TaskQueueError
from queue_app.index import get_index, redis_is_away
from queue_app.rows import lanes
from queue_app.services.enqueue.store import enqueue
from queue_app.services.lifecycle.claim import claim
from queue_app.services.repair.detour import leave_redis, return_to_redis
from queue_app.services.repair.rebuild import rebuild_if_needed
from queue_app.services.way import follow, vote
from queue_app.services.worker.registration import register_in_index
from queue_app.sql import snapshot
from tests.support.engine import new
from tests.support.swaps import Swap

#: State -> the state from which claims have left Redis.
STATES: Final = {"away": "queued", "away_held": "executing"}
#: The key of all tasks, which is capped at 1.
KEY: Final = "customer:7"
GONE: Final = IndexUnavailable("Redis is gone.")


class Beliefs:
    """What each process believes: stands in for the flag of the one process that the actors share."""

    def __init__(self) -> None:
        self._of_all = False
        self._own: dict[threading.Thread, bool] = {}

    def begin(self) -> None:
        """Let all processes know what is true."""
        self._own.clear()
        self._of_all = snapshot.way().is_rows

    @property
    def swaps(self) -> tuple[Swap, ...]:
        """What stands for the methods of the flag."""
        return (
            (redis_is_away, "is_set", self._is_set),
            (redis_is_away, "set", lambda: self._note(is_away=True)),
            (redis_is_away, "clear", lambda: self._note(is_away=False)),
        )

    def _is_set(self) -> bool:
        return self._own.get(threading.current_thread(), self._of_all)

    def _note(self, *, is_away: bool) -> None:
        self._own[threading.current_thread()] = is_away


beliefs: Final = Beliefs()


def leave() -> bool:
    """Let claims read the rows: two workers cannot reach Redis."""
    vote("another")
    return leave_redis("this", GONE)


def _go_on(world: Any, number: int) -> None:
    """Start a more urgent task in the way that is in force; what the other one has proposed must not be granted."""
    hand = world.hands[1 + number]
    enqueue(new(concurrency_key=KEY, user="ina", priority=Band.CRITICAL))
    with suppress(TaskQueueError):  # another actor may have changed the way, or builds
        if get_index().way == conf.REDIS:
            register_in_index(hand.profile, hand.id)  # the return has forgotten it
        claim(hand.profile, hand.id, 1)


def _leave(world: Any, number: int) -> bool:
    found = leave()
    _go_on(world, number)
    return found


def _return(world: Any, number: int) -> bool:
    found = return_to_redis()
    _go_on(world, number)
    return found


def repair() -> None:
    """Let the locks of rebuilds that died lapse, build what they have left, and hear the way."""
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM queue_app_rows_lock WHERE name = 'rebuild'")
    follow()
    rebuild_if_needed()


def without_lane() -> Iterator[str]:
    """Yield how many tasks claims from rows would not find: none, while nothing fails."""
    if follow().is_rows and (found := lanes.misplaced()):
        yield f"{len(found)} tasks wait in lanes that claims do not find"


#: Transitions that only the index in Redis needs.
OF_REDIS: Final = ("register", "change_profile", "recover", "requests", "promote")
IN_REDIS: Final = (
    "queued", "executing", "overdue", "proposed", "scheduled", "dead", "cancelled", "both", "ticked", "blocked",
)  # fmt: skip
#: Name -> what it does, in which states.
WAYS: Final[dict[str, tuple[Callable[[Any, int], Any], tuple[str, ...]]]] = {
    "leave": (_leave, (*IN_REDIS, *STATES)),
    "return": (_return, tuple(STATES)),
}
