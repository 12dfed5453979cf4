"""Discard dead letters: nobody will replay them, and their tasks need not wait for that.

The record stays until it expires and keeps who discarded it, when and why; the task is
purged when the retention of failures is over.

Crash points: there is nothing to tell the index, a dead task is not in it. A discard of
many, with its record, is one transaction of whoever asks for it, of at most ``MAX_AT_ONCE``.
"""

from __future__ import annotations

import uuid

from queue_app import signals
from queue_app.models.audit_entry import REASON_LENGTH
from queue_app.models.columns import USER_LENGTH
from queue_app.rows import dead_letters as rows
from queue_app.services.dead_letters import DeadLetterFilter, matching, refusal
from queue_app.services.validate import check_reason

BATCH = 500
#: What one call discards at most, so that it ends; the caller may ask again.
MAX_AT_ONCE = 10_000


def discard(dead_letter_id: uuid.UUID, *, by: str, reason: str = "") -> None:
    """Close a dead letter for good.

    Raises ``DeadLetterNotFound``, and ``InvalidTransition`` when it was replayed or
    discarded before.
    """
    if not discard_open([dead_letter_id], by=by, reason=reason):
        raise refusal(dead_letter_id, "discarded")


def discard_open(ids: list[uuid.UUID], *, by: str, reason: str = "") -> list[uuid.UUID]:
    """Close those of the dead letters that are open; return their ids. Raises ``InvalidTaskData`` for the reason."""
    discarded = rows.discard(ids, by[:USER_LENGTH], check_reason(reason, REASON_LENGTH))
    if discarded:
        signals.dead_letters_discarded.send(None, count=len(discarded), by=by, reason=reason)
    return discarded


def discard_many(wanted: DeadLetterFilter, *, by: str, reason: str = "", limit: int | None = None) -> int:
    """Close the open dead letters that a filter means, oldest first; return how many.

    At most ``limit``, and never more than ``MAX_AT_ONCE``. See ``dead_letters.preview`` for
    a dry run.
    """
    check_reason(reason, REASON_LENGTH)
    left = MAX_AT_ONCE if limit is None else min(limit, MAX_AT_ONCE)
    done = 0
    while left > 0:
        open_now = matching(wanted).open().order_by("died_at", "id")
        ids = list(open_now.values_list("id", flat=True)[: min(left, BATCH)])
        if not ids:
            break
        done += len(discard_open(ids, by=by, reason=reason))
        left -= len(ids)
    return done
