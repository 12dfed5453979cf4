"""The chart of an adaptive limit: its value, what ran, run times and failures, as shapes of an SVG."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.utils import timezone

from queue_app.adaptive.read import SHOWN, AdaptiveNow, history, now_of, reason_of
from queue_app.dashboard.labels import translate
from queue_app.models import Limit, LimitStep, Queue, RuntimeSettings

WIDTH, HEIGHT = 600, 120
#: Number of changes in the table below the chart.
LISTED: Final = 12


@dataclass(frozen=True, slots=True)
class Chart:
    """Points of the lines, and what the axis means."""

    limit: str
    running: str
    run_times: str
    failures: list[float]  # x of the marks
    most: int
    slowest: float  # seconds
    width: int = WIDTH
    height: int = HEIGHT


def adaptive_context(row: Queue | Limit | RuntimeSettings) -> dict[str, Any]:
    """Return the present value of an adaptive limit, its chart and its last changes; empty for a fixed one."""
    now = now_of(row)
    if now is None:
        return {"adaptive": None}
    at = timezone.now()
    steps = history(row, at)
    changes = [
        step
        for step, before in zip(steps, [None, *steps], strict=False)
        if before is None or before.value != step.value
    ]
    listed = [(step, translate(reason_of(step, "why"))) for step in changes[: -LISTED - 1 : -1]]
    return {
        "adaptive": now,
        "adaptive_words": translate(now.words()),
        "chart": chart(steps, now, at),
        "changes": listed,
    }


def chart(steps: Sequence[LimitStep], now: AdaptiveNow, at: datetime) -> Chart | None:
    """Return the chart of the last hour; ``None`` without steps."""
    if not steps:
        return None
    begin = at - SHOWN
    most = max([now.value, *(max(step.value, step.running) for step in steps)])
    slowest = max((step.run_p50 or 0 for step in steps), default=0.0)

    def x(when: datetime) -> float:
        return round(WIDTH * max(0.0, (when - begin) / SHOWN), 1)

    def y(value: float, top: float) -> float:
        return round(HEIGHT * (1 - value / top), 1) if top else HEIGHT

    def line(values: list[tuple[LimitStep, float]], top: float) -> str:
        return " ".join(f"{x(end)},{y(value, top)}" for step, value in values for end in (step.at, step.stepped_at))

    return Chart(
        limit=line([(step, step.value) for step in steps], most),
        running=line([(step, step.running) for step in steps], most),
        run_times=line([(step, step.run_p50) for step in steps if step.run_p50 is not None], slowest),
        failures=[x(step.stepped_at) for step in steps if step.failures],
        most=most,
        slowest=slowest,
    )
