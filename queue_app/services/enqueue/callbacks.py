"""Store the callbacks of tasks that end, in the transaction that ends them: exactly once, even after a crash.

A callback that cannot be stored, because its module or its key is missing, is logged, and the task ends without it.

Limits of queues and users do not apply to them, and hooks are not asked again: a callback has the metadata of its task.
"""

import logging
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace

from queue_app import callbacks, encryption, registry
from queue_app.core.lanes import score
from queue_app.core.payload import dump_json
from queue_app.core.records import ClaimedTask, Entry, NewTask, TaskRef, TaskRow
from queue_app.core.states import Status
from queue_app.hooks import LIMITS
from queue_app.services.enqueue.validate import check_call, check_spec
from queue_app.services.notify import events
from queue_app.services.notify.index import push_on_commit
from queue_app.sql.database import fetch_all
from queue_app.sql.insert import ensure_queue
from queue_app.sql.insert_many import insert_many

_log = logging.getLogger("taskqueue")
#: A callback has the metadata of its task, and its own callbacks and version.
_LIMITS = replace(LIMITS, max_bytes=2 * LIMITS.max_bytes)
_METADATA = (
    "SELECT task_id, metadata::text FROM queue_app_taskpayload WHERE task_id = ANY(%s) AND metadata ? 'on_failure'"
)


def enqueue_callbacks(
    ended: Iterable[tuple[ClaimedTask | TaskRef, Status]], metadata: Mapping[uuid.UUID, str | None] | None = None
) -> None:
    """Store the callbacks of tasks that the caller's transaction ended; without ``metadata``, only of failed tasks."""
    tasks = [(task, status) for task, status in ended if status in callbacks.OPTIONS]
    if metadata is None:
        metadata = dict(fetch_all(_METADATA, [[task.id for task, _ in tasks]])) if tasks else {}
    asked = [(task, status, metadata.get(task.id)) for task, status in tasks]
    rows = [row for each in asked if (row := _row(*each)) is not None]
    if rows:
        for queue in sorted({row.spec.queue for row in rows}):
            ensure_queue(queue)
        stored = insert_many(rows, admitted=True)
        places = [(each, each.queued_at) for each in stored if each.queued_at is not None]
        entries = [Entry(each.spec.lane, score(each.spec.priority, at), each.id) for each, at in places]
        push_on_commit(entries, events=events.of_stored(stored))


def _row(task: ClaimedTask | TaskRef, status: Status, metadata: str | None) -> TaskRow | None:
    """Return the callback of a task that ended; ``None`` without one, or if it cannot be stored."""
    try:
        found = callbacks.follows(task, status, metadata)
        return None if found is None else _checked(task, *found, metadata)
    except Exception:  # noqa: BLE001 - from code or settings of the project; else the task would run again and again
        _log.exception("The callback of task %s (%s) cannot be stored, so none follows.", task.id, task.task_type)
        return None


def _checked(task: ClaimedTask | TaskRef, task_type: str, args: list[object], metadata: str | None) -> TaskRow:
    registered = registry.find(task_type)
    encryption.applies_to(task_type)  # raises if it should be encrypted, and there is no key
    spec = check_spec(NewTask(task_type=task_type, user=task.user), registered)
    found = callbacks.inherited(metadata) | callbacks.reserved(registered)
    text = dump_json(found, field="metadata", limits=_LIMITS) if found else None
    return check_call(replace(spec, unique=None, idempotency_key=None), args, {})._replace(metadata=text)
