"""A job of the scheduler: what it does, how often, and how it fails."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from django.db import Error as DatabaseError
from django.db import connections

from queue_app.exceptions import IndexUnavailable
from queue_app.services.look import Answers

logger = logging.getLogger("taskqueue")


@dataclass(slots=True)
class Job:
    """Something to do every ``interval`` seconds; ``due_at`` is monotonic time.

    An action that returns ``True`` has left work, and has its next turn once the others had theirs.
    One that would find nothing, by the answers to what the job asks of a look, is not called.
    """

    name: str
    interval: float
    action: Callable[[], object]
    due_at: float = 0.0
    failing: bool = field(default=False)
    needs_index: bool = False  # nothing can be done without Redis
    has_more: bool = field(default=False)
    asks: tuple[str, ...] = ()  # questions of a look; the action is called when one is answered with yes,
    is_wanted: Callable[[Answers], bool] | None = None  # or by what this makes of the answers

    def run_once(self, answers: Answers | None = None) -> bool:
        """Run the job, without answers in any case; return whether the index answered, as far as it was asked.

        A failure is logged once, and the job is tried again at its next turn.
        """
        self.has_more = False
        try:
            self.has_more = self._may_find_work(answers) and self.action() is True
        except (IndexUnavailable, DatabaseError) as error:
            if not self.failing:
                logger.warning("%s failed: %s", self.name, " ".join(str(error).split()))
            self.failing = True
            if isinstance(error, IndexUnavailable):
                return False
            connections.close_all()
        except Exception:
            if not self.failing:
                logger.exception("%s failed", self.name)
            self.failing = True
        else:
            self.failing = False
        return True

    def _may_find_work(self, answers: Answers | None) -> bool:
        if answers is None or not self.asks:
            return True
        return self.is_wanted(answers) if self.is_wanted else any(answers[name] for name in self.asks)
