"""What the doctor says about a queue without Redis."""

from collections.abc import Iterator

from queue_app import conf
from queue_app.core.reasons import Finding, ok
from queue_app.rows.wake import can_listen


def check_wake_ups() -> Iterator[Finding]:
    """Report how idle workers are called."""
    if conf.get().index != conf.ROWS:
        return
    if can_listen():
        yield ok("wake-ups", "by LISTEN and NOTIFY, on one more connection of each process that has workers")
    else:
        yield ok(
            "wake-ups",
            "workers look once a second: LISTEN hears nothing behind a pooler of transactions"
            " (DISABLE_SERVER_SIDE_CURSORS is set)",
        )
