"""Fair queues: users take equal turns at any load, and the tasks of one user start in order."""

from collections import Counter
from dataclasses import replace
from itertools import cycle

import pytest

from queue_app.core.records import TaskRef
from tests.support.leases import release
from tests.support.scene import Hand, Scene, set_limits

USERS = 50
ROUNDS = 20


def jain(shares: list[float]) -> float:
    """Return Jain's fairness index: 1 for equal shares, 1/n if one user has everything."""
    return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))


def load(scene: Scene, user: str, count: int, *, start: int = 0, kinds: str = "a") -> list[TaskRef]:
    """Push tasks of a user, cycling through the types; return them in order."""
    kind = cycle(kinds)
    mine = [
        replace(scene.task(f"{user}:{start + number}", start + number, kind=next(kind)), user=user)
        for number in range(count)
    ]
    scene.index.push(mine)
    return mine


def owners(scene: Scene, hand: Hand, want: int) -> list[str]:
    """Claim without looking at the whole index; return the names of the tasks."""
    found = scene.index.claim(hand.profile, hand.id, want, register_idle=False)
    return [scene.names[task_id] for task_id, _ in found.tasks]


def end(scene: Scene, *names: str) -> None:
    release(scene.index, ((scene.tasks[name].id, "default") for name in names))


@pytest.mark.parametrize("per_user", [None, 2])
def test_users_of_unequal_load_get_equal_shares_each_in_its_order(scene: Scene, per_user):
    """Fifty users wait with 20 to 216 tasks each, the greediest first; a thousand starts later all had about twenty."""
    set_limits(scene.index, "default", fair_by="user", max_concurrent_per_user=per_user)
    hand = scene.worker("a b")
    wanted = {}
    for number in reversed(range(USERS)):
        wanted[f"u{number}"] = load(scene, f"u{number}", ROUNDS + 4 * number, start=1000 * (USERS - number), kinds="ab")
    started, running, sizes = [], [], cycle([1, 7, 3, 10])
    while len(started) < USERS * ROUNDS:
        found = owners(scene, hand, min(next(sizes), USERS * ROUNDS - len(started)))
        started += found
        running += found
        end(scene, *running[:-12])
        del running[:-12]
    shares = Counter(name.partition(":")[0] for name in started)
    assert jain([shares[user] for user in wanted]) >= 0.95
    assert max(shares.values()) - min(shares.values()) <= 1
    for user, mine in wanted.items():
        own = [name for name in started if name.partition(":")[0] == user]
        assert own == [scene.names[task.id] for task in mine[: len(own)]], "first in, first out over both lanes"
    scene.check()


def test_shares_go_by_weight(scene: Scene):
    set_limits(scene.index, "default", fair_by="user", shares={"u0": 3.0})
    hand = scene.worker()
    for user in ("u0", "u1", "u2"):
        load(scene, user, 60)
    started = Counter(owners(scene, hand, 1)[0].partition(":")[0] for _ in range(50))
    assert started == {"u0": 30, "u1": 10, "u2": 10}


@pytest.mark.parametrize("before", [0, 500])
def test_a_single_task_starts_with_the_next_free_slot(scene: Scene, before: int):
    """One user has 10 000 tasks and holds every slot: the next free slot goes to the other user."""
    set_limits(scene.index, "default", fair_by="user", max_concurrent=4)
    hand = scene.worker()
    load(scene, "many", 10_000)
    running = owners(scene, hand, 4)
    for _ in range(before):
        end(scene, running.pop(0))
        running += owners(scene, hand, 4)
    load(scene, "one", 1, start=20_000)
    assert owners(scene, hand, 4) == []
    end(scene, running.pop(0))
    assert owners(scene, hand, 4) == ["one:20000"]


def test_turns_of_one_kind_of_worker_move_the_queue_for_another(scene: Scene):
    """After ann's turn for ``a``, bea's is next for ``b``, whose task is older than all others that wait for it."""
    set_limits(scene.index, "default", fair_by="user")
    one, other = scene.worker("a"), scene.worker("b")
    load(scene, "ann", 1)
    load(scene, "ann", 1, start=100, kinds="b")
    load(scene, "bea", 1, start=50, kinds="b")
    scene.push(scene.task("elsewhere", 60, queue="elsewhere", kind="b"))
    assert owners(scene, one, 1) == ["ann:0"]
    assert owners(scene, other, 3) == ["bea:50", "elsewhere", "ann:100"]
    scene.check()
