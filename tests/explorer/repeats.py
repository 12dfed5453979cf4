"""A fault that repeats: what is remembered of the last ones decides how soon the next is repaired.

``damaged``: the index was damaged four times, 8 s apart, and each rebuild helped. ``x`` is queued.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from django.db import connection

from queue_app.exceptions import IndexDamaged, IndexNotReady, TaskQueueError, UnknownProfile
from queue_app.index import get_index
from queue_app.services.lifecycle.claim import claim, give_back
from queue_app.services.repair.rebuild import rebuild
from queue_app.services.worker.registration import register_in_index
from queue_app.sql import snapshot
from tests.support.engine import redis_client

STATE: Final = "damaged"
#: Without a look at whether the rebuild helped, the next one would have to wait for 15 s.
BEFORE: Final = 4
#: Longer than the wait after a rebuild that helped.
SECONDS: Final = 8
_LATER: Final = f"""
UPDATE queue_app_indexgeneration
SET started_at = started_at - interval '{SECONDS} s', ready_at = ready_at - interval '{SECONDS} s',
    condemned_at = condemned_at - interval '{SECONDS} s', damaged_at = damaged_at - interval '{SECONDS} s'
"""  # noqa: S608 - a number


def make(world: Any) -> None:
    """Let the index be damaged and repaired several times."""
    for _ in range(BEFORE):
        assert _repaired(world)
        with connection.cursor() as cursor:
            cursor.execute(_LATER)


def _repaired(world: Any) -> bool:
    """Damage a key that every claim reads, and no limit; return whether a claim then begins a new generation.

    Another actor may have begun it. A task starts under the new one, and goes back.
    """
    hand, index, number = world.hands[3], get_index(), snapshot.generation()
    redis_client().set(f"{index.keys.prefix}:profiles", "damaged")
    try:
        give_back(claim(hand.profile, hand.id, 1))
    except IndexNotReady:
        pass
    except IndexDamaged:
        return snapshot.generation() != number
    with suppress(UnknownProfile):
        rebuild()
        register_in_index(hand.profile, hand.id)
        give_back(claim(hand.profile, hand.id, 1))
    return True


def _damage_again(world: Any, _number: int) -> bool:
    world.was_damaged = True
    try:
        return _repaired(world)
    except TaskQueueError:  # another actor rebuilds
        return True


def _broken(_world: Any, value: Any, error: BaseException | None) -> Iterator[str]:
    if error is None and value is False:
        yield f"damage {BEFORE + 1} stays, although each rebuild before has helped"


#: Name -> what it does, in which states, what it promises, and that it damages the index.
REPEATS: Final = {"damage_again": (_damage_again, (STATE,), _broken, True)}
