"""Read the present value of adaptive limits, its reason, and its history."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.utils import timezone

from queue_app.core.limits import Scope, names_of
from queue_app.core.sentence import from_json, sentence
from queue_app.models import Limit, LimitStep, Queue, RuntimeSettings
from queue_app.sql.database import alias

#: Time and rows of the history on the page of a limit.
SHOWN: Final = timedelta(hours=1)
MAX_ROWS: Final = 600


@dataclass(frozen=True, slots=True)
class AdaptiveNow:
    """The value in force of an adaptive limit, its bounds and algorithm, and why it is that."""

    algorithm: str
    value: int
    least: int
    most: int
    reason: str
    since: datetime | None

    def words(self) -> str:
        if self.since is None:
            return sentence(
                "%(value)s of at most %(most)s just now: no scheduler has judged it yet.",
                value=self.value, most=self.most,
            )  # fmt: skip
        return sentence(
            "%(value)s of at most %(most)s just now, since %(time)s. %(reason)s",
            value=self.value, most=self.most, time=f"{timezone.localtime(self.since):%H:%M}", reason=self.reason,
        )  # fmt: skip


def now_of(row: Queue | Limit | RuntimeSettings) -> AdaptiveNow | None:
    """Return the present value of a limit; ``None`` for a fixed one."""
    if not row.adaptive or row.cap is None or row.max_concurrent is None:
        return None
    steps = LimitStep.objects.using(alias()).filter(gate=row.gate.index_name)
    last = steps.order_by("-at", "-id").first() if row.current_concurrent is not None else None
    reason, since = (reason_of(last), last.since) if last else ("", None)
    return AdaptiveNow(row.adaptive, row.cap, row.min_concurrent or 1, row.max_concurrent, reason, since)


def reason_of(step: LimitStep, name: str = "reason") -> str:
    """Return why a limit had its value, as a sentence; with ``why``, why it got this value."""
    return from_json(step.state.get(name) or step.state.get("reason", step.reason))


def of_gate(scope: str, name: str) -> AdaptiveNow | None:
    """Return the present value of the limit that holds at a gate, of a key also that of its family."""
    if scope == "everything":
        found: Any = RuntimeSettings.objects.using(alias()).filter(pk=1).first()
    elif scope == Scope.QUEUE:
        found = Queue.objects.using(alias()).filter(pk=name).first()
    else:
        limits = Limit.objects.using(alias()).filter(scope=scope, name__in=names_of(scope, name))
        found = max(limits.filter(max_concurrent__isnull=False), key=lambda limit: len(limit.name), default=None)
    return now_of(found) if found is not None else None


def history(row: Queue | Limit | RuntimeSettings, before: datetime) -> list[LimitStep]:
    """Return the steps of the last hour, oldest first."""
    steps = LimitStep.objects.using(alias()).filter(gate=row.gate.index_name, stepped_at__gte=before - SHOWN)
    return list(steps.order_by("-at", "-id")[:MAX_ROWS])[::-1]
