"""Simulate higher limits where limits hold tasks back, so that suggestions have numbers (``read.advice``).

A trial is an operation like one that staff request: a process of its own, its result is kept, and staff may apply it.
The effort is bounded: one new trial a look, one for each limit and value in ``VALID``, at most ``MAX_TASKS`` tasks.
"""

from datetime import timedelta
from typing import Final

from queue_app.index.simulated import has_server
from queue_app.services.read.held import held
from queue_app.services.read.trials import mark, operations
from queue_app.services.simulate.operation import start_simulation
from queue_app.sql import advice as rows
from queue_app.sql.database import clock

#: Interval of the looks.
LOOK_SECONDS: Final = 600.0
WINDOW: Final = timedelta(hours=1)
MAX_TASKS: Final = 50_000
REASON: Final = "For a suggestion: this limit holds tasks back while slots are idle."


def request_trial() -> int:
    """Request the simulation of one limit that holds tasks back; return how many were requested."""
    if not has_server() or not (some := held()):
        return 0
    known = operations()
    each = next((one for one in some if mark(one) not in known), None)
    if each is None:
        return 0
    now = clock()
    window = WINDOW * min(1.0, MAX_TASKS / max(1, rows.ended_since(now - WINDOW)))
    changes = {"limits": {each.limit: {"max_concurrent": each.wanted}}}
    start_simulation(changes, now - window, now, by="", reason=REASON, trial=mark(each))
    return 1
