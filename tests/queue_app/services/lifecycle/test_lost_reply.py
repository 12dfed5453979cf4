"""The reply of the claim script is lost: the leases come back, and the tasks with them."""

import pytest
import redis
from redis.connection import AbstractConnection

from queue_app.exceptions import IndexUnavailable
from queue_app.index import calls, get_index
from queue_app.models import Task
from queue_app.services.enqueue.store import enqueue
from queue_app.services.lifecycle.claim import recover
from queue_app.services.repair.reconcile import Reconciler
from tests.support.engine import assert_index_agrees, new, put_many, take
from tests.support.index_state import client_of

ERRORS = [redis.ConnectionError, redis.TimeoutError]


@pytest.fixture
def lose_reply(monkeypatch):
    """Return a function that lets the first reply of a claim get lost, after which the connection is broken."""

    def lose(error: type[Exception]) -> list[object]:
        plain, lost = AbstractConnection.read_response, []

        def losing(self, *args, **options):
            reply = plain(self, *args, **options)
            if not lost and isinstance(reply, list) and reply and reply[0] == b"ready":
                lost.append(reply)
                self.disconnect()
                raise error("the reply was lost")
            return reply

        monkeypatch.setattr(AbstractConnection, "read_response", losing)
        return lost

    return lose


def leases() -> list[object]:
    return list(get_index().leases("default"))


@pytest.mark.parametrize("unconfirmed", [False, True], ids=["alone", "behind a notification"])
@pytest.mark.parametrize("error", ERRORS)
def test_a_claim_is_not_sent_again_and_the_worker_recovers_at_once(engine, hand, lose_reply, error, unconfirmed):
    put_many(10)
    if unconfirmed:
        enqueue(new())
        assert get_index()._notifier.has_unconfirmed_entries
    lost = lose_reply(error)
    with pytest.raises(IndexUnavailable):
        take(hand, 3)
    assert len(lost) == 1
    assert len(leases()) == 3, "of one execution"
    recover(hand.id, [])
    assert leases() == []
    assert len(assert_index_agrees().waiting) == Task.objects.count()
    assert len(take(hand, 3)) == 3


def test_two_steps_of_the_reconciler_end_the_leases_of_a_claim_that_the_client_repeated(
    engine, hand, lose_reply, override
):
    override(calls, ONCE=frozenset())
    put_many(10)
    lost = lose_reply(redis.ConnectionError)
    assert len(take(hand, 3)) == 3
    assert (len(lost), len(leases())) == (1, 6), "the worker's stamp is now that of the second execution"
    reconciler = Reconciler()
    reconciler.run_once()
    assert reconciler.run_once()["leases_ended"] == 3
    assert Task.objects.filter(status="executing").count() == 3
    assert_index_agrees()


def test_a_server_that_forgot_the_scripts_gets_them_again(engine, hand):
    put_many(3)
    client_of(get_index()).script_flush()
    assert len(take(hand, 2)) == 2
    client_of(get_index()).script_flush()
    enqueue(new())
    assert len(take(hand, 5)) == 2
    assert_index_agrees()
