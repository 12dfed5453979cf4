"""Let claims read the rows while Redis is away, and return to Redis.

Away: the generation rises, so that the rows grant nothing more that Redis proposed, and the lanes are built from the
rows. The executing rows are the slots, so no cap is exceeded; rates start empty.

Back: while claims still read the rows, the index in Redis is filled, and refuses claims. Then, between two claims, the
rows are left (``sql.snapshot.leave_rows``): a claim from rows is one transaction, so no proposal of them is under way.
Then Redis gets the leases of the executing rows, and the tasks that were pushed to the rows meanwhile, and opens.

Crash points: after the generation rose away, any worker that claims builds the lanes. Before the rows are left, claims
from rows go on. After it, the index in Redis is not open, and the next claim rebuilds it.
"""

import logging
import threading
import time
from typing import Final

from django.db import Error as DatabaseError

from queue_app import conf
from queue_app.core import rooms
from queue_app.core.probe import Probe
from queue_app.exceptions import IndexDamaged, IndexOfAnotherDatabase, IndexUnavailable, in_one_line
from queue_app.index import redis_index, redis_is_away, rows_index, server_url
from queue_app.index.server import refused_writes
from queue_app.services.notify.index import breaker
from queue_app.services.repair.rebuild import rebuild
from queue_app.services.way import follow, vote
from queue_app.sql import workers
from queue_app.sql.database import is_in_transaction

logger = logging.getLogger("taskqueue")

#: Time in which Redis has to answer.
PROBE_SECONDS: Final = 0.5
_probe: Final = Probe(lambda: refused_writes(redis_index()), linger=2.0)
#: How often, and at which interval (s), a worker looks whether another one has found the same.
LOOKS: Final = 4
LOOK_SECONDS: Final = 0.1
#: Whether Redis did not answer the last probe of this process. Then a new connection could hang.
_is_suspect: Final = threading.Event()


def why_away() -> str:
    """Return why Redis cannot be used now; '' if it can."""
    refusal = _probe.ask().result(PROBE_SECONDS)
    if refusal == "":
        _is_suspect.clear()
        return ""
    _is_suspect.set()
    why = "does not answer." if refusal is None else f"refuses writes: {refusal}"
    return f"Redis at {server_url(conf.get().redis_alias)} {why}"


def check_redis() -> None:
    """Raise ``IndexUnavailable`` if Redis did not answer a moment ago nor now, and claims do not read the rows."""
    if _is_suspect.is_set() and not redis_is_away.is_set() and (why := why_away()):
        raise IndexUnavailable(why)


def leave_redis(voter: str, error: Exception, *, insists: bool = False) -> bool:
    """Let claims read the rows if Redis is away for others too; return whether they do now.

    ``insists``: whether the leading scheduler has failed to reach Redis for so long that it needs no one else.
    """
    if redis_is_away.is_set():  # another thread has found it, unless PostgreSQL is the one that failed
        return not isinstance(error.__cause__, DatabaseError)
    if conf.get().index != conf.REDIS or isinstance(error, (IndexDamaged, IndexOfAnotherDatabase)):
        return False
    if is_in_transaction() or "rows" not in {room.name for room in rooms.present()} or not why_away():
        return False
    votes = vote(voter)
    is_confirmed = votes.is_confirmed or (insists and votes.leader == voter)
    if not follow().is_rows and is_confirmed and rebuild(rows_index(), because=in_one_line(error)):
        rows_index().restart_counters()
        logger.warning("Redis is away, so claims read the rows: %s", in_one_line(error))
    if is_rows := follow().is_rows:
        breaker.reset()
    else:
        breaker.trip()  # notifications of this process would wait for it
    return is_rows


def leave_redis_with_others(voter: str, error: Exception) -> bool:
    """Do as ``leave_redis``, and give others a moment to find the same."""
    for look in range(LOOKS):
        if look:
            time.sleep(LOOK_SECONDS)
        if leave_redis(voter, error):
            return True
    return False


def return_to_redis() -> bool:
    """Fill the index in Redis and let claims use it; return whether they do now. Raises ``IndexUnavailable``."""
    index = redis_index()
    index.restart_counters()
    if rebuild(index) is None:
        return False
    rows_index().notify_workers(workers.live())
    logger.info("Redis is back, so claims use it again")
    return not follow().is_rows


def name_recent() -> None:
    """Find tasks whose processes have pushed them to Redis, while claims read the rows."""
    try:
        rooms.part("name_recent")()
    except (DatabaseError, IndexUnavailable) as error:
        logger.debug("recent tasks were not named: %s", in_one_line(error))
