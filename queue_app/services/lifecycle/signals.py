"""Send a signal to a task: an approval, an answer of another service, a message of a person.

The signal is stored, and a task that waits for it is queued, in one transaction. Signals that arrive early wait for the
task. Each is taken by one step, in the order of arrival.

Crash points: before the commit nothing was sent; after it, the reconciler pushes the queued task into the index.
"""

from dataclasses import dataclass
from typing import Any

from asgiref.sync import sync_to_async

from queue_app import conf
from queue_app.core.ids import Id, parse_id
from queue_app.core.payload import dump_json
from queue_app.core.signals import check_payload
from queue_app.core.states import TERMINAL, Status, predicate
from queue_app.exceptions import InvalidTransition, TaskNotFound
from queue_app.services.advance import advance, changing
from queue_app.services.enqueue.validate import check_signal_name
from queue_app.services.notify import events
from queue_app.services.notify.index import push_on_commit
from queue_app.services.read.awaited import awaited
from queue_app.sql import signals as rows
from queue_app.sql.claim import statuses


@dataclass(frozen=True, slots=True)
class Sent:
    """A signal that was stored: its id, and whether the task waited for it and goes on now."""

    id: int
    is_awaited: bool


def signal(task: Id, name: str, payload: Any = None, *, by: str = "") -> Sent:
    """Send a signal to a task that has not ended; ``by`` names who sends it.

    The task gets ``payload`` (JSON) from ``context.wait_for(name)``. If it does not wait for the signal yet, the signal
    is kept. Raises ``TaskNotFound``, ``InvalidTransition`` when the task has ended, and ``InvalidTaskData`` for a
    payload that is no JSON or lacks what the waiting step declares.
    """
    task_id = parse_id(task)
    check_signal_name(name)
    text = None if payload is None else dump_json(payload, field="payload", limits=conf.get().payload)
    waits = [one for one in awaited(task_id) if one.signal == name]
    for one in waits:
        check_payload(one.fields, payload)
    with changing([task_id]) as workflows:
        stored = rows.send(task_id, name, text, by)
        if stored is None:
            raise _refusal(task_id)
        signal_id, woken = stored
        is_held = woken is not None and bool(workflows) and bool(advance({woken.id: Status.QUEUED}))
    if woken is not None and not is_held:
        push_on_commit([woken.entry], events=events.of_queued_again([woken]))
    return Sent(signal_id, woken is not None)


def _refusal(task_id: Any) -> TaskNotFound | InvalidTransition:
    status = statuses([task_id]).get(task_id)
    if status is None:
        return TaskNotFound(f"There is no task {task_id}.")
    if status in TERMINAL:
        return InvalidTransition(f"The task {predicate(status)}; it takes no more signals.", status=Status(status))
    return InvalidTransition(
        f"The task has {rows.MAX_UNTAKEN} signals that it has not taken; it takes no more until it takes some.",
        status=Status(status),
    )


asignal = sync_to_async(signal)
