"""What the doctor and the metrics say of adaptive limits."""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Final

from queue_app import conf
from queue_app.adaptive.adapt import STEP_SECONDS
from queue_app.adaptive.sql import adaptive
from queue_app.core.reasons import Finding, ok, warn
from queue_app.core.sentence import duration
from queue_app.sql.database import clock

#: Limits that the doctor names, and steps that may be missing before it says so.
NAMED: Final = 5
MISSING: Final = 20
#: Causes that push a limit down.
_PUSHED_DOWN: Final = frozenset({"throttle", "failures", "probe", "slow"})


def check_adaptive_limits() -> Iterator[Finding]:
    """Report adaptive limits that no scheduler steps, and those that are pushed down to their least value."""
    limits, now = adaptive(), clock()
    oldest = now - timedelta(seconds=MISSING * STEP_SECONDS)
    late = [each for each in limits if each.stepped_at < oldest]
    low = [each for each in limits if each not in late and each.value <= each.least and each.cause in _PUSHED_DOWN]
    for each in late[:NAMED]:
        ago = duration((now - each.stepped_at).total_seconds())
        message = f"{each.label} keeps its last value, {each.value}: it was judged {ago} ago"
        yield warn("adaptive limits", message, "A scheduler judges it every 3 s: start one, or read its log.")
    for each in low[:NAMED]:
        message = f"{each.label} is at its least, {each.value}. {each.reason}"
        yield warn("adaptive limits", message, "Look at what its tasks use: the limit rises again by itself.")
    if more := len(late[NAMED:]) + len(low[NAMED:]):
        yield warn("adaptive limits", f"{more:,} more are not judged or at their least", "See the limits in the admin.")
    if limits and not (late or low):
        values = ", ".join(f"{each.label} {each.value}" for each in limits[:NAMED])
        yield ok("adaptive limits", f"{len(limits):,} adapt themselves, now {values}")


def metrics() -> dict[str, Mapping[tuple[str, ...], float]]:
    """Return the value of each limit, and its run times as multiples of their baseline."""
    limits = {(found.scope, found.name): found for found in adaptive()[: conf.get().metrics.max_queues]}
    return {
        "limit_value": {labels: found.value for labels, found in limits.items()},
        "limit_run_time_ratio": {labels: found.ratio for labels, found in limits.items() if found.ratio is not None},
    }
