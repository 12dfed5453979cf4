"""Check of the workflows."""

from collections.abc import Iterator
from typing import Final

from queue_app.core.finding import Finding, ok, warn
from queue_app.sql import workflow_health as rows

#: Seconds for which a workflow may be held before it is reported; the alert rule has the same limit.
HELD_SECONDS: Final = 3600.0
#: Maximum number of workflows that a finding names.
NAMED: Final = 5


def check_workflows() -> Iterator[Finding]:
    """Report workflows that a failed task has held for an hour."""
    held = rows.held(NAMED, seconds=HELD_SECONDS)
    if not held:
        yield ok("workflows", "none has been held for an hour")
        return
    named = "; ".join(f"{each.name} {each.id} for {each.seconds:,.0f} s{_by(each)}" for each in held)
    yield warn(
        "workflows",
        f"{held[0].number:,} held for more than an hour: {named}",
        "Mend the cause, then run `manage.py taskqueue workflow retry ID`; or discard the dead letter in the admin.",
    )


def _by(held: rows.Held) -> str:
    return f" by {held.task} ({held.status.replace('_', ' ')})" if held.task else ""
