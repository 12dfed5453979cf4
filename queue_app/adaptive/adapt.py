"""Step adaptive limits: measure, decide (``algorithm``), write the row, copy the limit to the index.

The scheduler calls ``adapt_limits`` every few seconds. A step locks the row of its limit, so that it and an edit by
staff follow each other, and a second scheduler finds that the step was done.

Crash points: before the commit nothing has changed; after it, the reconciler copies the limit to the index. While no
scheduler runs, the last value stays in force.
"""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db.models import QuerySet, Value
from django.db.models.functions import Least

from queue_app.adaptive import sql as rows
from queue_app.adaptive.algorithm import AdaptiveState, Bounds, Measurement, begin, step
from queue_app.adaptive.probes import load_of
from queue_app.core.events import EventName, Occasion, Run
from queue_app.core.limits import Gate, Scope
from queue_app.core.sentence import as_json, joined
from queue_app.models import Limit, LimitStep, Queue, RuntimeSettings
from queue_app.models.limits import HAS_OWN
from queue_app.services.control.queues import copy_global_limits, copy_limit, copy_queue_limits
from queue_app.services.notify.index import push_on_commit
from queue_app.sql.database import alias, atomic, clock
from queue_app.sql.stats import Active, active

#: Interval of the steps of one limit.
STEP_SECONDS: Final = 3.0
#: Seconds after which a call leaves the other limits to the next one, as the scheduler has other jobs.
BUDGET_SECONDS: Final = 1.0
#: A row of the history covers at most this time.
ROW: Final = timedelta(minutes=1)
REASON_LENGTH: Final = 300

type Row = Queue | Limit | RuntimeSettings


#: The limit that the next call begins with: [number in the list].
_first: Final = [0]


def adapt_limits() -> int:
    """Step the adaptive limits whose last step is some seconds ago; return how many values changed.

    A call stops after ``BUDGET_SECONDS``, and the next one continues: 1000 limits are stepped less often.
    """
    changed, executing, began = 0, None, time.monotonic()
    loads: dict[str, tuple[float | None, str]] = {"": (None, "")}
    limits = list(_adaptive())
    place = _first[0] % max(1, len(limits))
    for done, (model, pk, probe) in enumerate([*limits[place:], *limits[:place]]):
        if done and time.monotonic() - began > BUDGET_SECONDS:
            _first[0] = place + done
            break
        if probe not in loads:
            loads[probe] = load_of(probe)
        executing = active() if executing is None else executing
        with atomic():
            row = _rows(model).select_for_update().filter(pk=pk).exclude(adaptive="").first()
            changed += row is not None and _step(row, executing, *loads[probe])
    return changed


def _adaptive() -> Iterator[tuple[type[Row], Any, str]]:
    for model in (RuntimeSettings, Queue, Limit):
        found = _rows(model).exclude(adaptive="").order_by("pk").values_list("pk", "probe")
        yield from ((model, pk, probe) for pk, probe in found)


def _rows(model: type[Row]) -> QuerySet[Any]:
    return model._default_manager.using(alias())  # noqa: SLF001 - documented by Django


def _running(gate: Gate, executing: list[Active]) -> int:
    """Return how many tasks hold slots; for a family of keys, of its fullest key without an own limit."""
    found: Counter[str] = Counter()
    family = f"{gate.name}:" if gate.scope == Scope.KEY and ":" not in gate.name else ""
    for each in executing:
        if gate.scope == Scope.KEY:
            if each.key == gate.name or (family and each.key.startswith(family)):
                found[each.key] += each.tasks
        elif not gate.name or gate.name == (each.queue if gate.scope == Scope.QUEUE else each.task_type):
            found[""] += each.tasks
    if len(found) > 1:
        for name in (
            _rows(Limit).filter(HAS_OWN, scope=Scope.KEY, name__startswith=family).values_list("name", flat=True)
        ):
            found.pop(name, None)
    return max(found.values(), default=0)


def _step(row: Any, executing: list[Active], load: float | None, problem: str) -> bool:
    """Step one limit; return whether its value changed."""
    gate, now = row.gate, clock()
    bounds = Bounds(least=row.min_concurrent or 1, most=row.max_concurrent)
    steps = LimitStep.objects.using(alias()).filter(gate=gate.index_name)
    last = steps.order_by("-at", "-id").first()
    if last is None or row.current_concurrent is None:  # it was fixed until now, or its history was purged
        last, state, stored = None, begin(bounds, now.timestamp(), row.current_concurrent), {}
    elif last.stepped_at - now > timedelta(seconds=STEP_SECONDS):  # the clock was set back
        state = AdaptiveState.load(last.state).moved((now - last.stepped_at).total_seconds())
        stored, last.at, last.stepped_at = last.state, min(last.at, now), now
        steps.filter(stepped_at__gt=now).update(at=Least("at", Value(now)), stepped_at=now)
    elif now - last.stepped_at < timedelta(seconds=STEP_SECONDS / 2):
        return False
    else:
        stored = last.state
        state = AdaptiveState.load(stored)
    seen = rows.activity(
        gate.scope,
        gate.name,
        by=row.varies_by,
        since=last.stepped_at if last else now,
        changed=datetime.fromtimestamp(state.changed_at, UTC),
        after=stored.get("attempt"),
    )
    until = seen.throttled_until.isoformat() if seen.throttled_until else ""
    running = _running(gate, executing)
    after = state if last is None else step(
        state,
        bounds,
        Measurement(
            now=now.timestamp(),
            running=running,
            samples=seen.samples,
            ended=seen.completed + seen.failures,
            failures=seen.failures,
            throttled=until not in ("", stored.get("throttled")),
            load=load,
        ),
    )  # fmt: skip
    value = after.value(bounds)
    if problem:
        after = replace(after, reason=joined(after.reason, problem))
    _record(last, gate, now, after, seen, value=value, running=running, until=until)
    if value == row.current_concurrent:
        return False
    _rows(type(row)).filter(pk=row.pk).update(current_concurrent=value)
    _copy(row)
    _publish(gate, row.current_concurrent, value, after.reason)
    return True


def _record(  # noqa: PLR0913 - what the history shows
    last: LimitStep | None,
    gate: Gate,
    now: datetime,
    state: AdaptiveState,
    seen: rows.GateActivity,
    *,
    value: int,
    running: int,
    until: str,
) -> None:
    """Write the step to the newest row of the history, or to a new one when the value changed or a minute passed."""
    if last is None or last.value != value or now - last.at >= ROW:
        last = LimitStep(gate=gate.index_name, at=now, value=value, state={"why": as_json(state.reason)})
    middles = {kind: sample.p50 for kind, sample in seen.samples.items()}
    last.stepped_at, last.running, last.ratio = now, running, state.ratio
    last.run_p50 = next(iter(middles.values()), None)  # of the most frequent kind
    last.failures += seen.failures
    last.cause, last.reason = state.cause, state.reason[:REASON_LENGTH]
    last.since = datetime.fromtimestamp(state.since, UTC)
    why = last.state.get("why", "")  # why it got this value; ``reason`` says why it has it now
    last.state = state.dump() | {"attempt": seen.last_attempt, "throttled": until, "why": why}
    last.save(using=alias())


def _copy(row: Row) -> None:
    if isinstance(row, RuntimeSettings):
        copy_global_limits()
    elif isinstance(row, Queue):
        copy_queue_limits(row.name)
    else:
        copy_limit(row)


def _publish(gate: Gate, before: int | None, after: int, reason: str) -> None:
    details = ("scope", gate.scope, "name", gate.name, "from", str(before or ""), "to", str(after), "reason", reason)
    push_on_commit((), events=[Run(Occasion(EventName.LIMIT_ADAPTED.value, "", "", "", "", "", "", "", details), [])])
