"""Why a task is not running: its reasons in order, as text and as data."""

import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from queue_app.core.states import predicate


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason, as a sentence and as data.

    If ``blocks`` is true, no worker gets the task, however idle and able; otherwise the reason only describes the
    task's place. ``until``: when the reason ends, if time alone ends it.
    """

    code: str
    text: str
    blocks: bool = True
    until: datetime | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Explanation:
    """All reasons of one task, the most decisive first."""

    task_id: uuid.UUID
    status: str
    reasons: tuple[Reason, ...]

    @property
    def blocking(self) -> tuple[Reason, ...]:
        """The reasons that keep an idle, able worker from getting the task."""
        return tuple(reason for reason in self.reasons if reason.blocks)

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes, in order."""
        return tuple(reason.code for reason in self.reasons)

    @property
    def next_start(self) -> datetime | None:
        """Earliest start time, set when the task only waits for time (a delay or a rate limit)."""
        times = [reason.until for reason in self.blocking]
        known = [at for at in times if at is not None]
        return max(known) if known and len(known) == len(times) else None

    def lines(self) -> list[str]:
        """Return the reasons as lines of text."""
        first = f"Task {self.task_id} {predicate(self.status)}."
        return [first, *(f"{'-' if reason.blocks else ' '} {reason.text}" for reason in self.reasons)]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data; ids and times are not yet text."""
        return {
            "task_id": self.task_id,
            "status": self.status,
            "blocked": bool(self.blocking),
            "next_start": self.next_start,
            "reasons": [asdict(reason) for reason in self.reasons],
        }
