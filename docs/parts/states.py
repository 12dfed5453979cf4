"""The tables of states and transitions."""

from parts.markdown import code, table
from queue_app.core.states import PENDING, TRANSITIONS, Status
from queue_app.results import RESULT_STATUS

#: Source of each transition; `None` marks an allowed transition that nothing makes.
MADE_BY = {
    "blocked": {
        "queued": "the end of the last task that it waits for; a signal; resume of its workflow",
        "scheduled": "as to `queued`, if its `run_after` is in the future",
        "cancelled": "cancel of the task or its workflow; or a task before it can no longer complete",
    },
    "scheduled": {
        "queued": "the scheduler at its time, or staff earlier",
        "cancelled": "cancel",
        "blocked": "pause of its workflow",
    },
    "queued": {
        "executing": "claim",
        "cancelled": "cancel",
        "expired": "expiry, if the queue allows it",
        "scheduled": None,
        "blocked": "pause of its workflow; or a retry by staff finds that it must wait",
    },
    "executing": {
        "scheduled": "finish: the function raised with a retry left, or raised `Snooze`;"
        " or reap: its worker died again",
        "blocked": "finish: the function waits for a signal",
        "queued": "give back by a worker that drains; finish: the function raised `Throttle`; or reap: its worker died"
        " for the first time",
        "completed": "finish: the function returned",
        "failed": "finish: function or hook raised `Discard`, `backoff` returned `None`, or the arguments are wrong",
        "cancelled": "finish, give back or reap, when a cancel was requested; not if the function returned and"
        " something [undoes](../how-to/workflows.md#decide-what-a-failure-means) the task, or it undoes another",
        "dead_letter": "finish: the function raised, and no retry is left; or reap: its worker died too often",
    },
    "dead_letter": {"queued": "replay, or retry by staff"},
    "failed": {"queued": "retry by staff"},
    "cancelled": {"queued": "retry by staff"},
    "expired": {"queued": "retry by staff"},
}


MEANS = {
    "blocked": "It waits for other tasks of its workflow, or for a signal.",
    "scheduled": "It waits for its time: `run_after`, or the end of the wait before a retry.",
    "queued": "It waits for a worker.",
    "executing": "A worker has claimed it.",
    "completed": "Its function returned; the result is stored.",
    "failed": "It failed, and a retry would not help.",
    "cancelled": "A user, staff or code cancelled it before it completed.",
    "dead_letter": "It failed, and no retry is left; a dead letter says why.",
    "expired": "It waited longer than its queue allows.",
}


def states() -> str:
    """Return the table of states."""
    rows = []
    for status in Status:
        pending = "yes" if status in PENDING else "no"
        rows.append((code(status.value), MEANS[status.value], pending, code(RESULT_STATUS[status].value)))
    return table(("state", "meaning", "pending", "`django.tasks`"), rows)


def transitions() -> str:
    """Return the table of transitions."""
    order = list(Status)
    rows = [
        (code(before.value), code(after.value), MADE_BY[before.value][after.value] or "*nothing in this version*")
        for before in order
        for after in sorted(TRANSITIONS[before], key=order.index)
    ]
    return table(("from", "to", "made by"), rows)
