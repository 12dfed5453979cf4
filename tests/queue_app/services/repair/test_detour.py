"""Claims leave Redis for the rows, and return: who decides it, what processes do that have not heard, what limits see.

Redis is there all the time; what "cannot be reached" stands in for it. All processes are this one: what each believes
is a flag, which the test sets.
"""

import random
import uuid
from collections import Counter

import pytest
from django.db import connection, transaction

from queue_app import conf
from queue_app.core.records import ClaimedTask, WorkerReport
from queue_app.core.states import Status
from queue_app.exceptions import IndexDamaged, IndexNotReady, IndexUnavailable, UnknownProfile
from queue_app.index import get_index, redis_index, redis_is_away, rows_index
from queue_app.models import Limit, Queue, RuntimeSettings, Task
from queue_app.rows import lanes
from queue_app.services.control.queues import copy_limit, set_queue_limits
from queue_app.services.lifecycle.claim import claim, give_back
from queue_app.services.lifecycle.finish import finish
from queue_app.services.notify import index as notify
from queue_app.services.repair import detour
from queue_app.services.repair.detour import leave_redis, name_recent, return_to_redis
from queue_app.services.repair.rebuild import rebuild, rebuild_if_needed
from queue_app.services.upkeep.jobs import take_lead
from queue_app.services.way import VOTE_SECONDS, follow, vote
from queue_app.services.worker.registration import heartbeat
from queue_app.sql import snapshot
from tests.support.engine import assert_index_agrees, done, enlist, held_up, put, put_many, reconcile_later, row
from tests.support.index_state import client_of
from tests.support.scene import Hand

GONE = IndexUnavailable("Redis is gone.")


@pytest.fixture(autouse=True)
def _believes_in_redis(monkeypatch):
    """Let each test begin, and the next one go on, as a process that has heard nothing; Redis itself seems away."""
    monkeypatch.setattr(detour, "why_away", lambda: "It is gone.")
    redis_is_away.clear()
    yield
    redis_is_away.clear()


def believe(*, rows: bool) -> None:
    """Let this process be one that believes this, whatever is true."""
    (redis_is_away.set if rows else redis_is_away.clear)()


def go_to_rows() -> None:
    """Let claims read the rows: the leader and a worker cannot reach Redis."""
    take_lead("leader", 60)
    vote("worker")
    assert leave_redis("leader", GONE)


def take(hand: Hand, want: int = 1) -> list[ClaimedTask]:
    """Claim for a worker, which registers again after a rebuild, as its loop does."""
    try:
        return claim(hand.profile, hand.id, want)
    except UnknownProfile:
        get_index().register(hand.profile, hand.id)
        return claim(hand.profile, hand.id, want)


def take_ids(hand: Hand, want: int = 1) -> list[uuid.UUID]:
    """Claim for a worker, and return the ids."""
    return [task.id for task in take(hand, want)]


def execute(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


# -- who decides ---------------------------------------------------------------------------


@pytest.fixture
def crew(engine):
    """Two workers with rows."""
    return [enlist(engine.worker()) for _ in range(2)]


def leaves(voter: str, error: Exception = GONE, **options: bool) -> bool:
    """Return whether claims read the rows after a process could not reach Redis."""
    left = leave_redis(voter, error, **options)
    assert left == snapshot.way().is_rows
    return left


def test_the_leader_confirms_what_a_worker_found(crew):
    take_lead("leader", 60)
    assert not leaves("one")
    assert not leaves("two"), "two workers, but the leader reaches Redis"
    assert leaves("leader")
    assert snapshot.way().because == "Redis is gone."


def test_a_worker_confirms_what_the_leader_found(crew):
    take_lead("leader", 60)
    assert not leaves("leader")
    assert leaves("one")


def test_a_leader_that_insists_needs_nobody_else(crew):
    take_lead("leader", 60)
    assert not leaves("one", insists=True), "it does not lead"
    execute("DELETE FROM queue_app_rows_lock WHERE name LIKE 'away %'")
    assert leaves("leader", insists=True)


def test_without_a_leader_a_second_worker_confirms(crew):
    assert not leaves("one")
    assert not leaves("one"), "it is the same one"
    assert leaves("two")


def test_the_only_worker_decides_alone(engine):
    enlist(engine.worker())
    assert leaves("one")


def test_a_leadership_that_lapsed_counts_no_more(crew):
    take_lead("leader", 60)
    execute("UPDATE queue_app_rows_lock SET until = clock_timestamp() - interval '1 s' WHERE name = 'scheduler'")
    assert not leaves("one")
    assert leaves("two")


def test_what_a_process_found_counts_for_five_seconds(crew):
    assert VOTE_SECONDS == 5
    vote("one")
    lasts = "SELECT extract(epoch FROM until - clock_timestamp()) FROM queue_app_rows_lock WHERE name = 'away one'"
    with connection.cursor() as cursor:
        cursor.execute(lasts)
        assert 4 < cursor.fetchone()[0] <= 5
    execute("UPDATE queue_app_rows_lock SET until = until - interval '5 s' WHERE name = 'away one'")
    assert not leaves("two")
    assert leaves("one")


def test_a_damaged_index_is_rebuilt_and_not_left(crew):
    assert not leaves("one", IndexDamaged("It holds junk."))
    assert vote("two").voters == {"two"}


def test_nobody_leaves_redis_inside_a_transaction(crew):
    vote("one")
    with transaction.atomic():
        assert not leave_redis("two", GONE)
    assert leaves("two")


def test_a_worker_that_looks_again_finds_what_another_found_meanwhile(crew, monkeypatch):
    monkeypatch.setattr(detour.time, "sleep", lambda _: vote("two"))
    assert detour.leave_redis_with_others("one", GONE)


def test_whoever_comes_second_follows(crew):
    go_to_rows()
    believe(rows=False)
    number = snapshot.generation()
    assert leave_redis("three", GONE)
    assert (redis_is_away.is_set(), snapshot.generation()) == (True, number)


# -- to the rows and back ------------------------------------------------------------------


def test_tasks_start_from_the_rows_and_caps_hold_over_both_borders(engine):
    hand = enlist(engine.worker())
    set_queue_limits("default", max_concurrent=2)
    first, *rest = put_many(6)
    (held,) = take(hand)
    go_to_rows()
    (second,) = take(hand, 5)
    assert [held.id, second.id] == [first, rest[0]]
    assert take(hand, 5) == []
    assert return_to_redis()
    assert get_index().way == conf.REDIS
    assert take(hand, 5) == [], "both still run"
    finish([done(held)])
    assert take_ids(hand, 5) == rest[1:2]
    assert_index_agrees()


def test_what_was_pushed_to_the_rows_during_the_return_is_in_redis_afterwards(engine, before):
    hand = enlist(engine.worker())
    put()
    go_to_rows()
    between: list[uuid.UUID] = []
    before(snapshot, "leave_rows", lambda: between.append(put("a", priority="low")))
    assert return_to_redis()
    assert_index_agrees()
    assert between[0] in take_ids(hand, 5)


def test_what_starts_during_the_return_has_its_slot_in_redis_afterwards(engine, before):
    hand = enlist(engine.worker())
    set_queue_limits("default", max_concurrent=1)
    put_many(2)
    go_to_rows()
    held = []
    before(snapshot, "leave_rows", lambda: held.extend(take(hand)))
    assert return_to_redis()
    assert len(held) == 1
    assert take(hand) == []
    reconcile_later()  # its entry in the lane was loaded before it started
    assert_index_agrees()
    assert take(hand) == []


def test_a_claim_from_rows_that_meets_the_return_waits_for_it_and_starts_nothing(engine):
    """Else its task would have no slot in Redis: what executes is read right after the rows are left."""
    hand = enlist(engine.worker())
    task = put()
    go_to_rows()
    with transaction.atomic():
        assert snapshot.leave_rows(snapshot.way().number)
        meets = held_up(lambda: rows_index().claim(hand.profile, hand.id, 1))
    with pytest.raises(IndexNotReady):
        meets.result()
    assert row(task).status == Status.QUEUED


def test_what_is_given_back_during_the_return_is_found(engine, before):
    """It keeps its place, so it was not queued lately, and the reconciler finds it."""
    hand = enlist(engine.worker())
    task = put()
    go_to_rows()
    held = take(hand)
    Task.objects.update(queued_at="2026-01-01T00:00:00Z")
    before(snapshot, "leave_rows", lambda: give_back(held))
    assert return_to_redis()
    reconcile_later()
    assert_index_agrees()
    assert take_ids(hand) == [task]


def test_a_crash_on_the_way_back_leaves_a_way_that_works(engine, before):
    hand = enlist(engine.worker())
    put_many(2)
    go_to_rows()

    def die():
        raise KeyboardInterrupt

    for owner, name in ((snapshot, "leave_rows"), (type(redis_index()), "restore_leases")):
        before(owner, name, die)
        with pytest.raises(KeyboardInterrupt):
            return_to_redis()
        client_of(redis_index()).delete(f"{redis_index().keys.prefix}:lock:rebuild")  # lapses
        follow()
        assert snapshot.way().is_rows == (name == "leave_rows")
        rebuild_if_needed()
        (task,) = take(hand)
        finish([done(task)])
    assert not Task.objects.exclude(status=Status.COMPLETED).exists()


def test_a_crash_on_the_way_to_the_rows_leaves_a_way_that_works(engine, before):
    hand = enlist(engine.worker())
    task = put()
    take_lead("leader", 60)
    vote("worker")

    def die():
        raise KeyboardInterrupt

    before(lanes.snapshot, "without_claims", die)
    with pytest.raises(KeyboardInterrupt):
        leave_redis("leader", GONE)
    assert snapshot.way().is_rows
    with pytest.raises(IndexNotReady):
        take(hand)
    execute("DELETE FROM queue_app_rows_lock WHERE name = 'rebuild'")  # lapses
    rebuild_if_needed()
    assert take_ids(hand) == [task]


def test_counters_begin_anew_at_both_borders(engine):
    enlist(engine.worker())
    get_index().count({"x": 3})
    assert get_index().stats().counts["x"] == 3
    go_to_rows()
    assert get_index().stats().counts.get("x", 0) == 0
    get_index().count({"x": 2})
    get_index().flush()
    return_to_redis()
    assert get_index().stats().counts.get("x", 0) == 0
    get_index().count({"x": 5})
    go_to_rows()
    assert get_index().stats().counts.get("x", 0) == 0, "what it had counted the last time is gone, too"


@pytest.mark.parametrize("to", ["rows", "redis"])
def test_a_rate_is_not_exceeded_over_a_border(engine, to):
    """At each border the bucket is empty: more starts at once than the burst allows would pass the limit."""
    hand = enlist(engine.worker())
    Queue.objects.update_or_create(pk="default", defaults={"rate_count": 3, "rate_seconds": 3600.0, "rate_burst": 3})
    rebuild()
    fill_buckets()
    put_many(9)
    if to == "redis":
        go_to_rows()
        fill_buckets()
    assert len(take(hand, 9)) == 3
    if to == "rows":
        go_to_rows()
    else:
        assert return_to_redis()
    assert take(hand, 9) == []


@pytest.mark.parametrize("to", ["rows", "redis"])
def test_a_minimum_time_between_starts_holds_over_a_border(engine, to):
    hand = enlist(engine.worker())
    Queue.objects.update_or_create(pk="default", defaults={"min_delay_seconds": 3600.0})
    rebuild()
    fill_buckets()
    put_many(3)
    if to == "redis":
        go_to_rows()
        fill_buckets()
    assert len(take(hand, 9)) == 1
    if to == "rows":
        go_to_rows()
    else:
        assert return_to_redis()
    assert take(hand, 9) == []


def fill_buckets() -> None:
    """Let the limits be in force for a day, in both ways."""
    index = redis_index()
    client = client_of(index)
    for key in client.scan_iter(match=f"{index.keys.prefix}:queue:*"):
        if client.type(key) == b"hash" and client.hexists(key, "since"):
            client.hset(key, "since", int(client.hget(key, "since")) - 86_400_000_000)
    execute("UPDATE queue_app_rows_gate SET since = since - 86400000000::float8")


# -- processes that have not heard ---------------------------------------------------------


def test_a_process_that_believes_in_redis_is_refused_and_learns(engine):
    hand = enlist(engine.worker())
    task = put()
    go_to_rows()
    believe(rows=False)
    with pytest.raises(IndexNotReady):
        take(hand)
    assert row(task).status == Status.QUEUED
    rebuild_if_needed()
    assert redis_is_away.is_set()
    assert take_ids(hand) == [task]


def test_a_process_that_believes_in_the_rows_is_refused_and_learns(engine):
    hand = enlist(engine.worker())
    task = put()
    go_to_rows()
    return_to_redis()
    believe(rows=True)
    with pytest.raises(IndexNotReady):
        take(hand)
    assert row(task).status == Status.QUEUED
    rebuild_if_needed()
    assert not redis_is_away.is_set()
    assert take_ids(hand) == [task]


def test_a_push_to_the_rows_that_claims_have_left_goes_to_redis(engine):
    hand = enlist(engine.worker())
    go_to_rows()
    return_to_redis()
    believe(rows=True)
    task = put()
    assert not redis_is_away.is_set(), "the answer to the push has told"
    assert take_ids(hand) == [task]


def test_a_push_to_redis_that_claims_have_left_is_found_in_a_moment(engine):
    hand = enlist(engine.worker())
    go_to_rows()
    believe(rows=False)
    task = put()
    believe(rows=True)
    assert rows_index().misplaced() == [task]
    name_recent()
    assert rows_index().misplaced() == []
    assert take_ids(hand) == [task]


def test_a_push_to_redis_is_found_by_claims_where_no_scheduler_names_it(engine):
    hand = enlist(engine.worker())
    go_to_rows()
    believe(rows=False)
    task = put()
    believe(rows=True)
    assert take_ids(hand) == [task]


def test_a_push_that_fails_goes_to_the_rows_if_claims_read_them(engine, monkeypatch):
    hand = enlist(engine.worker())
    go_to_rows()
    believe(rows=False)

    def gone(*_args, **_options):
        raise GONE

    monkeypatch.setattr(type(redis_index()), "notify", gone)
    monkeypatch.setattr(type(redis_index()), "notify_and_locate", gone)
    task = put()
    assert redis_is_away.is_set()
    assert not notify.breaker.is_open, "the rows answer"
    assert take_ids(hand) == [task]


@pytest.mark.parametrize("end", ["finish", "give back"])
def test_slots_that_end_at_a_process_that_believes_in_the_rows_are_free_in_redis(engine, end):
    """No reconciler has to find them: a key that is capped at 1 would stand still for so long."""
    hand = enlist(engine.worker())
    set_queue_limits("default", max_concurrent=1)
    put_many(2)
    go_to_rows()
    held = take(hand)
    return_to_redis()
    believe(rows=True)
    if end == "finish":
        finish([done(held[0])])
    else:
        give_back(held)
    follow()
    assert len(take(hand)) == 1


def test_a_slot_that_ended_while_its_lease_was_restored_is_free_in_redis(engine, after):
    """As after any rebuild, the reconciler finds it."""
    hand = enlist(engine.worker())
    set_queue_limits("default", max_concurrent=1)
    put_many(2)
    go_to_rows()
    (held,) = take(hand)
    after(snapshot, "executing", lambda: finish([done(held)]))
    assert return_to_redis()
    reconcile_later()
    assert len(take(hand)) == 1


def test_slots_that_end_at_a_process_that_believes_in_redis_are_free_in_the_rows(engine):
    hand = enlist(engine.worker())
    set_queue_limits("default", max_concurrent=1)
    put_many(2)
    (held,) = take(hand)
    go_to_rows()
    believe(rows=False)
    finish([done(held)])
    follow()
    assert len(take(hand)) == 1


@pytest.mark.parametrize("by_rows", [False, True])
def test_a_heartbeat_tells_which_way_is_in_force(engine, by_rows):
    hand = enlist(engine.worker())
    go_to_rows()
    if not by_rows:
        return_to_redis()
    believe(rows=not by_rows)
    heartbeat(hand.id, WorkerReport())
    assert redis_is_away.is_set() == by_rows


def test_a_rebuild_of_a_process_that_does_not_know_the_rows_lets_claims_return(engine):
    """A process of the former version raises the generation, and no other column: claims then use Redis."""
    hand = enlist(engine.worker())
    task = put()
    go_to_rows()
    execute("UPDATE queue_app_indexgeneration SET number = number + 1, ready_at = NULL")
    assert not snapshot.way().is_rows
    with pytest.raises(IndexNotReady):
        take(hand)
    rebuild_if_needed()
    assert not redis_is_away.is_set()
    assert take_ids(hand) == [task]
    go_to_rows()
    assert snapshot.way().is_rows, "and may leave it again"


# -- condemned -----------------------------------------------------------------------------


@pytest.mark.parametrize("by_rows", [False, True])
def test_the_index_in_force_is_condemned_and_rebuilt_in_its_way(engine, by_rows):
    hand = enlist(engine.worker())
    task = put()
    if by_rows:
        go_to_rows()
    execute("UPDATE queue_app_indexgeneration SET condemned_at = NULL")  # nothing was condemned lately
    assert notify.condemn("It holds junk.")
    assert snapshot.way().is_rows == by_rows
    with pytest.raises(IndexNotReady):
        take(hand)
    rebuild_if_needed()
    assert snapshot.way().is_rows == by_rows
    assert take_ids(hand) == [task]


@pytest.mark.parametrize("by_rows", [False, True])
def test_an_index_that_is_not_in_force_is_not_condemned(engine, by_rows):
    enlist(engine.worker())
    go_to_rows()
    if not by_rows:
        return_to_redis()
    number = snapshot.generation()
    believe(rows=not by_rows)
    assert not notify.condemn("It holds junk.")
    assert snapshot.generation() == number


# -- all together, at random ---------------------------------------------------------------

CAPS = {"everything": 6, "queue": 4, "type": 3, "key": 1, "family": 1, "user": 2}


class Model:
    """Claims of some workers, of which some have not heard of the last change of the way; what runs, by gate."""

    def __init__(self, engine, seed: str) -> None:
        self.draw = random.Random(seed)
        self.hands = [enlist(engine.worker("a b")) for _ in range(3)]
        self.running: list = []
        self.believes = dict.fromkeys(range(len(self.hands)), False)
        self.starts: Counter[bool] = Counter()
        self.changes = 0
        take_lead("leader", 600)
        settings = RuntimeSettings.objects.get()
        settings.max_concurrent = CAPS["everything"]
        settings.save()
        caps = {"max_concurrent": CAPS["queue"], "max_concurrent_per_user": CAPS["user"]}
        Queue.objects.update_or_create(pk="default", defaults=caps)
        for scope, name, kind in (("type", "a", "type"), ("key", "k", "key"), ("key", "f", "family")):
            copy_limit(Limit.objects.create(scope=scope, name=name, max_concurrent=CAPS[kind]))
        rebuild()

    def step(self) -> None:
        """Do something that is drawn, as one of the workers."""
        which = self.draw.randrange(len(self.hands))
        believe(rows=self.believes[which])
        action = self.draw.choices(
            [self._put, self._take, self._end, self._give_back, self._change, self._recent], [4, 6, 5, 1, 1, 1]
        )[0]
        action(self.hands[which])
        self.believes[which] = redis_is_away.is_set()

    def _put(self, _hand) -> None:
        put(
            self.draw.choice("ab"),
            queue=self.draw.choice(["default", "default", "other"]),
            user=self.draw.choice(["ina", "ben"]),
            concurrency_key=self.draw.choice(["", "", "k", "f:1", "f:2"]),
            priority=self.draw.choice(["high", "normal", "low"]),
        )

    def _take(self, hand) -> None:
        try:
            found = take(hand, self.draw.randint(1, 4))
        except IndexNotReady:
            rebuild_if_needed()
            found = take(hand, self.draw.randint(1, 4))
        self.starts[redis_is_away.is_set()] += len(found)
        self.running += found
        self.judge()

    def _end(self, _hand) -> None:
        if self.running:
            finish([done(self.running.pop(self.draw.randrange(len(self.running))))])

    def _give_back(self, _hand) -> None:
        if self.running:
            give_back([self.running.pop(self.draw.randrange(len(self.running)))])

    def _change(self, _hand) -> None:
        self.changes += 1
        if follow().is_rows:
            return_to_redis()
        else:
            vote("worker")
            leave_redis("leader", GONE)

    def _recent(self, _hand) -> None:
        if follow().is_rows:
            name_recent()

    def judge(self) -> None:
        """No cap is exceeded by what the workers hold, which is what the rows say."""
        rows = list(Task.objects.filter(status="executing"))
        assert {task.id for task in rows} == {task.id for task in self.running}
        counts: Counter[tuple[str, str]] = Counter()
        for task in rows:
            counts["everything", ""] += 1
            counts["type", task.task_type] += task.task_type == "a"
            counts["queue", task.queue] += task.queue == "default"
            counts["user", task.user] += task.queue == "default"
            if task.concurrency_key:
                counts["key" if task.concurrency_key == "k" else "family", task.concurrency_key] += 1
        for (kind, name), count in counts.items():
            assert count <= CAPS[kind], (kind, name, count)

    def drain(self) -> None:
        """Everything ends, and nothing waits for ever: without a reconciler, in whichever way is in force."""
        believe(rows=False)
        follow()
        for _ in range(60):
            if self.running:
                finish([done(task) for task in self.running])
                self.running = []
            self._recent(None)
            for hand in self.hands:
                self._take(hand)
            if not self.running:
                break
        left = Task.objects.exclude(status=Status.COMPLETED).values_list("status", "queue", "concurrency_key")
        assert list(left) == []


@pytest.mark.parametrize("number", range(6))
def test_caps_hold_and_all_tasks_end_while_the_way_changes_at_random(engine, number):
    seed = f"{number}-{random.randrange(10**6)}"
    print(f"seed {seed}")
    model = Model(engine, seed)
    for _ in range(120):
        model.step()
    model.drain()
    assert model.changes
    assert model.starts[False]
    assert model.starts[True]
    assert rows_index() is not redis_index()
