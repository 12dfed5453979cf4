"""Delete ended tasks past their retention, and read little else.

Successes and failures have retentions of their own, so each kind is walked along an index
by its end. That of the successes holds the failures too (an index that only they enter
would be paid for by every task); those that are kept for longer are read over once an hour.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.utils import timezone

from queue_app.conf import RetentionSettings
from queue_app.rows import upkeep
from queue_app.services import jobs

JOB: Final = "purge"
#: So often the walk over successes begins at the beginning; else so long before where the last one came to its end.
WALK: Final = timedelta(hours=1)
OVERLAP: Final = timedelta(days=1)

_Purge = Callable[[float, float, int, datetime | None], list[datetime]]


def purge_tasks(retention: RetentionSettings, limit: int, until: float) -> int:
    """Delete ended tasks past their retention; return how many.

    Successes and failures take turns with batches of ``limit``: each at least one, and none
    after ``until``, by the monotonic clock.
    """
    key_seconds, deleted = retention.idempotency_seconds, 0
    before = _Walk.last(retention)
    kinds: dict[_Purge, tuple[float, datetime | None]] = {
        upkeep.purge_completed: (retention.success_seconds, before.start if before else None),
        upkeep.purge_fruitless: (retention.failure_seconds, None),
    }
    begun = timezone.now()
    while kinds:
        for delete, (keep, after) in list(kinds.items()):
            batch = delete(keep, key_seconds, limit, after)
            deleted += len(batch)
            if len(batch) == limit:
                kinds[delete] = (keep, max(batch))
            else:
                del kinds[delete]
                if delete is upkeep.purge_completed:
                    _Walk.note(retention, begun, before)
        if time.monotonic() >= until:
            break
    return deleted


@dataclass(frozen=True, slots=True)
class _Walk:
    """How far successes have been deleted to the last one.

    What ended before that is kept for longer, failures above all, and is not read over in
    every run again: only in one each ``WALK``, which meets what was locked, or stood
    for an idempotency key, when the others passed.
    """

    done: datetime  # nothing that ended before was left
    since: datetime  # the last run that began at the beginning

    @property
    def start(self) -> datetime:
        return self.done - OVERLAP

    @classmethod
    def last(cls, retention: RetentionSettings) -> _Walk | None:
        """Return the walk that a run may go on from, if there is one."""
        found = jobs.progress(JOB)
        if found.get("retention") != _times(retention):
            return None
        walk = cls(datetime.fromisoformat(found["done"]), datetime.fromisoformat(found["since"]))
        return walk if timedelta() <= timezone.now() - walk.since < WALK else None

    @classmethod
    def note(cls, retention: RetentionSettings, begun: datetime, before: _Walk | None) -> None:
        """Keep for the next run that nothing is left which was to be deleted when this one began."""
        done = begun - timedelta(seconds=retention.success_seconds)
        since = before.since if before else begun
        jobs.note_progress(JOB, {"retention": _times(retention), "done": done.isoformat(), "since": since.isoformat()})


def _times(retention: RetentionSettings) -> list[float]:
    return [retention.success_seconds, retention.idempotency_seconds]
