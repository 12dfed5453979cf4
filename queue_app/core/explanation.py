"""Why a task is not running: reasons in order, for people and for programs."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason, as a sentence and as facts.

    What ``blocks`` keeps a worker that is able and idle from being given the task; the others
    say where it stands. ``until`` is the instant at which the reason ends by itself, if time
    alone ends it.
    """

    code: str
    text: str
    blocks: bool = True
    until: datetime | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Explanation:
    """All reasons of one task, the most decisive first; ``next_start`` is before which it cannot start, if known."""

    task_id: uuid.UUID
    status: str
    reasons: tuple[Reason, ...]

    @property
    def blocking(self) -> tuple[Reason, ...]:
        """The reasons that keep an idle worker that is able to run it from getting it."""
        return tuple(reason for reason in self.reasons if reason.blocks)

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes, in order."""
        return tuple(reason.code for reason in self.reasons)

    @property
    def next_start(self) -> datetime | None:
        """The earliest start, when time alone is wanting; else ``None``."""
        times = [reason.until for reason in self.blocking]
        known = [at for at in times if at is not None]
        return max(known) if known and len(known) == len(times) else None

    def lines(self) -> Iterator[str]:
        """Yield the reasons as lines of text."""
        yield f"Task {self.task_id} is {self.status.replace('_', ' ')}."
        for reason in self.reasons:
            yield f"{'-' if reason.blocks else ' '} {reason.text}"

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON can hold it, but for ids and times."""
        return {
            "task_id": self.task_id,
            "status": self.status,
            "blocked": bool(self.blocking),
            "next_start": self.next_start,
            "reasons": [
                {
                    "code": reason.code,
                    "text": reason.text,
                    "blocks": reason.blocks,
                    "until": reason.until,
                    "details": dict(reason.details),
                }
                for reason in self.reasons
            ],
        }
