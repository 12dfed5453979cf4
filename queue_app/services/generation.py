"""Condemn an index that cannot heal by itself, so that it is built again from the rows."""

from queue_app import signals
from queue_app.sql import snapshot
from queue_app.sql.database import is_in_transaction

#: As in the column ``condemned_because``.
MAX_LENGTH = 300


def condemn(because: str) -> bool:
    """Make the rows refuse the present index; the scheduler, or any worker that claims, then rebuilds it.

    Returns false if nothing was done: a rebuild is due anyway, or the last condemnation is too recent. Each further one
    within ten minutes has to wait twice as long, up to five minutes. So a fault that a rebuild cannot cure does not
    keep the workers from working in between. Inside the caller's transaction nothing is done, because every grant
    would wait for the end of that transaction.

    If the process dies after the commit, the next turn of the scheduler finds an outdated generation.
    """
    if is_in_transaction() or not snapshot.condemn(because[:MAX_LENGTH]):
        return False
    signals.index_condemned.send(None, because=because)
    return True
