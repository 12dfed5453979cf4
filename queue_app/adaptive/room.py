"""What adaptive limits add to the kernel."""

from typing import Final

from queue_app.core.rooms import Room

ROOM: Final = Room(
    "adaptive",
    jobs=("jobs.jobs",),
    limit_parts=("chart.adaptive_context",),
    limit_values=("read.of_gate",),
    findings=("diagnose.check_adaptive_limits",),
    metrics=("diagnose.metrics",),
)
