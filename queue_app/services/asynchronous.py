"""The use cases that views need, for coroutines: each runs in the thread that asgiref gives to calls from them.

Django has no transactions across ``await``, so each call is one of its own. To let an enqueue
be part of a transaction, put both into one function and call that with ``sync_to_async``.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from asgiref.sync import sync_to_async

from queue_app.core.priorities import Band
from queue_app.core.records import Enqueued, NewTask, TaskRef
from queue_app.core.states import Status
from queue_app.models import Queue
from queue_app.services.control.pause import pause, resume
from queue_app.services.enqueue.store import enqueue, enqueue_many
from queue_app.services.lifecycle.cancel import cancel, cancel_many
from queue_app.services.lifecycle.replay import replay
from queue_app.services.lifecycle.reprioritise import reprioritise


async def aenqueue(new: NewTask) -> Enqueued:
    """Store one task, as ``enqueue`` does."""
    return await sync_to_async(enqueue)(new)


async def aenqueue_many(tasks: Iterable[NewTask]) -> list[Enqueued]:
    """Store many tasks, all or nothing, as ``enqueue_many`` does."""
    return await sync_to_async(enqueue_many)(tasks)


async def acancel(task_id: uuid.UUID) -> Status:
    """Cancel one task, as ``cancel`` does."""
    return await sync_to_async(cancel)(task_id)


async def acancel_many(ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, Status]:
    """Cancel those of the tasks that are pending, as ``cancel_many`` does."""
    return await sync_to_async(cancel_many)(ids)


async def areprioritise(task_id: uuid.UUID, band: Band) -> None:
    """Change the priority of a task that waits, as ``reprioritise`` does."""
    await sync_to_async(reprioritise)(task_id, band)


async def areplay(dead_letter_id: uuid.UUID, *, by: str, parameters: dict[str, Any] | None = None) -> TaskRef:
    """Queue a dead task again, as ``replay`` does."""
    return await sync_to_async(replay)(dead_letter_id, by=by, parameters=parameters)


async def apause(name: str, *, by: str = "", reason: str = "", resume_at: datetime | None = None) -> Queue:
    """Let nothing of a queue start, as ``pause`` does."""
    return await sync_to_async(pause)(name, by=by, reason=reason, resume_at=resume_at)


async def aresume(name: str) -> Queue:
    """Let a queue go on, as ``resume`` does."""
    return await sync_to_async(resume)(name)
