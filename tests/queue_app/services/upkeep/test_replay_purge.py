"""Dead letters and their tasks are purged; a replay finds a whole dead letter or none."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import transaction

from queue_app.core.states import Status
from queue_app.exceptions import DeadLetterNotFound
from queue_app.models import DeadLetter, Task, TaskPayload
from queue_app.services.lifecycle.actions import discard, replay
from queue_app.services.lifecycle.finish import finish
from queue_app.services.upkeep.maintenance import purge
from tests.support.dead_letters import kill, make_dead_letter, make_dead_letters
from tests.support.engine import Side, done, held_up, status, take, take_ids


@pytest.fixture
def no_retention(settings):
    """Tasks that failed are purged at once; dead letters are kept."""
    settings.TASKQUEUE = {**settings.TASKQUEUE, "RETENTION": {"FAILURE_SECONDS": 0.01, "SUCCESS_SECONDS": 0.01}}


def age(letter: DeadLetter, *, expired: bool = False) -> None:
    """Move its death into the past: by an hour, or past its retention."""
    past = datetime.now(UTC) - timedelta(hours=1)
    Task.objects.filter(pk=letter.task_id, finished_at__isnull=False).update(finished_at=past)
    if expired:
        DeadLetter.objects.filter(pk=letter.pk).update(expires_at=past)


def test_a_task_stays_as_long_as_it_can_be_replayed(engine, hand, no_retention):
    kept, discarded, expired = make_dead_letters(hand, 3)
    discard(discarded.id, by="")
    for letter in (kept, discarded, expired):
        age(letter, expired=letter is expired)
    purge()
    assert set(Task.objects.values_list("pk", flat=True)) == {kept.task_id, expired.task_id}
    assert set(DeadLetter.objects.values_list("pk", flat=True)) == {kept.id, discarded.id}
    purge()
    assert set(Task.objects.values_list("pk", flat=True)) == {kept.task_id}, "after its record"
    assert set(TaskPayload.objects.values_list("pk", flat=True)) == {kept.task_id}
    replay(kept.id, by="")
    assert take_ids(hand) == [kept.task_id]


def test_the_record_of_a_replay_is_kept_for_its_time_even_without_the_task(engine, hand, no_retention):
    letter = make_dead_letter(hand)
    replay(letter.id, by="ann")
    [task] = take(hand)
    finish([done(task)])
    Task.objects.update(finished_at=datetime.now(UTC) - timedelta(hours=1))
    purge()
    assert not Task.objects.exists()
    letter.refresh_from_db()
    assert letter.replayed_by == "ann"
    age(letter, expired=True)
    purge()
    assert not DeadLetter.objects.exists()


def test_a_task_that_died_again_stays_by_its_second_record(engine, hand, no_retention):
    letter = make_dead_letter(hand)
    replay(letter.id, by="")
    kill(hand, letter.task_id)
    age(letter, expired=True)
    purge()
    purge()
    assert DeadLetter.objects.get().id != letter.id
    assert status(letter.task_id) is Status.DEAD_LETTER


def test_the_purge_skips_a_task_that_is_being_replayed(engine, hand, no_retention):
    letter = make_dead_letter(hand)
    age(letter, expired=True)
    with transaction.atomic():
        replay(letter.id, by="ann")
        Side(lambda: [purge(), purge()]).result()
    letter.refresh_from_db()
    assert letter.replayed_by == "ann"
    assert status(letter.task_id) is Status.QUEUED


def test_a_replay_of_a_task_that_is_being_purged_finds_nothing(engine, hand, no_retention):
    letter = make_dead_letter(hand)
    age(letter, expired=True)
    with transaction.atomic():
        purge()
        side = held_up(lambda: replay(letter.id, by="ann"))
    with pytest.raises(DeadLetterNotFound):
        side.result()
    assert status(letter.task_id) is Status.DEAD_LETTER
