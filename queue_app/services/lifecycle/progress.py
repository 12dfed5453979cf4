"""Keep what attempts say while they run: progress, log lines, a later deadline.

Nothing of it decides about a task but the deadline, and that one only lets an attempt that
already holds the task hold it for longer. Crash points: what was not stored is lost, and
said again, or not.
"""

from __future__ import annotations

from collections.abc import Sequence

from queue_app.core.records import ProgressReport
from queue_app.sql import progress as rows


def note(notes: Sequence[ProgressReport]) -> None:
    """Store notes; one of an attempt that lost its task changes nothing."""
    extended = [item for item in notes if item.extend]
    if extended:  # first: it is what somebody else acts on
        rows.extend(extended)
    moved = [item for item in notes if item.progress is not None]
    if moved:
        rows.store_progress(moved)
    logged = [item for item in notes if item.lines is not None]
    if logged:
        rows.store_lines(logged)
