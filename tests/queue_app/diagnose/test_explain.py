"""explain returns every reason why a task is not running, and a claim refuses exactly the blocked tasks."""

import random
import uuid
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.utils import timezone

from queue_app.core.priorities import Band
from queue_app.diagnose import stalls
from queue_app.diagnose.explain import explain
from queue_app.diagnose.stalls import Stall
from queue_app.exceptions import TaskNotFound
from queue_app.index import Profile, get_index
from queue_app.models import Limit, Queue, RuntimeSettings, Task, Worker
from queue_app.services.control.pause import pause, pause_everything, pause_key, pause_type, resume, resume_everything
from queue_app.services.lifecycle.actions import cancel
from queue_app.services.lifecycle.claim import claim
from queue_app.services.lifecycle.finish import finish
from queue_app.services.repair.rebuild import rebuild_if_needed
from queue_app.services.repair.reconcile import Reconciler
from queue_app.services.upkeep.jobs import resign, take_lead
from queue_app.services.worker.registration import WorkerIdentity, register
from tests.support.engine import REFUSALS, done, failed, flush, index_away, index_refusing, put, row
from tests.support.factories import WorkerFactory

SOON = timedelta(hours=1)


@dataclass(frozen=True)
class LiveWorker:
    """A worker with a row and a place in the index."""

    id: uuid.UUID
    profile: Profile
    slots: int

    def take(self, want: int = 1) -> list:
        return claim(self.profile, self.id, want)


def start_worker(kinds: str = "a", *, queues=(), offers=(), slots: int = 100, name: str = "w") -> LiveWorker:
    profile = Profile.of(queues, kinds.split(), offers, slots)
    identity = WorkerIdentity(id=uuid.uuid4(), name=name, host="h", pid=1, process_identity="x", version="1")
    register(identity, profile, concurrency=slots, heartbeat_seconds=1000)
    return LiveWorker(identity.id, profile, slots)


def limit_queue(name: str = "default", **limits) -> None:
    queue, _ = Queue.objects.get_or_create(name=name)
    for field, value in limits.items():
        setattr(queue, field, value)
    queue.full_clean()
    queue.save()


def limit(scope: str, name: str, **limits) -> None:
    found, _ = Limit.objects.get_or_create(scope=scope, name=name)
    for field, value in limits.items():
        setattr(found, field, value)
    found.full_clean()
    found.save()


def blocked(task_id: uuid.UUID) -> str:
    """Return the codes of the reasons that block a task, separated by spaces."""
    return " ".join(reason.code for reason in explain(task_id).blocking)


def only(task_id: uuid.UUID, code: str):
    """Return the one reason with this code."""
    (reason,) = [reason for reason in explain(task_id).reasons if reason.code == code]
    return reason


# -- one reason at a time ----------------------------------------------------------------------------


def test_a_task_that_is_next_and_an_idle_worker(engine):
    start_worker()
    first, second = put(), put()
    assert explain(first).codes == ("position",)
    assert (blocked(first), blocked(second)) == ("", "")
    assert only(second, "position").details == {"ahead": 1, "priority": "normal"}
    assert list(explain(second).lines()) == [f"Task {second} is queued.", "  Position 2 in its queue."]


@pytest.mark.parametrize(("fair_by", "own"), [("user", [0, 1, 0, 2]), ("key", [0, 0, 0, 0])])
def test_the_place_in_a_fair_queue(engine, fair_by, own):
    """The place by time is approximate; the number of the same user's tasks before it is exact, across lanes."""
    start_worker("a b")
    limit_queue(order="fair", fair_by=fair_by)
    options = [("a", "ada", "k:1"), ("b", "ada", "k:2"), ("a", "bob", "k:3"), ("a", "ada", "k:4")]
    ids = [put(kind, user=user, concurrency_key=key) for kind, user, key in options]
    places = [only(task_id, "position") for task_id in ids]
    assert [place.details["ahead"] for place in places] == [0, 1, 2, 3]
    assert [place.details["ahead_of_own"] for place in places] == own
    assert places[2].text == (
        f"About position 3 in its queue, by time. The {fair_by}s take turns: it is the next task of its {fair_by}."
    )


def test_tasks_that_do_not_wait_in_a_queue(engine):
    worker = start_worker()
    with pytest.raises(TaskNotFound):
        explain(uuid.uuid4())
    later = put(run_after=datetime.now(UTC) + SOON)
    assert explain(later).codes == ("waits_until", "no_scheduler")
    assert explain(later).next_start is None
    take_lead("me", 60)
    assert explain(later).codes == ("waits_until",)
    assert explain(later).next_start == row(later).run_after
    task_id = put(max_retries=2)
    (claimed,) = worker.take()
    reason = only(task_id, "executing")
    assert "on w since" in reason.text
    assert reason.details["worker_id"] == worker.id
    finish([failed(claimed)])
    reason = only(task_id, "retry")
    assert reason.details == {"retry": 1, "of": 2}
    assert reason.until == row(task_id).run_after
    cancel(task_id)
    assert explain(task_id).codes == ("finished",)
    assert only(task_id, "finished").details["status"] == "cancelled"


def test_a_pause_names_person_reason_and_end(engine):
    start_worker()
    task_id = put(concurrency_key="customer:7")
    until = datetime.now(UTC) + SOON
    pause("default", by="ada", reason="The bank is down.", resume_at=until)
    pause_type("a", by="bob")
    pause_key("customer", by="eve")
    pause_everything(by="zoe", reason="Fire")
    explanation = explain(task_id)
    assert blocked(task_id) == "paused paused paused paused"
    assert [reason.details["scope"] for reason in explanation.blocking] == ["everything", "queue", "type", "key"]
    assert [reason.details["by"] for reason in explanation.blocking] == ["zoe", "ada", "bob", "eve"]
    queue = explanation.blocking[1]
    assert "The queue default is paused by ada since" in queue.text
    assert "The bank is down. It resumes by itself" in queue.text
    assert (queue.until, explanation.next_start) == (until, None)
    owner = explain(task_id, Task.objects.all())
    assert not any("reason" in reason.details or "The bank" in reason.text for reason in owner.reasons)
    resume_everything()
    resume("default")
    assert blocked(task_id) == "paused paused"
    asked_by_its_owner = explain(task_id, Task.objects.all())
    assert not any("by" in reason.details or "bob" in reason.text for reason in asked_by_its_owner.reasons)


def test_a_reached_limit_names_the_holders(engine):
    worker = start_worker(name="worker-7")
    limit_queue(max_concurrent=2)
    ids = [put() for _ in range(3)]
    worker.take(2)
    reason = only(ids[2], "limit_reached")
    assert reason.details["limit"] == reason.details["current"] == 2
    assert [holder["task_id"] for holder in reason.details["held_by"]] == [str(ids[0]), str(ids[1])]
    assert f"{ids[0]} on worker-7" in reason.text
    nobody_else = explain(ids[2], Task.objects.filter(pk=ids[2]))
    assert nobody_else.blocking[0].details["held_by"] == []
    assert "worker-7" not in nobody_else.blocking[0].text


def test_what_needs_a_person_comes_before_a_limit(engine):
    worker = start_worker()
    limit_queue(max_concurrent=1)
    put()
    task_id = put(capabilities=("gpu",))
    worker.take(1)
    assert blocked(task_id) == "no_worker_with_capabilities limit_reached"


@pytest.mark.parametrize(
    ("limits", "scope"),
    [
        (lambda: limit("type", "a", max_concurrent=1), "type"),
        (lambda: limit("key", "customer", max_concurrent=1), "key"),
        (lambda: limit("key", "customer:7", max_concurrent=1), "key"),
        (lambda: limit_queue(max_concurrent_per_user=1), "user"),
        (lambda: _overall(1), "everything"),
    ],
)
def test_the_limit_of_each_gate(engine, limits, scope):
    worker = start_worker()
    limits()
    first, second = (put(user="ada", concurrency_key="customer:7") for _ in range(2))
    worker.take(5)
    reason = only(second, "limit_reached")
    assert reason.details["scope"] == scope
    assert [holder["task_id"] for holder in reason.details["held_by"]] == [str(first)]
    assert blocked(second) == "limit_reached"


def _overall(cap: int) -> None:
    settings = RuntimeSettings.objects.get()
    settings.max_concurrent = cap
    settings.save()


def test_a_used_up_rate_has_the_time_of_the_next_start(engine):
    start_worker()
    limit_queue(rate_count=1, rate_seconds=60)
    task_id = put()
    reason = only(task_id, "rate_limited")
    assert datetime.now(UTC) < reason.until <= datetime.now(UTC) + timedelta(seconds=61)
    assert explain(task_id).next_start == reason.until


def test_a_throttled_queue(engine):
    start_worker()
    until = datetime.now(UTC) + SOON
    limit_queue(throttled_until=until)
    task_id = put()
    reason = only(task_id, "throttled")
    assert abs(reason.until - until) < timedelta(seconds=1)
    assert blocked(task_id) == "throttled"


def test_redis_goes_away_while_it_answers(engine):
    task_id = put()
    pause("default", by="ada", reason="")
    with index_away("explain"):
        assert set(explain(task_id).codes) == {"index_unreachable", "paused", "no_worker"}


def test_a_capability_that_no_worker_offers_any_more(engine):
    gone = timezone.now() - timedelta(hours=3)
    WorkerFactory(capabilities=["gpu"], status="stopped", stopped_at=gone)
    start_worker("a", name="plain")
    task_id = put("a", capabilities=("gpu",))
    since = f"{timezone.localtime(gone):%Y-%m-%d %H:%M:%S %Z}"
    said = f"No live worker of this queue offers gpu. Closest: plain lacks gpu. No worker offers that since {since}."
    assert only(task_id, "no_worker_with_capabilities").text == said


def test_workers_that_cannot_run_it(engine):
    task_id = put("a", queue="mail", capabilities=("gpu",), weight=4)
    assert blocked(task_id) == "no_worker"
    start_worker("a", queues=("other",), slots=8)
    assert blocked(task_id) == "no_worker_for_queue"
    start_worker("a", queues=("mail",), slots=8)
    assert blocked(task_id) == "no_worker_with_capabilities"
    start_worker("b", offers=("gpu",), slots=8)
    assert blocked(task_id) == "no_worker_knows_type"
    assert only(task_id, "no_worker_knows_type").text.endswith("renamed or removed, or newer code has it.")
    start_worker("a", offers=("gpu",), slots=2, name="small")
    reason = only(task_id, "too_heavy")
    text = "It takes 4 slots, and no worker that could run it has that many. Closest: small has only 2 slots"
    assert reason.text.startswith(text)
    worker = start_worker("a", offers=("gpu",), slots=5)
    assert blocked(task_id) == ""
    put("a", queue="mail", capabilities=("gpu",), priority=Band.CRITICAL)
    worker.take(1)
    assert blocked(task_id) == ""
    for _ in range(2):
        put("a", queue="mail", capabilities=("gpu",), priority=Band.CRITICAL)
    worker.take(2)
    reason = only(task_id, "no_free_slot")
    assert reason.details["weight"] == 4
    Worker.objects.update(status="draining")
    assert blocked(task_id) == "no_worker"


def test_a_task_that_the_index_lacks_is_named_and_not_written(engine):
    """Readers may call explain, so it writes nothing; the reconciler adds the task."""
    worker = start_worker()
    with index_away("push"):
        task_id = put()
    take_lead("me", 60)
    assert explain(task_id).codes == ("index_missing",)
    resign("me")
    for _ in range(2):
        explanation = explain(task_id)
        assert explanation.codes == ("index_missing", "no_scheduler")
        assert explanation.blocking
        assert worker.take() == []
    Reconciler().run_once()
    assert explain(task_id).codes == ("position",)
    assert [task.id for task in worker.take()] == [task_id]


def test_an_index_that_is_away_or_being_rebuilt(engine):
    start_worker()
    task_id = put()
    pause("default")
    with index_away():
        assert blocked(task_id) == "index_unreachable paused"
    flush(engine)
    assert blocked(task_id).split()[0] == "index_rebuilding"


@pytest.mark.parametrize("index_way", ["rows"])
def test_an_index_of_rows_that_is_away_names_postgresql(engine):
    start_worker()
    task_id = put()
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE queue_app_rows_state RENAME TO elsewhere")
        try:
            text = "\n".join(explain(task_id).lines())
        finally:
            cursor.execute("ALTER TABLE elsewhere RENAME TO queue_app_rows_state")
    assert "The tables of the index cannot be read in PostgreSQL, so no task starts." in text
    assert "Redis" not in text


def test_work_that_stands_still(engine):
    """Staff read the evidence; others learn that it stands still, and no names."""
    start_worker()
    task_id = put()
    stall = Stall("not_started", "default", "Worker w could run it.", since="2026-01-01", steps="12:00: rebuilt.")
    stalls.write([stall])
    assert only(task_id, "stalled").text == "Worker w could run it. 12:00: rebuilt."
    mine = explain(task_id, Task.objects.all())
    assert next(r.text for r in mine.reasons if r.code == "stalled").startswith("Work stands still in queue default")
    assert blocked(task_id) == ""
    stalls.write([replace(stall, subject="mail")])
    assert explain(task_id).codes == ("position",)


def test_a_task_that_is_being_claimed(engine):
    worker = start_worker()
    task_id = put()
    get_index().claim(worker.profile, worker.id, 1)
    assert blocked(task_id) == "being_claimed"


# -- the claim refuses exactly what is blocked ------------------------------------------------------


#: Fair queues with the column that takes turns, and the slots of the heaviest task that fits.
FAIR = {"q2": "user", "q3": "concurrency_key"}
HEAVIEST = 4
#: Try more seeds when the script changes; usually these are enough.
SEEDS = range(4)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_idle_worker_is_given_a_task_exactly_when_nothing_blocks_it(engine, seed):
    """With random limits, pauses and tasks, each claim takes the first task without a blocking reason, or none if all
    are blocked. So the claim refuses every blocked task and no free one."""
    chance = random.Random(seed)
    worker = start_worker("a b", queues=("q1", "q2", "q3"), offers=("gpu",))
    _random_limits(chance)
    waiting = [_random_task(chance) for _ in range(12)]
    held: list = []
    for _ in range(20):
        if rebuild_if_needed():
            get_index().register(worker.profile, worker.id)
        free = [task_id for task_id in waiting if not explain(task_id).blocking]
        found = worker.take(HEAVIEST)
        assert bool(found) == bool(free), [list(explain(task_id).lines()) for task_id in waiting]
        assert {task.id for task in found} <= set(free)
        if found:
            assert [task_id for task_id in free if _comes_before(task_id, found[0].id)] == [], "the first of those"
        for task in found:
            waiting.remove(task.id)
            held.append(task)
        if held and (not found or chance.random() < 0.4):
            finish([done(held.pop(chance.randrange(len(held))))])
        if chance.random() < 0.4:
            _random_edit(chance)


def _comes_before(one_id: uuid.UUID, other_id: uuid.UUID) -> bool:
    """Return whether one of two free tasks must come first: by band, by time, or among its user's tasks."""
    one, other = row(one_id), row(other_id)
    if one.priority != other.priority or one.id == other.id:
        return one.priority < other.priority
    if {one.queue, other.queue} & set(FAIR):
        who = FAIR.get(one.queue)
        if one.queue != other.queue or getattr(one, who) != getattr(other, who):
            return False  # depends on the turns
    return (one.queued_at, one.id) < (other.queued_at, other.id)


def _random_limits(chance: random.Random) -> None:
    for name in ("q1", "q2", "q3"):
        fair = {"order": "fair", "fair_by": {"user": "user"}.get(FAIR[name], "key")} if name in FAIR else {}
        limit_queue(
            name,
            **fair,
            max_concurrent=chance.choice([None, 1, 3]),
            max_concurrent_per_user=chance.choice([None, None, 1]),
            **chance.choice([{}, {}, {"rate_count": 1, "rate_seconds": 3600.0}]),
        )
    limit("type", "a", max_concurrent=chance.choice([None, 2]))
    limit("key", "k", max_concurrent=chance.choice([None, 1]), paused=False)
    _overall(chance.choice([4, 9, 30]))


def _random_task(chance: random.Random) -> uuid.UUID:
    return put(
        chance.choice("abc"),
        queue=chance.choice(["q1", "q2", "q3", "q4"]),
        user=chance.choice(["", "ada", "bob"]),
        concurrency_key=chance.choice(["", "k:1", "k:2"]),
        capabilities=chance.choice([(), (), ("gpu",), ("big",)]),
        weight=chance.choice([1, 1, 2, HEAVIEST, 101]),
        priority=chance.choice([Band.HIGH, Band.NORMAL, Band.LOW]),
        run_after=chance.choice([None, None, None, datetime.now(UTC) + SOON]),
    )


def _random_edit(chance: random.Random) -> None:
    name = chance.choice(["q1", "q2", "q3"])
    chance.choice(
        [
            lambda: pause(name, by="ada"),
            lambda: resume(name),
            lambda: limit_queue(name, max_concurrent=chance.choice([1, 2, 5]), max_concurrent_per_user=None),
            lambda: limit("type", "a", max_concurrent=chance.choice([None, 1, 4])),
            lambda: pause_key(chance.choice(["k", "k:1"])),
            lambda: Limit.objects.filter(scope="key").first().delete() if Limit.objects.filter(scope="key") else None,
        ]
    )()


@pytest.mark.parametrize("cause", REFUSALS)
def test_a_redis_that_refuses_writes_is_named(engine, cause):
    take_lead("me", 15)
    task_id = put()
    with index_refusing(cause):
        explanation = explain(task_id)
    [refused] = [reason for reason in explanation.reasons if reason.code == "index_unreachable"]
    assert refused.text.startswith("Redis refuses writes")
    assert cause in refused.details["error"]
    assert "no_scheduler" not in explanation.codes
