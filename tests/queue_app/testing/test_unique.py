"""Unique tasks by the test's clock."""

import pytest

from queue_app import Unique, task
from queue_app.exceptions import UniqueConflict
from queue_app.testing import drain, freeze

pytestmark = pytest.mark.usefixtures("task_queue")


@task(unique=Unique(by=["order"]))
def ship(order: int, note: str = "") -> str:
    return note


def test_a_unique_task_stands_until_it_ends():
    first = ship.enqueue(1, note="a")
    assert ship.enqueue(order=1, note="b").id == first.id != ship.enqueue(2).id
    drain()
    assert ship.enqueue(1).id != first.id


def test_a_unique_task_may_stand_for_a_period():
    rule = ship.using(unique=Unique(by=["order"], within=60))
    with freeze() as clock:
        first = rule.enqueue(1)
        drain()
        clock.advance(59)
        assert rule.enqueue(1).id == first.id
        clock.advance(2)
        assert rule.enqueue(1).id != first.id


def test_a_repetition_may_raise_replace_or_wait_anew():
    with freeze() as clock:
        first = ship.enqueue(1, note="a")
        with pytest.raises(UniqueConflict, match=f"The task {first.id} is queued"):
            ship.using(unique=Unique(by=["order"], on_conflict="raise")).enqueue(1)
        ship.using(unique=Unique(by=["order"], on_conflict="latest")).enqueue(1, note="b")
        assert [result.return_value for result in drain()] == ["b"]
        slow = ship.using(unique=Unique(by=["order"], debounce=10, max_wait=15))
        again = slow.enqueue(2, note="a")
        clock.advance(9)
        assert slow.enqueue(2, note="b").id == again.id
        clock.advance(5)
        assert drain() == []
        clock.advance(1)
        assert [result.return_value for result in drain()] == ["b"]
