"""Why a task is not running: its reasons in order, as text and as data; and the phrases that sentences share."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from queue_app.core.sentence import listed, sentence
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


def status_name(status: str) -> str:
    """Return the name of a state for people; ``dashboard.translation`` has the texts."""
    return sentence(status.replace("_", " "))


def subject(scope: str, name: str) -> str:
    """Return what a limit or a pause is about."""
    match scope:
        case "everything":
            return sentence("Everything")
        case "queue":
            return sentence("The queue %(name)s", name=name)
        case "type":
            return sentence("The task type %(name)s", name=name)
        case "key":
            return sentence("The key %(name)s", name=name)
    return sentence("The user %(name)s in this queue", name=name)


def by(person: str) -> str:
    """Return who did it, to be put behind a verb; empty if unknown."""
    return sentence(" by %(by)s", by=person) if person else ""


def because(reason: str) -> str:
    """Return the end of a sentence, with the reason that a person gave."""
    return f": {reason.rstrip('.')}." if reason else "."


def at_limit(what: str, used: int, most: int) -> str:
    """Return that a limit is reached."""
    return sentence("%(what)s is at its limit: %(used)s of at most %(most)s run.", what=what, used=used, most=most)


def all_of(parts: Sequence[str]) -> str:
    """Return texts with an "and" before the last one."""
    return sentence("%(first)s and %(last)s", first=listed(parts[:-1]), last=parts[-1]) if len(parts) > 1 else parts[0]
