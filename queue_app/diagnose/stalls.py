"""The stalls that the watchdog knows, in the row of its job: other processes and the next leader read them there."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from django.utils import timezone

from queue_app.core.sentence import as_json, from_json
from queue_app.core.stall import CHECK_IS_OLD, WATCHDOG, Stall, StallKind
from queue_app.models import MaintenanceJob
from queue_app.sql.database import alias


@dataclass(frozen=True, slots=True)
class Watched:
    """The last record of the watchdog: the stalls, and the seconds since then (``None``: never)."""

    stalls: tuple[Stall, ...] = ()
    age: float | None = None

    @property
    def is_running(self) -> bool:
        return self.age is not None and self.age <= CHECK_IS_OLD


def read() -> Watched:
    """Return what the watchdog wrote last."""
    row = MaintenanceJob.objects.using(alias()).filter(name=WATCHDOG).first()
    if row is None or row.succeeded_at is None:
        return Watched()
    age = max(0.0, (timezone.now() - row.succeeded_at).total_seconds())
    return Watched(stored(row), age)


def stored(row: MaintenanceJob) -> tuple[Stall, ...]:
    """Return the stalls in the row of a job; only that of the watchdog has some."""
    return tuple(map(_stall, row.progress.get("stalls", ())))


def _stall(known: Mapping[str, Any]) -> Stall:
    text, steps = from_json(known["text"]), from_json(known["steps"])
    return Stall(StallKind(known["kind"]), known["subject"], text, known["since"], steps)


def write(stalls: Sequence[Stall]) -> None:
    """Record a check, and the stalls that it found."""
    now = timezone.now()
    found = [asdict(stall) | {"text": as_json(stall.text), "steps": as_json(stall.steps)} for stall in stalls]
    progress = {"stalls": found}
    fields = {"started_at": now, "succeeded_at": now, "done": len(stalls), "progress": progress}
    MaintenanceJob.record(alias(), WATCHDOG, **fields, error="\n".join(stall.text for stall in stalls))
