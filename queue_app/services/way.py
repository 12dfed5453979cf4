"""Where claims find tasks: in Redis, or in the rows while Redis is away. The row of generations says which.

A process learns it from that row: when Redis fails it, when a claim is refused, with each heartbeat, and as the answer
to each push. Until then nothing it does is wrong, only in vain: the rows grant nothing that the other way proposes.
"""

from typing import Final, NamedTuple

from queue_app import conf
from queue_app.index import redis_is_away
from queue_app.sql import locks, snapshot
from queue_app.sql.database import fetch_all
from queue_app.sql.snapshot import Way

#: Why claims read the rows if the project wants that.
CHOSEN: Final = "INDEX is 'rows'"
#: Share of a leadership that is left to a leader which has missed a renewal: it may have died with Redis.
SILENT_SHARE: Final = 0.7
#: How long it counts that a process could not reach Redis.
VOTE_SECONDS: Final = 5.0

_VOTES: Final = """
SELECT (SELECT token FROM queue_app_rows_lock
        WHERE name = %s AND until > statement_timestamp() + make_interval(secs => %s)),
    ARRAY(SELECT token FROM queue_app_rows_lock WHERE name LIKE 'away %%' AND until > statement_timestamp()),
    (SELECT count(*) FROM queue_app_worker WHERE status IN ('active', 'draining'))
"""


class Votes(NamedTuple):
    """Which processes cannot reach Redis now, beside the scheduler that leads and the number of live workers."""

    leader: str | None
    voters: frozenset[str]
    workers: int

    @property
    def is_confirmed(self) -> bool:
        """Whether Redis is away for more than one: a process that alone cannot reach it stands by.

        The scheduler that leads confirms what a worker found; without one, a second worker does, if there is another.
        """
        if self.leader is not None:
            return self.leader in self.voters and len(self.voters) > 1
        return len(self.voters) >= min(2, max(1, self.workers))


def follow(known: Way | None = None) -> Way:
    """Read which way is in force, unless it is ``known``, and go it from now on."""
    found = known or snapshot.way()
    if conf.get().index == conf.REDIS:
        if found.is_rows:
            redis_is_away.set()
        else:
            redis_is_away.clear()
    return found


def is_detour(way: Way) -> bool:
    """Whether claims read the rows because Redis is away, not because the project wants that."""
    return way.is_rows and way.because != CHOSEN


def vote(voter: str) -> Votes:
    """Record that a worker or the leading scheduler, by its token, cannot reach Redis; return who else cannot."""
    locks.hold(f"away {voter}", voter, VOTE_SECONDS)
    lately = SILENT_SHARE * conf.get().scheduler.leader_seconds
    leader, voters, workers = fetch_all(_VOTES, [locks.LEADER, lately])[0]
    return Votes(leader, frozenset(voters), workers)
