"""Findings about pauses: who paused what, since when and why, and how many tasks wait for it."""

from collections import Counter
from collections.abc import Iterator, Sequence

from django.utils import timezone

from queue_app.core.finding import Finding, warn
from queue_app.core.lanes import parse_lane
from queue_app.core.limit_values import Scope
from queue_app.index import Index
from queue_app.models import Limit, Queue, RuntimeSettings


def finding(what: str, option: str, row: Queue | Limit | RuntimeSettings, waiting: int | None = None) -> Finding:
    """Return the finding about a pause; ``option`` names it to ``taskqueue resume``."""
    said = f"{what} is paused{f' by {row.paused_by}' if row.paused_by else ''}"
    if row.paused_at:
        said += f" since {timezone.localtime(row.paused_at):%Y-%m-%d %H:%M %Z}"
    if row.resume_at:
        said += f", until {timezone.localtime(row.resume_at):%Y-%m-%d %H:%M %Z}"
    if waiting is not None:
        said += f", and holds {count_tasks(waiting)}"
    return warn("queues", said, f"Run `taskqueue resume {option}` to resume. {row.paused_reason}".strip())


def of_types_and_keys(index: Index, queues: Sequence[str]) -> Iterator[Finding]:
    """Yield the paused task types that hold tasks in these queues, and the paused keys."""
    paused = list(Limit.objects.filter(paused=True))
    if not any(limit.scope == Scope.TYPE for limit in paused):
        queues = []
    lanes = {lane: size for queue in queues for lane, size in index.lane_sizes(queue)}  # a lane may come twice
    waiting: Counter[str] = Counter()
    for lane, size in lanes.items():
        waiting[parse_lane(lane).task_type] += size
    for limit in paused:
        if limit.scope == Scope.KEY:
            yield finding(f"the key {limit.name}", f"--key {limit.name}", limit)
        elif waiting[limit.name]:
            yield finding(f"the task type {limit.name}", f"--type {limit.name}", limit, waiting[limit.name])


def count_tasks(count: int) -> str:
    """Return a number of tasks as text."""
    return "1 task" if count == 1 else f"{count:,} tasks"
