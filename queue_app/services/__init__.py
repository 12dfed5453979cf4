"""Use cases, one function each: the only place where PostgreSQL rows and the index meet.

Every transition changes the rows first, in a transaction, and then the index. A crash in between
leaves an index that lags behind the rows; the reconciler repairs it.

The functions whose names begin with ``a`` are for coroutines. Django has no transactions across
``await``, so each of their calls is a transaction of its own. To make an enqueue part of a
transaction, put both into one function and call that function with ``sync_to_async``.
"""

from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async

from queue_app.core import rooms
from queue_app.services.control.pause import (
    pause,
    pause_everything,
    pause_key,
    pause_type,
    resume,
    resume_everything,
    resume_key,
    resume_type,
)
from queue_app.services.control.queues import set_queue_limits
from queue_app.services.enqueue.store import enqueue, enqueue_many
from queue_app.services.lifecycle.actions import (
    cancel,
    cancel_many,
    discard,
    discard_many,
    replay,
    reprioritise,
    reprioritise_many,
)
from queue_app.services.operations.request import start_replay

if TYPE_CHECKING:
    from queue_app.schedules.backfill import run_schedule
    from queue_app.schedules.edit import adelete_schedule, aset_schedule, delete_schedule, set_schedule
    from queue_app.schedules.pause import pause_schedule, resume_schedule

__all__ = [
    "acancel", "acancel_many", "adelete_schedule", "aenqueue", "aenqueue_many", "apause", "areplay", "areprioritise",
    "aresume", "aset_schedule", "cancel", "cancel_many", "delete_schedule", "discard", "discard_many", "enqueue",
    "enqueue_many", "pause", "pause_everything", "pause_key", "pause_schedule", "pause_type", "replay", "reprioritise",
    "reprioritise_many", "resume", "resume_everything", "resume_key", "resume_schedule", "resume_type", "run_schedule",
    "set_queue_limits", "set_schedule", "start_replay",
]  # fmt: skip

acancel = sync_to_async(cancel)
acancel_many = sync_to_async(cancel_many)
aenqueue = sync_to_async(enqueue)
aenqueue_many = sync_to_async(enqueue_many)
apause = sync_to_async(pause)
areplay = sync_to_async(replay)
areprioritise = sync_to_async(reprioritise)
aresume = sync_to_async(resume)


def __getattr__(name: str) -> Any:
    """Return what a room adds, on first use: this package belongs to the kernel, which imports no room."""
    if name in __all__:
        return rooms.part(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
