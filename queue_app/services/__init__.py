"""Use cases, one function each: the only place where rows and index meet.

Order of every transition: the row first, in a transaction, then the index. Whatever stops
between the two leaves an index that lags, which ``reconcile`` heals; never a row that does.
"""

from queue_app.services.asynchronous import (
    acancel,
    acancel_many,
    aenqueue,
    aenqueue_many,
    apause,
    areplay,
    areprioritise,
    aresume,
)
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
from queue_app.services.lifecycle.cancel import cancel, cancel_many
from queue_app.services.lifecycle.replay import discard, discard_many, replay
from queue_app.services.lifecycle.reprioritise import reprioritise, reprioritise_many
from queue_app.services.operations.request import start_replay

__all__ = [
    "acancel",
    "acancel_many",
    "aenqueue",
    "aenqueue_many",
    "apause",
    "areplay",
    "areprioritise",
    "aresume",
    "cancel",
    "cancel_many",
    "discard",
    "discard_many",
    "enqueue",
    "enqueue_many",
    "pause",
    "pause_everything",
    "pause_key",
    "pause_type",
    "replay",
    "reprioritise",
    "reprioritise_many",
    "resume",
    "resume_everything",
    "resume_key",
    "resume_type",
    "set_queue_limits",
    "start_replay",
]
