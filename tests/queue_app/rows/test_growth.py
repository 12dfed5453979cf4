"""A claim looks at few lanes and turns, however many wait; counted, for times depend on the machine."""

import uuid

import pytest
from django.db import connection, transaction

from queue_app import conf
from queue_app.core.records import NewTask
from queue_app.index import Profile, get_index
from queue_app.models import Queue
from queue_app.services.enqueue.store import enqueue_many
from queue_app.services.repair.rebuild import rebuild
from queue_app.sql.database import fetch_all

WAITING = 1500
#: What several tasks of one claim may look at.
FEW = 200
EVERY_QUEUE = Profile.of((), ("a", "b"), ())
_READ = """
SELECT sum(idx_tup_fetch) + sum(seq_tup_read) FROM pg_stat_xact_user_tables
WHERE relname IN ('queue_app_rows_lane', 'queue_app_rows_turn', 'queue_app_task')
"""


@pytest.fixture
def index_way() -> str:
    """Only this way."""
    return conf.ROWS


def read_by_second_claim(profile):
    """Return how many rows a claim of three tasks reads; the first one after a rebuild gives new lanes their turns."""
    connection.close()  # a session keeps its plans until PostgreSQL has analyzed tables that have grown
    worker = uuid.uuid4()
    get_index().register(profile, worker)
    assert len(get_index().claim(profile, worker, 3).tasks) == 3
    with transaction.atomic():
        before = fetch_all(_READ)[0][0] or 0
        assert len(get_index().claim(profile, worker, 3).tasks) == 3
        return fetch_all(_READ)[0][0] - before


@pytest.mark.parametrize(
    ("order", "profile"),
    [
        ({}, EVERY_QUEUE),
        ({}, Profile.of(("one", "two"), ("a", "b"), ())),
        ({"order": "arrival"}, EVERY_QUEUE),
        ({"order": "fair"}, EVERY_QUEUE),
        ({"order": "fair", "fair_by": "key"}, Profile.of(("one",), ("a",), ())),
    ],
    ids=["every queue", "two queues", "by arrival", "users in turn", "keys in turn"],
)
def test_a_claim_reads_few_rows_among_many_lanes(engine, order, profile):
    for name in ("one", "two"):
        Queue.objects.create(name=name, **order)
    enqueue_many(
        NewTask(task_type="ab"[n % 2], queue=("one", "two")[n // 2 % 2], user=f"user{n}", concurrency_key=f"key{n}")
        for n in range(WAITING)
    )
    rebuild()
    assert read_by_second_claim(profile) < FEW


def test_a_claim_passes_over_no_lanes_of_other_orders(engine):
    Queue.objects.create(name="turns", order="fair")
    Queue.objects.create(name="arrival", order="arrival")
    enqueue_many(NewTask(task_type="a", queue=("turns", "arrival")[n % 2], user=f"user{n}") for n in range(WAITING))
    enqueue_many(NewTask(task_type="a", queue="plain") for _ in range(10))
    rebuild()
    assert read_by_second_claim(Profile.of((), ("a", "b"), ())) < FEW
    assert read_by_second_claim(Profile.of(("plain",), ("a", "b"), ())) < FEW
