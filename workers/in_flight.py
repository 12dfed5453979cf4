"""The tasks that a worker holds, from the claim until the outcome is stored or the task is given back."""

import logging
import uuid
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from django.db import DataError, IntegrityError

from queue_app.core.records import AttemptKey, Outcome
from queue_app.hooks.callbacks import MARK
from queue_app.index import MAX_CLAIM
from queue_app.workers.context import ClaimedAttempt
from queue_app.workers.outcomes import describe
from queue_app.workers.summary import Summary
from queue_app.workers.transport.base import OutcomesRefused, Transport

logger = logging.getLogger("taskqueue")

#: Maximum number of outcomes that are stored in one transaction with the claim of the next tasks.
FEW = 100

TOO_LATE = "the outcome of %s attempt %d came too late and was refused"
#: Errors of outcomes that can never be stored, however often the worker tries.
REFUSED = (DataError, IntegrityError, OutcomesRefused)


class InFlight:
    """Attempts, outcomes to report and tasks to give back.

    Attempts are members of a set, not a count, so that an error cannot lose or double one. An outcome stays here
    until its transaction is committed. Every method can be called again after it failed.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._held: dict[AttemptKey, ClaimedAttempt] = {}
        self._unreported: list[Outcome] = []
        self._returning: dict[AttemptKey, ClaimedAttempt] = {}
        self.lost: frozenset[AttemptKey] = frozenset()  # held attempts whose grants the rows name no more
        self.runs = 0  # runs of PostgreSQL that heartbeats have met
        self.claimed = 0  # tasks since the start, without those given back
        self.done = 0
        self.summary = Summary()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def ids(self) -> list[uuid.UUID]:
        return [task_id for task_id, *_ in self._held]

    @property
    def grants(self) -> list[AttemptKey]:
        """The grants that the worker holds. Other threads may ask."""
        return list(self._held)

    def of(self, tasks: Collection[uuid.UUID]) -> list[ClaimedAttempt]:
        """Return the held attempts of these tasks. Other threads may ask."""
        return [item for item in list(self._held.values()) if item.task.id in tasks] if tasks else []

    @property
    def slots(self) -> int:
        """Number of slots that the held tasks take. Other threads may ask: a list is made in one step."""
        return sum(item.task.weight for item in list(self._held.values()))

    @property
    def is_pending(self) -> bool:
        """Whether there is something to write."""
        return bool(self._unreported or self._returning)

    def add(self, held: list[ClaimedAttempt]) -> None:
        self._held.update((item.key, item) for item in held)
        self.claimed += len(held)

    def record(self, outcome: Outcome) -> None:
        """Keep an outcome for the next report; give back a task that did not start; drop the end of a lost one."""
        key = outcome.task.key
        if key in self.lost:
            logger.warning(TOO_LATE, *key[:2])
            self.drop([key])
        elif not outcome.is_late:
            self._unreported.append(outcome)
        elif (held := self._held.get(key)) is not None:
            self.return_later([held])

    def drop(self, lost: Iterable[AttemptKey]) -> None:
        """Forget attempts that have lost their tasks and do not run any more."""
        for key in lost:
            if self._held.pop(key, None) is not None:
                logger.warning("task %s attempt %d is not this worker's any more", *key[:2])
        self.lost &= frozenset(self._held)

    def return_later(self, held: list[ClaimedAttempt]) -> None:
        """Mark tasks; the next ``give_back`` returns them to the queue."""
        self._returning.update((item.key, item) for item in held)

    def running(self) -> list[ClaimedAttempt]:
        """Return the attempts that have not ended and are not marked by ``return_later``."""
        ended = {outcome.task.key for outcome in self._unreported}
        return [item for key, item in self._held.items() if key not in ended and key not in self._returning]

    def report(self) -> bool:
        """Store the outcomes; return whether there were any."""
        if not self._unreported:
            return False
        while self._unreported:
            batch = self._unreported[:MAX_CLAIM]
            try:
                accepted = self._transport.finish(batch)
            except REFUSED:  # one outcome cannot be stored, and the whole batch was rolled back
                batch = batch[:1]
                accepted = self._finish_one(batch[0])
            self._settle(batch, accepted)
        return True

    def turn_over(self, report: Callable[[list[Outcome]], set[uuid.UUID]]) -> None:
        """Store all outcomes with ``report``, which may add tasks."""
        batch = list(self._unreported)
        self._settle(batch, report(batch))

    def _settle(self, batch: list[Outcome], accepted: set[uuid.UUID]) -> None:
        del self._unreported[: len(batch)]
        self.done += len(accepted)
        for outcome in batch:
            key = outcome.task.key
            self._held.pop(key, None)
            if outcome.task.id in accepted:
                self._note(outcome)
            else:
                logger.warning(TOO_LATE, *key[:2])

    @property
    def unreported(self) -> int:
        """Number of outcomes that are to be reported."""
        return len(self._unreported)

    @property
    def can_turn_over(self) -> bool:
        """Whether only completions are to be reported, each of another task without workflow and callback."""
        outcomes = self._unreported
        return (
            0 < len(outcomes) <= FEW
            and not self._returning
            and all(one.is_completion and one.task.workflow_id is None for one in outcomes)
            and not any(MARK in (one.task.metadata or "") for one in outcomes)
            and len({one.task.id for one in outcomes}) == len(outcomes)
        )

    def _note(self, outcome: Outcome) -> None:
        """Count an outcome that was stored, and log it at the level DEBUG; failures have a line of their own."""
        task = outcome.task
        if outcome.failure is not None:
            what = "cancelled" if outcome.failure.reason == "cancelled" else "failed"
        else:
            what = "completed" if outcome.is_completion else "postponed"
            if logger.isEnabledFor(logging.DEBUG):
                seconds = (outcome.finished_at - outcome.started_at).total_seconds()
                logger.debug("%s %s after %.3f s (task %s)", task.task_type, what, seconds, task.id)
        self.summary.add(what, task_type=task.task_type)

    def _finish_one(self, outcome: Outcome) -> set[uuid.UUID]:
        """Store one outcome; if it is refused, store a failure that gives the reason."""
        try:
            return self._transport.finish([outcome])
        except REFUSED as error:
            failure = describe(error)
            return self._transport.finish([replace(outcome, result=None, snooze=None, throttle=None, failure=failure)])

    def give_back(self) -> None:
        """Return the tasks that ``return_later`` marked to the queue."""
        if not self._returning:
            return
        keys = list(self._returning)
        self._transport.give_back([self._returning[key].task for key in keys])
        for key in keys:
            del self._returning[key]
            if self._held.pop(key, None) is not None:
                self.claimed -= 1

    def give_back_unacknowledged(self, worker_id: uuid.UUID) -> None:
        """Return to the queue the tasks that PostgreSQL assigns to this worker but that the worker does not hold."""
        self._transport.give_back_unacknowledged(worker_id, self.ids)

    def give_back_forgotten(self, worker_id: uuid.UUID) -> None:
        """The same, if no claim lacks its answer."""
        self._transport.give_back_forgotten(worker_id, self.ids)
