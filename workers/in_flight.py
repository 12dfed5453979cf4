"""What a worker has in hand: every claim, until its outcome is written or it is given back."""

from __future__ import annotations

import logging
import uuid
from dataclasses import replace

from django.db import DataError, IntegrityError

from queue_app.core.records import ClaimedTask, Outcome
from queue_app.index import MAX_CLAIM
from queue_app.workers.context import ClaimedAttempt
from queue_app.workers.outcomes import describe
from queue_app.workers.transport import finish, give_back, give_back_unacknowledged
from queue_app.workers.transport.base import OutcomesRefused

logger = logging.getLogger("taskqueue")

#: Raised for outcomes that will not be stored, however often they are told.
REFUSED = (DataError, IntegrityError, OutcomesRefused)

type Attempt = tuple[uuid.UUID, int]


def _attempt(task: ClaimedTask) -> Attempt:
    return task.id, task.attempt


class InFlight:
    """Claims are members of a set, not a count, so that none is lost or counted twice after an error.

    What has to be written stays here until its rows are committed; every method can be
    called again after it failed.
    """

    def __init__(self) -> None:
        self._held: dict[Attempt, ClaimedAttempt] = {}
        self._unreported: list[Outcome] = []
        self._returning: dict[Attempt, ClaimedAttempt] = {}
        self.claimed = 0  # and not given back, since the start
        self.done = 0

    def __len__(self) -> int:
        return len(self._held)

    @property
    def slots(self) -> int:
        """How many slots the tasks in hand take."""
        return sum(item.task.weight for item in self._held.values())

    @property
    def is_pending(self) -> bool:
        """Whether something has to be written."""
        return bool(self._unreported or self._returning)

    def take(self, held: list[ClaimedAttempt]) -> None:
        """Take what was claimed."""
        for item in held:
            self._held[_attempt(item.task)] = item
        self.claimed += len(held)

    def note(self, outcome: Outcome) -> None:
        """Take an outcome, to be written."""
        self._unreported.append(outcome)

    def put_back(self, held: list[ClaimedAttempt]) -> None:
        """Mark tasks to be given back."""
        self._returning.update((_attempt(item.task), item) for item in held)

    def running(self) -> list[ClaimedAttempt]:
        """Return what has neither ended nor is to be given back."""
        ended = {_attempt(outcome.task) for outcome in self._unreported}
        return [item for key, item in self._held.items() if key not in ended and key not in self._returning]

    def report(self) -> bool:
        """Write the outcomes; return whether there were any."""
        if not self._unreported:
            return False
        while self._unreported:
            batch = self._unreported[:MAX_CLAIM]
            try:
                held = finish(batch)
            except REFUSED:  # the rows refuse one of them, and with it the others
                batch = batch[:1]
                held = _finish_one(batch[0])
            del self._unreported[: len(batch)]
            self.done += len(held)
            for outcome in batch:
                self._held.pop(_attempt(outcome.task), None)
                if outcome.task.id not in held:
                    logger.warning(
                        "the outcome of %s attempt %d came too late and was refused",
                        outcome.task.id,
                        outcome.task.attempt,
                    )
        return True

    def give_back(self) -> None:
        """Return to the queue what was put back."""
        if not self._returning:
            return
        keys = list(self._returning)
        give_back([self._returning[key].task for key in keys])
        for key in keys:
            del self._returning[key]
            if self._held.pop(key, None) is not None:
                self.claimed -= 1

    def give_back_unacknowledged(self, worker_id: uuid.UUID) -> None:
        """Return to the queue what the rows say this worker runs, but it does not."""
        give_back_unacknowledged(worker_id, [task_id for task_id, _ in self._held])


def _finish_one(outcome: Outcome) -> set[uuid.UUID]:
    """Write one outcome; one that the rows refuse becomes a failure that says why."""
    try:
        return finish([outcome])
    except REFUSED as error:
        return finish([replace(outcome, result=None, snooze=None, throttle=None, failure=describe(error))])
