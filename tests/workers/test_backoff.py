"""A worker whose servers fail, and how it recovers."""

import logging
from contextlib import AbstractContextManager
from types import SimpleNamespace
from uuid import uuid4

import pytest
import redis
from django.db import DataError

from queue_app.core.states import Status
from queue_app.exceptions import UnknownProfile
from queue_app.index import calls, get_index
from queue_app.models import Task, TaskAttempt, TaskResult
from queue_app.services.lifecycle import claim as claim_service, finish
from queue_app.workers.loop import RETRY_SECONDS, ErrorBackoff
from tests.support.engine import assert_index_agrees, flush, index_away, put, put_many, status
from tests.support.swaps import swapped
from tests.workers.stage import ECHO, QUICK, SLOW, away, statuses, teach


def rows_away() -> AbstractContextManager[None]:
    """Let PostgreSQL not answer to claims for a block; the index goes on."""
    return swapped((claim_service.claim_rows, "claim", away))


def lose_the_reply() -> None:
    raise redis.ConnectionError("the reply was lost")


def test_outcomes_are_kept_until_they_are_written(hire, warnings_logged, caplog):
    [task_id] = put_many(1, ECHO, args=[5])
    worker = hire()
    worker.run_once()
    worker.pool.finish()
    with worker.without("finish", "turn_over"):
        for _ in range(3):
            worker.run_once()
            worker.later(1)
    assert status(task_id) == Status.EXECUTING
    assert warnings_logged() == ["PostgreSQL failed: gone; trying again"]
    worker.run_once()
    assert status(task_id) == Status.COMPLETED
    assert caplog.messages[-1] == f"worker {worker.options.name} works again"
    assert TaskResult.objects.get(task_id=task_id).value == 5
    assert len(worker.in_flight) == 0


def test_an_error_that_a_log_handler_lost_is_logged_when_it_comes_again(caplog):
    class Broken(logging.Handler):
        def emit(self, record):
            raise OSError("no space left on device")

    def register(*_):
        raise ValueError("no such profile")

    transport = SimpleNamespace(register_again=register)
    backoff, broken, logger = ErrorBackoff("w"), Broken(), logging.getLogger("taskqueue")
    logger.addHandler(broken)
    try:
        with pytest.raises(OSError, match="no space left"):
            backoff.recover(UnknownProfile("gone"), transport, None, uuid4())
    finally:
        logger.removeHandler(broken)
    caplog.clear()
    backoff.recover(UnknownProfile("gone"), transport, None, uuid4())
    assert caplog.messages == ["worker w failed; trying again"]


def test_it_pauses_before_it_tries_again(hire):
    worker = hire()
    with worker.without("claim"):
        worker.run_once()
    assert 0 < worker.pause <= RETRY_SECONDS
    task_id = put(QUICK)
    worker.run_once()
    assert status(task_id) == Status.QUEUED
    worker.later(1)
    worker.run_once()
    assert status(task_id) == Status.EXECUTING


def test_one_outcome_that_the_rows_refuse_does_not_stop_the_others(hire):
    ids = put_many(5, ECHO, args=["x"], max_retries=0)
    worker = hire(concurrency=5)
    worker.run_once()
    worker.pool.finish()
    plain = worker.transport.finish

    def refusing(batch):
        if any(o.task.id == ids[2] and o.failure is None for o in batch):
            raise DataError("unsupported Unicode escape sequence")
        return plain(batch)

    with worker.instead(finish=refusing):
        worker.run_once()
    assert statuses(*ids) == ["completed", "completed", "dead_letter", "completed", "completed"]
    assert "unsupported Unicode" in TaskAttempt.objects.get(task_id=ids[2]).message
    assert len(worker.in_flight) == 0


def test_an_error_after_the_commit_does_no_harm(hire, warnings_logged):
    [task_id] = put_many(1, QUICK)

    def broken(_):
        raise RuntimeError("after the commit")

    worker = hire()
    worker.run_once()
    worker.pool.finish()
    with swapped((finish, "after_end", broken)):
        worker.run_once()
        worker.later(1)
    worker.run_once()
    assert status(task_id) == Status.COMPLETED
    assert len(worker.in_flight) == 0
    other = put(QUICK)
    worker.until_empty()
    assert status(other) == Status.COMPLETED


def test_a_failed_give_back_is_repeated(hire):
    put_many(2, QUICK)
    slow = put_many(3, SLOW)
    worker = hire(concurrency=1)
    teach(worker, QUICK)
    with worker.without("give_back"):
        worker.run_once()
    assert statuses(*slow) == ["executing"] * 3
    worker.later(1)
    worker.run_once()
    assert statuses(*slow) == ["queued"] * 3
    assert len(worker.in_flight) == 2
    assert worker.until_empty() == 5


def test_a_give_back_whose_notification_was_lost(hire):
    """The rows are changed; the reconciler repairs the index."""
    put_many(2, QUICK)
    slow = put_many(3, SLOW)
    worker = hire(concurrency=1)
    teach(worker, QUICK)
    with index_away("release"):
        worker.run_once()
    assert statuses(*slow) == ["queued"] * 3
    assert len(worker.in_flight) == 2


def test_a_claim_whose_answer_was_lost_is_given_back(hire, after, history):
    ids = put_many(4, QUICK)
    worker = hire(concurrency=2)
    after(claim_service.claim_rows, "claim", away)
    worker.run_once()
    assert statuses(*ids[:2]) == ["executing"] * 2
    worker.later(1)
    worker.run_once()
    assert len(worker.in_flight) == 2
    assert worker.until_empty() == 4
    assert history.states(ids[0]) == "queued executing queued executing completed"
    assert_index_agrees()


def test_postgresql_away_costs_the_index_one_proposal(hire):
    """A proposal holds its leases: a worker takes none with every try, and ends them long before the reconciler."""
    put_many(20, QUICK)
    worker = hire(concurrency=2)
    with rows_away(), worker.without("give_back_unacknowledged"):
        for _ in range(5):
            worker.run_once()
            worker.later(1)
    assert get_index().depth("default").active == 2
    assert worker.until_empty() == 20
    assert_index_agrees()


def test_a_task_whose_end_was_forgotten_runs_again(hire):
    """PostgreSQL failed over to a standby that lacks the last commits: the rows say that the worker has the task."""
    [task_id] = put_many(1, QUICK)
    worker = hire(concurrency=1)
    assert claim_service.claim(worker.profile, worker.id, 1)
    worker.run_once()
    assert status(task_id) == Status.EXECUTING
    worker.beat()
    assert worker.until_empty() == 1
    assert status(task_id) == Status.COMPLETED
    assert_index_agrees()


def test_what_a_worker_holds_stays_its_own_at_a_heartbeat(hire):
    put_many(3, QUICK)
    worker = hire(concurrency=2)
    worker.run_once()
    worker.beat()
    worker.run_once()
    assert worker.until_empty() == 3
    assert not Task.objects.filter(attempt__gt=1).exists()


def test_a_lost_reply_of_the_claim_script_costs_one_pause(hire, after):
    """The reconciler does not run here."""
    put_many(6, QUICK)
    worker = hire(concurrency=2)
    after(calls, "in_one_write", lose_the_reply)
    worker.run_once()
    assert get_index().depth("default").active == 2
    assert worker.pause <= RETRY_SECONDS
    worker.later(1)
    assert worker.until_empty() == 6
    assert_index_agrees()


def test_the_index_away(hire, warnings_logged):
    task_id = put(QUICK)
    worker = hire()
    with index_away():
        worker.run_once()
    assert "gone; trying again" in warnings_logged()[0]
    assert status(task_id) == Status.QUEUED
    worker.later(1)
    worker.run_once()
    assert status(task_id) == Status.EXECUTING
    worker.pool.finish()
    with index_away():
        worker.run_once()
    assert status(task_id) == Status.COMPLETED, "results are written all the same"


def test_an_index_that_is_gone_is_rebuilt(hire, index):
    task_id = put(QUICK)
    worker = hire()
    flush()
    worker.run_once()  # not ready: rebuilds
    worker.run_once()  # unknown profile: registers again
    worker.run_once()
    assert status(task_id) == Status.EXECUTING
    assert_index_agrees()
