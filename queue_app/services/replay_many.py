"""Ask for a replay of many dead letters: an operation whose first ones go ahead alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from queue_app.models import Operation
from queue_app.models.operation import OperationKind
from queue_app.services.dead_letters import DeadLetterFilter
from queue_app.services.operations import Action, Options, start_operation

STOP_AFTER_FAILURES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions(Options):
    """How many are replayed, and how fast; when all of the first ones fail again, the others stay dead."""

    stop_after_failures: int = STOP_AFTER_FAILURES


def start_replay(
    wanted: DeadLetterFilter, options: ReplayOptions | None = None, *, by: str, reason: str = ""
) -> Operation:
    """Begin to replay the open dead letters that a filter means now, oldest first; see ``start_operation``.

    See ``dead_letters.preview`` for a dry run. Raises ``InvalidTaskData``.
    """
    replay = Action(kind=OperationKind.REPLAY)
    return start_operation(replay, wanted, options or ReplayOptions(), by=by, reason=reason)
