"""lib/keys.lua, set_clock, lock: the server's clock steps by an hour, and nothing stands still or starts too early."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from queue_app.core.priorities import Band
from tests.support.index_clock import stop_clock
from tests.support.index_state import band_of, client_of
from tests.support.scene import START, Hand, Scene, set_limits

HOUR = timedelta(hours=1)
MS = timedelta(milliseconds=1)
#: Ten starts a second, in each of its forms.
PACES = {
    "rate": {"rate_count": 10, "rate_seconds": 1.0, "rate_burst": 2},
    "delay": {"min_delay_seconds": 0.1},
    "fair": {"rate_count": 10, "rate_seconds": 1.0, "rate_burst": 2, "fair_by": "user"},
    "cap": {"rate_count": 10, "rate_seconds": 1.0, "rate_burst": 2, "max_concurrent": 1000},
}


class Server:
    """A server whose clock stands at ``at`` and may step; ``real`` time only goes on.

    It is tomorrow: records of rates expire by the true clock, and must not do so here.
    """

    def __init__(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        self._index, self._monkeypatch = scene.index, monkeypatch
        self.real = self.at = datetime.now(UTC) + timedelta(days=1)
        self.pass_by()

    def pass_by(self, time: timedelta = 0 * MS, *, step: timedelta = 0 * MS) -> None:
        """Let some time pass; ``step`` moves the clock besides."""
        self.real, self.at = self.real + time, self.at + time + step
        stop_clock(self._index, self.at, self._monkeypatch)


@pytest.fixture
def server(scene, monkeypatch) -> Server:
    return Server(scene, monkeypatch)


def starts(scene: Scene, server: Server, hand: Hand, steps: dict[int, timedelta], turns: int = 60) -> list[datetime]:
    """Claim every 20 ms; return the real instants of all starts. The clock steps before the turns in ``steps``."""
    found: list[datetime] = []
    for turn in range(turns):
        server.pass_by(20 * MS, step=steps.get(turn, 0 * MS))
        scene.index.generation()  # as the leading scheduler does twice a second
        found += [server.real] * len(scene.index.claim(hand.profile, hand.id, 10).tasks)
    return found


def longest_wait(found: list[datetime], server: Server) -> timedelta:
    """Return the longest real time without a start, until now."""
    return max(later - earlier for earlier, later in pairwise([*found, server.real]))


@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("step", [HOUR, -HOUR], ids=["ahead", "back"])
def test_a_pace_goes_on(scene, server, pace, step):
    set_limits(scene.index, "default", **PACES[pace])
    scene.push(*(scene.task(f"t{number}", number) for number in range(100)))
    hand = scene.worker()
    server.pass_by(2 * HOUR)
    found = starts(scene, server, hand, {30: step})
    assert longest_wait(found, server) <= 150 * MS
    burst = PACES[pace].get("rate_burst", 1)
    # 1.2 s of ten a second, and the burst: at the start, and once more at a step ahead, as after an hour without work.
    assert len(found) <= 12 + burst * (2 if step == HOUR else 1)
    scene.check()


def test_a_clock_that_steps_many_times(scene, server):
    set_limits(scene.index, "default", **PACES["rate"])
    scene.push(*(scene.task(f"t{number}", number) for number in range(100)))
    hand = scene.worker()
    server.pass_by(2 * HOUR)
    found = starts(scene, server, hand, {10: -HOUR, 20: HOUR, 30: -2 * HOUR, 40: -HOUR, 50: HOUR})
    assert longest_wait(found, server) <= 150 * MS
    assert len(found) <= 12 + 3 * 2, "a burst at the start and at each of two steps ahead"


def test_a_rebuild_keeps_the_clock_of_the_rates(scene, server):
    set_limits(scene.index, "default", rate_count=1, rate_seconds=10.0)
    scene.push(*(scene.task(f"t{number}", number) for number in range(3)))
    server.pass_by(HOUR)
    hand = scene.worker()
    assert scene.claim(hand) == "t0"
    server.pass_by(step=-HOUR)
    assert scene.claim(hand) == ""
    scene.open(2)
    scene.push(*(scene.tasks[name] for name in ("t1", "t2")))
    hand = scene.worker()
    assert scene.claim(hand) == "", "its token is not back before ten seconds"
    server.pass_by(timedelta(seconds=10.1))
    assert scene.claim(hand) == "t1"


def test_stamps_rise_and_the_clock_of_the_index_does_not_go_back(scene, server):
    scene.push(*(scene.task(f"t{number}", number) for number in range(3)))
    hand = scene.worker()
    stamps = []
    for step in (HOUR, -HOUR, -HOUR):
        server.pass_by(step=step)
        stamps.append(scene.propose(hand).leased_at)
    assert stamps == sorted(set(stamps))


@pytest.mark.parametrize("name", ["scheduler", "rebuild"])
def test_the_lock_of_a_dead_holder_lapses_although_the_clock_went_back(index, name):
    assert index.lock(name, "dead", 15)
    client_of(index).pexpire(index.keys.lock(name), 3_600_000)  # the server's clock steps back by an hour
    assert not index.lock(name, "heir", 15)
    assert client_of(index).pttl(index.keys.lock(name)) <= 15_000


def test_a_worker_waits_for_a_refill_in_place_of_one_that_waits_too_long(scene, server):
    """The watch of a dead worker would last as long as the step."""
    set_limits(scene.index, "default", rate_count=1, rate_seconds=10.0)
    scene.push(scene.task("a"), scene.task("b", 1))
    server.pass_by(HOUR)
    dead, other = scene.worker(), scene.worker()
    assert scene.claim(dead, 2) == "a"
    scene.claim(other, 1)
    [key] = client_of(scene.index).keys(f"{scene.index.keys.prefix}:watch:*")
    client_of(scene.index).pexpire(key, 3_600_000)
    client_of(scene.index).zrem(f"{scene.index.keys.prefix}:idle:{dead.profile.id}", str(dead.id))
    assert not scene.called(other)
    scene.index.wake_idle()
    assert scene.called(other)
    assert scene.propose(other).wait is not None


@pytest.mark.parametrize("skew", [HOUR, -HOUR], ids=["ahead", "behind"])
def test_a_throttle_is_measured_by_the_clock_of_the_rows(scene, server, skew):
    scene.push(scene.task("a"))
    hand = scene.worker()
    rows = server.real + skew
    assert scene.index.set_clock(rows)
    set_limits(scene.index, "default", throttled_until=rows + timedelta(seconds=30))
    assert scene.claim(hand) == ""
    assert scene.propose(hand).wait == pytest.approx(30, abs=0.1)
    server.pass_by(timedelta(seconds=31))
    assert scene.claim(hand) == "a"


@pytest.mark.parametrize("skew", [HOUR, -HOUR], ids=["ahead", "behind"])
def test_ages_are_measured_by_the_clock_of_the_rows(scene, server, skew):
    scene.index.set_thresholds({Band.NORMAL: 1200, Band.LOW: 600, Band.BACKGROUND: None})
    rows = START + HOUR
    server.at = server.real = rows - skew
    server.pass_by()
    scene.index.set_clock(rows)
    minute = 60_000
    tasks = [scene.task("new", 60 * minute, band=Band.LOW), scene.task("aged", 49 * minute, band=Band.LOW)]
    scene.index.push(tasks)
    [lane] = scene.check().lanes.values()
    assert {scene.names[task_id]: band_of(score) for task_id, score in lane.items()} == {
        "new": Band.LOW,
        "aged": Band.NORMAL,
    }


def test_small_differences_are_no_news(scene, server):
    assert scene.index.set_clock(server.at + timedelta(seconds=5))
    assert not scene.index.set_clock(server.at + timedelta(seconds=5.9))
    assert scene.index.set_clock(server.at - timedelta(seconds=5))
