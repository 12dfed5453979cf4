"""Caps hold whatever happens between the claims of turn-overs and their transactions."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from queue_app.core.records import ClaimedTask
from queue_app.models import Limit, Task
from queue_app.services.control.queues import set_queue_limits
from queue_app.services.lifecycle import finish as service
from queue_app.services.lifecycle.claim import give_back
from queue_app.services.lifecycle.finish import finish
from queue_app.services.notify.index import notify_index
from queue_app.services.repair.rebuild import copy_limits
from queue_app.services.repair.reconcile import Reconciler
from tests.support.engine import done, put_many, take
from tests.support.index_state import client_of
from tests.support.scene import Hand

#: Caps of the queue and of each key.
CAP, OF_A_KEY = 7, 3


class Commotion:
    """Three workers that end and claim tasks at random, a turn-over within another, and lose releases."""

    def __init__(self, engine: Any, seed: int) -> None:
        self.chance = random.Random(seed)
        self.engine = engine
        self.most = 0  # tasks that ran at once
        self._hands = [engine.worker() for _ in range(3)]
        self._held: dict[uuid.UUID, list[ClaimedTask]] = {hand.id: [] for hand in self._hands}
        self._reconciler = Reconciler()
        self._transaction, self._depth = service.finish_rows.turn_over, 0

    def turn_over_rows(self, *arguments: Any) -> Any:
        """Let others act between the claim and the transaction."""
        if self._depth < 4 and self.chance.random() < 0.8:
            self.step()
        return self._transaction(*arguments)

    def notify(self, operation: Callable[..., Any], name: str, *arguments: Any) -> None:
        """Lose a tenth of the releases."""
        if self.chance.random() < 0.9:
            notify_index(operation, name, *arguments)

    def step(self) -> None:
        """Let a worker, an editor or the reconciler act, and compare what runs with the caps."""
        self._depth += 1
        hand = self.chance.choice(self._hands)
        mine, self._held[hand.id] = self._held[hand.id], []  # a worker does one thing at a time
        [action] = self.chance.choices(
            [self._turn_over, self._end, self._give_back, self._edit, self._repair, self._calm, self._claim],
            [60, 5, 5, 5, 5, 5, 15],
        )
        self._held[hand.id] += action(hand, mine)
        self._depth -= 1
        keys = list(Task.objects.filter(status="executing").values_list("concurrency_key", flat=True))
        assert len(keys) <= CAP
        assert all(keys.count(key) <= OF_A_KEY for key in keys)
        self.most = max(self.most, len(keys))

    def _some(self, mine: list[ClaimedTask]) -> tuple[list[ClaimedTask], list[ClaimedTask]]:
        """Return tasks whose attempts have ended, and the others."""
        ended = [task for task in mine if self.chance.random() < 0.8]
        return ended, [task for task in mine if task not in ended]

    def _turn_over(self, hand: Hand, mine: list[ClaimedTask]) -> list[ClaimedTask]:
        ended, kept = self._some(mine)
        if ended:
            outcomes, want = [done(task) for task in ended], self.chance.choice([2, 6, 50])
            service.turn_over(hand.profile, hand.id, outcomes, want, kept.extend, lambda *_: None)
        return kept

    def _end(self, _hand: Hand, mine: list[ClaimedTask]) -> list[ClaimedTask]:
        ended, kept = self._some(mine)
        finish([done(task) for task in ended])
        return kept

    def _give_back(self, _hand: Hand, mine: list[ClaimedTask]) -> list[ClaimedTask]:
        returned, kept = self._some(mine)
        give_back(returned)
        return kept

    def _edit(self, _hand: Hand, mine: list[ClaimedTask]) -> list[ClaimedTask]:
        Limit.objects.filter(name="k").update(min_delay_seconds=self.chance.choice([None, 0.000_001]))
        copy_limits()
        return mine

    def _repair(self, _hand: Hand, mine: list[ClaimedTask]) -> list[ClaimedTask]:
        self._reconciler.run_once()
        return mine

    def _calm(self, _hand: Hand, mine: list[ClaimedTask]) -> list[ClaimedTask]:
        """Let the second pass in which all leases count."""
        client_of(self.engine.index).hdel(self.engine.index.keys.generation, "edited")
        return mine

    def _claim(self, hand: Hand, mine: list[ClaimedTask]) -> list[ClaimedTask]:
        return mine + take(hand, self.chance.choice([1, 3, 8]))


@pytest.mark.parametrize("seed", range(3))
def test_caps_hold_whatever_happens_between_claims_and_transactions(engine, history, monkeypatch, seed):
    Limit.objects.create(scope="key", name="k", max_concurrent=OF_A_KEY)
    set_queue_limits("default", max_concurrent=CAP)
    commotion = Commotion(engine, seed)
    for _ in range(70):
        put_many(5, concurrency_key=f"k:{commotion.chance.randrange(3)}")
    monkeypatch.setattr(service.finish_rows, "turn_over", commotion.turn_over_rows)
    monkeypatch.setattr(service, "notify_index", commotion.notify)
    for _ in range(120):
        commotion.step()
    assert commotion.most == CAP, "and the cap was reached"
    assert history.most_executing() == CAP
