"""Let the declared schedules tick in a test, and assert what is declared. Only declarations count, not rows."""

from collections.abc import Collection
from datetime import datetime
from typing import Any, Final

from queue_app import registry
from queue_app.core.options import OF_ROWS
from queue_app.core.priorities import django_priority, parse_band
from queue_app.core.recurrence import Recurrence
from queue_app.registry import AnyTask
from queue_app.schedules import Declaration, declared
from queue_app.tasks import AnyResult
from queue_app.testing.clock import current

_WHEN: Final = ("cron", "every", "anchor", "zone", "starts_at", "ends_at")


def run_schedules(*names: str) -> list[AnyResult]:
    """Enqueue a task for each tick of the declared (or named) schedules since the last call; return their results.

    Within ``freeze`` only: the first call looks back to the start of the block. Raises ``LookupError`` for a name that
    is not declared, and ``RuntimeError`` outside of ``freeze``.
    """
    clock = current()
    if clock is None:
        raise RuntimeError("run_schedules() needs a clock to go by: call it in a `with freeze() as clock:` block.")
    known = declared()
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise LookupError(f"No schedule {unknown[0]!r} is declared; there are {', '.join(sorted(known)) or 'none'}.")
    ticks = [
        (instant, name) for name in names or known for instant in _between(known[name], clock.ticked_until, clock.now)
    ]
    clock.ticked_until = clock.now
    return [_enqueue(known[name], instant) for instant, name in sorted(ticks)]


def assert_scheduled(task: AnyTask, *, name: str | None = None, **values: Any) -> Declaration:
    """Assert that the code declares a schedule of ``task`` with these values (``cron``, ``zone``, ``queue``, …)."""
    of_task = [each for each in declared().values() if each.values.get("task_type") == registry.type_of(task)]
    for each in of_task:
        if name in (None, each.name) and all(each.values.get(field) == value for field, value in values.items()):
            return each
    wanted = ", ".join(f"{field}={value!r}" for field, value in values.items()) or "any time"
    listed = "".join(f"\n  {each.name}: {dict(each.values)}" for each in of_task) or "\n  none"
    raise AssertionError(f"Expected a schedule of {registry.type_of(task)} with {wanted}. Its schedules:{listed}")


def _between(declaration: Declaration, start: datetime, end: datetime) -> Collection[datetime]:
    values = declaration.values
    given = {field: values[field] for field in _WHEN if field in values}
    recurrence = Recurrence(instants=tuple(values.get("instants", ())), **given)
    recurrence.check()
    found = []
    for instant in recurrence.instants_after(start):
        if instant > end:
            break
        found.append(instant)
    return found


def _enqueue(declaration: Declaration, instant: datetime) -> AnyResult:
    values = declaration.values
    options = {field: values[field] for field in OF_ROWS if field in values}
    if "priority" in values:
        options["priority"] = django_priority(parse_band(values["priority"]))
    if "queue" in values:
        options["queue_name"] = values["queue"]
    parameters = dict(values.get("parameters", {}))
    if values.get("instant_parameter"):
        parameters[values["instant_parameter"]] = instant.isoformat()
    return registry.get(values["task_type"]).using(**options).enqueue(*values.get("args", ()), **parameters)
