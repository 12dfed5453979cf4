"""A stall: work that does not continue although nothing prevents it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

#: Time without progress after which the watchdog reports a stall.
STALL_SECONDS: Final = 10.0
#: Name of the job whose row holds the stalls.
WATCHDOG: Final = "watchdog"
#: Age (s) of the last record after which no watchdog counts as running. It checks each second and writes each 15 s.
CHECK_IS_OLD: Final = 60.0


class StallKind(StrEnum):
    """What does not continue."""

    NOT_STARTED = "not_started"  # a queued task that a worker with a free slot could run
    NOT_DUE = "not_due"  # a scheduled task whose time has come
    OVERRUN = "overrun"  # an executing task that is far past its deadline
    JOB = "job"  # a job of the scheduler that fails or gets no turn, or an upkeep job that is overdue
    NO_WATCHDOG = "no_watchdog"  # the scheduler itself: it leads, and its watchdog does not run


@dataclass(frozen=True, slots=True)
class Stall:
    """One stall; ``subject`` is the queue or the job, ``text`` the evidence in plain words."""

    kind: StallKind
    subject: str
    text: str
    since: str = ""  # time at which it was reported (ISO 8601)
    steps: str = ""  # what the scheduler has done about it
