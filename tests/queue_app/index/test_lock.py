"""lock.lua: at most one token holds a lock until it expires."""

import pytest

from queue_app.index import Index
from tests.support.index_state import client_of

# calls (token, seconds) -> replies
CALLS = {
    "free": ([("a", 9)], [True]),
    "renewed": ([("a", 9), ("a", 9)], [True, True]),
    "taken": ([("a", 9), ("b", 9)], [True, False]),
    "released": ([("a", 9), ("a", 0), ("b", 9)], [True, False, True]),
    "released with another token": ([("a", 9), ("b", 0), ("b", 9)], [True, False, False]),
    "released while free": ([("a", 0), ("b", 9)], [False, True]),
}


@pytest.mark.parametrize("case", CALLS)
def test_lock(index: Index, case: str):
    calls, replies = CALLS[case]
    assert [index.lock("lock", token, seconds) for token, seconds in calls] == replies


def test_a_lock_expires(index: Index):
    assert index.lock("lock", "a", 9)
    assert 0 < client_of(index).pttl(f"{index.keys.prefix}:lock:lock") <= 9000


def test_locks_with_different_names_are_independent(index: Index):
    assert index.lock("one", "a", 9)
    assert index.lock("two", "b", 9)
