"""One job of the scheduler: when it is due, and how it went."""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from django.db import Error as DatabaseError
from django.db import connections

from queue_app.exceptions import IndexDamaged, IndexUnavailable
from queue_app.services.notify.index import condemn
from queue_app.services.upkeep.jobs import Answers
from queue_app.telemetry import log_error, outage_over

logger = logging.getLogger("taskqueue")

#: Jobs that are due within this time run now, so that they share a turn and a query.
TOGETHER_SECONDS = 0.1
#: Time after which a job that found work, and can tell when work is due, has its next turn at the latest.
AGAIN_SECONDS = 0.5


@dataclass(slots=True)
class Job:
    """An action that runs every ``interval`` seconds; all times are monotonic.

    If the action returns ``True``, work is left, and the job runs again in the next turn. The scheduler skips the job
    if the answers to its questions (``asks``) say that it would find nothing.
    """

    name: str
    interval: float
    action: Callable[[], object]
    due_at: float = 0.0
    needs_index: bool = False  # the job can do nothing without Redis
    has_more: bool = field(default=False)
    asks: tuple[str, ...] = ()  # questions for ``pending_work``
    is_wanted: Callable[[Answers], bool] | None = None  # judges the answers; ``None``: one yes is enough
    next_in: Callable[[Answers], float] | None = None  # seconds until work is due, if that is before the next turn
    turned_at: float = -math.inf  # when it last had a turn
    failing_since: float | None = None
    failures: int = 0  # in a row
    error: Exception | None = None  # the last one

    def run_once(self, answers: Answers | None = None) -> bool:
        """Run the job if there is work, or if there are no answers; return false if the index is unreachable.

        A failure is logged once, and the job is tried again at its next turn.
        """
        self.has_more = False
        try:
            self.has_more = self._may_find_work(answers) and self.action() is True
        except Exception as error:
            if not self.failures and isinstance(error, IndexUnavailable | DatabaseError):
                log_error(error, "%s failed: %s", self.name, line(error))
            elif not self.failures:
                logger.exception("%s failed", self.name)
            self.failures += 1
            self.failing_since, self.error = self.failing_since or time.monotonic(), error
            if isinstance(error, IndexDamaged):
                condemn(line(error))
                return True  # the server answers
            if isinstance(error, DatabaseError):
                connections.close_all()
            return not isinstance(error, IndexUnavailable)
        if self.failures:
            outage_over()
        self.failures, self.failing_since, self.error = 0, None, None
        return True

    def next_turn(self, asked_at: float, now: float, answers: Answers | None) -> float:
        """Return when the next turn is, after one for which ``pending_work`` was asked at ``asked_at``.

        It is counted from a full second (of the monotonic clock), so that the jobs stay together; it is earlier if work
        is due earlier. The answers name only the first work that is due, so more may be due soon after it.
        """
        if self.has_more:
            return now
        step = min(1.0, self.interval)
        following = math.floor((now + min(TOGETHER_SECONDS, step / 2)) / step) * step + self.interval
        if answers is None or self.next_in is None:
            return following
        soon = self.next_in(answers)
        return min(following, asked_at + soon if soon > 0 else now + AGAIN_SECONDS)

    def _may_find_work(self, answers: Answers | None) -> bool:
        if answers is None or not self.asks:
            return True
        return self.is_wanted(answers) if self.is_wanted else any(answers[name] for name in self.asks)


def line(error: Exception) -> str:
    """Return the text of an error in one line."""
    return " ".join(str(error).split())
