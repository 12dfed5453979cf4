"""uuid7: unique and strictly increasing in a process, even if the clock goes back."""

import itertools
import os
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from queue_app.core import ids
from queue_app.core.ids import as_digits, as_texts, first_at, uuid7, uuid7s


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is set."""
    moment = [time.time_ns() + 10**12]
    monkeypatch.setattr(ids.time, "time_ns", lambda: moment[0])
    yield moment
    monkeypatch.undo()
    ids._generator.forget()  # drop the ids from the future above


def test_the_layout_is_version_7():
    before = time.time_ns() // 10**6
    made = uuid7()
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert before <= made.int >> 80 <= time.time_ns() // 10**6


def test_the_first_id_of_a_time_is_below_those_made_since():
    before = datetime.now(UTC)
    made = uuid7()
    assert first_at(before) < made < first_at(datetime.now(UTC), timedelta(milliseconds=1))
    assert made < first_at(datetime.max.replace(tzinfo=UTC), timedelta(minutes=1))
    assert first_at(datetime.min.replace(tzinfo=UTC), timedelta(minutes=-1)).int == 0


def test_ids_rise():
    made = [uuid7() for _ in range(20_000)]
    assert all(one < other for one, other in itertools.pairwise(made))
    assert sorted(made, key=lambda one: one.bytes) == made, "as bytes too: so the index orders them"


def test_ids_made_together_rise_and_are_written_together():
    made = [uuid7(), *uuid7s(300), uuid7()]
    assert all(one < other for one, other in itertools.pairwise(made))
    assert as_texts(made) == [str(one) for one in made]
    assert as_digits(made) == [one.hex for one in made]
    assert uuid7s(0) == as_texts([]) == []


def test_ids_rise_in_each_thread_and_differ_between_threads():
    with ThreadPoolExecutor(8) as pool:
        batches = list(pool.map(lambda _: [uuid7() for _ in range(2000)], range(8)))
    assert all(batch == sorted(batch) for batch in batches)
    assert len({one for batch in batches for one in batch}) == 16_000


def test_the_clock_goes_back(clock):
    first = uuid7()
    clock[0] -= 3600 * 10**9
    second = uuid7()
    assert second > first
    assert second.int >> 80 == first.int >> 80, "it stays at the latest instant it has seen"
    clock[0] += 2 * 3600 * 10**9
    assert uuid7() > second


def test_counter_overflow_in_a_millisecond(clock, monkeypatch):
    first = uuid7()
    monkeypatch.setattr(ids._generator, "_counter", ids._COUNTER_MAX)
    second, third = uuid7(), uuid7()
    assert first < second < third
    assert second.int >> 80 == (first.int >> 80) + 1, "the next millisecond is begun early"


def test_a_forked_child_makes_ids_of_its_own(clock):
    """The clock stands still, so both processes would continue with the same counter."""
    uuid7()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, b"".join(uuid7().bytes for _ in range(100)))
        os._exit(0)
    os.close(write)
    parents = {uuid7() for _ in range(100)}
    with os.fdopen(read, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    childs = {uuid.UUID(bytes=data[at : at + 16]) for at in range(0, len(data), 16)}
    assert len(childs) == 100
    assert not parents & childs


def test_a_fork_while_another_thread_makes_an_id_does_not_hang():
    with ids._generator._lock:
        child = os.fork()
        if child == 0:
            uuid7()
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
