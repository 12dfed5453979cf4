"""Change a plan as a scenario says: limits, bands, workers, pauses, further load."""

import random
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Final, NamedTuple

from queue_app.core.limits import EVERYTHING, Limits, gate_of
from queue_app.core.priorities import Band
from queue_app.exceptions import InvalidTaskData
from queue_app.what_if.plan import MAX_TASKS, SECOND, Change, Crew, Load, Plan, TaskKind

_OF_LIMITS: Final = {field.name for field in fields(Limits)} - {"throttled_until"}
_OF_QUEUES: Final = {"max_concurrent_per_user", "fair_by", "shares", "by_arrival"}
_PARTS: Final = ("window", "limits", "bands", "priorities", "workers", "without_workers", "pauses", "load")
_OF_LOAD: Final = {
    "task_type", "queue", "priority", "user", "key", "weight", "capabilities", "count", "at", "over", "runs"
}  # fmt: skip
_OF_WORKERS: Final = {"count", "slots", "queues", "task_types", "capabilities", "at", "until"}
_DURATION: Final = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?", re.ASCII)
MAX_COUNT: Final = 1_000_000
MAX_SLOTS: Final = 100_000
MAX_TEXT: Final = 255
MAX_DEPTH: Final = 5
MAX_SECONDS: Final = 366 * 86_400
_WHOLE: Final = {"max_concurrent", "max_concurrent_per_user", "rate_count", "rate_burst", "count", "slots", "weight"}


def check(scenario: Mapping[str, Any]) -> None:
    """Raise ``InvalidTaskData`` for parts that no scenario has."""
    _check_texts(scenario, "scenario")
    for name in scenario:
        if name not in _PARTS:
            raise InvalidTaskData(name, f"A scenario has no part {name!r:.60}. It may have: {', '.join(_PARTS)}.")


def _check_texts(value: Any, part: str, depth: int = 0) -> None:
    """Raise ``InvalidTaskData`` for values that no scenario has: dates, long or invisible texts, deep tables."""
    is_visible = not isinstance(value, str) or all(unicodedata.category(each)[0] != "C" for each in value)
    if isinstance(value, str) and not (is_visible and len(value) <= MAX_TEXT):
        raise InvalidTaskData(part, f"{part}: a text has at most {MAX_TEXT} characters, none of them invisible.")
    if depth > MAX_DEPTH or not isinstance(value, str | int | float | Mapping | list | None):
        raise InvalidTaskData(part, f"{part} must hold tables, lists, texts and numbers, not {value!r:.60}.")
    if isinstance(value, Mapping | list):
        for each in (part for item in value.items() for part in item) if isinstance(value, Mapping) else value:
            _check_texts(each, part, depth + 1)


def changed(plan: Plan, scenario: Mapping[str, Any], *, with_load: bool = True) -> Plan:
    """Return the plan with the changes of a scenario; raise ``InvalidTaskData`` for what makes no sense.

    Without ``with_load`` the load is checked, and its tasks are not made.
    """
    check(scenario)
    limits = dict(plan.limits)
    for name, values in _table(scenario, "limits").items():
        gate = gate_named(name)
        limits[gate] = _limits(name, limits.get(gate, Limits()), values)
    thresholds = dict(plan.thresholds)
    for name, values in _table(scenario, "bands").items():
        thresholds[_band(name)] = _number(values, "promote_after_seconds", None)
    load = _load(plan, scenario, with_load=with_load)
    crews = () if scenario.get("without_workers") else plan.crews
    types = sorted({kind.task_type for kind in load.kinds})
    crews = (*crews, *(_crew(each, plan, types) for each in _list(scenario, "workers")))
    changes = [change for each in _list(scenario, "pauses") for change in _pause(each, plan, limits)]
    return replace(
        plan, load=load, limits=limits, thresholds=thresholds, crews=crews, changes=(*plan.changes, *changes)
    )


def empty(begin: int, seconds: float | str) -> Plan:
    """Return a plan without tasks and workers, for a scenario that brings its own."""
    lasts = round(_seconds({"seconds": seconds}, "seconds", 0.0) * SECOND)
    if not lasts:
        raise InvalidTaskData("seconds", "seconds, the length of the scenario, must be above 0.")
    return Plan(load=Load(), crews=(), begin=begin, end=begin + lasts)


def idle_names(plan: Plan, scenario: Mapping[str, Any]) -> list[str]:
    """Return the limits, and the task types under priorities, that no task of the plan has: perhaps typing errors."""
    kinds = plan.load.kinds
    names = [*_table(scenario, "limits"), *(str(each.get("limit", "everything")) for each in _list(scenario, "pauses"))]
    names += [f"type:{name}" for name in scenario.get("priorities", {})]
    return [name for name in names if not any(kind.passes(gate_named(name)) for kind in kinds)]


def gates_of(scenario: Mapping[str, Any]) -> dict[str, str]:
    """Return the gates of the limits that a scenario changes."""
    return {name: gate_named(name) for name in _table(scenario, "limits")}


def gate_named(name: str) -> str:
    """Return the gate of ``everything``, ``queue:mail``, ``type:shop.tasks.export`` or ``key:customer``."""
    scope, _, rest = name.partition(":")
    if name == "everything":
        return EVERYTHING
    if scope not in ("queue", "type", "key") or not rest:
        text = f"{name!r:.80} names no limit: write everything, queue:NAME, type:NAME or key:NAME."
        raise InvalidTaskData("limits", text)
    return gate_of(scope, rest)


def _limits(name: str, known: Limits, values: Mapping[str, Any]) -> Limits:
    known_fields = _OF_LIMITS if name.startswith("queue:") else _OF_LIMITS - _OF_QUEUES
    known_fields = {"max_concurrent", "paused"} if name == "everything" else known_fields
    for field, value in values.items():
        if field not in known_fields:
            options = ", ".join(sorted(known_fields))
            raise InvalidTaskData("limits", f"{name} has no {field!r:.60}. It may have: {options}.")
        if field in {"paused", "by_arrival"}:
            is_right = type(value) is bool
        elif field == "fair_by":
            is_right = value in ("user", "key", None)
        elif field == "shares":
            is_right = isinstance(value, Mapping) and all(_number(value, each, None) for each in value)
        else:
            is_right = value is None or bool(_number(values, field, None))
        if not is_right:
            raise InvalidTaskData("limits", f"{name}: {field} cannot be {value!r:.60}.")
    found = replace(known, **values)
    if (found.rate_count is None) != (found.rate_seconds is None):
        raise InvalidTaskData("limits", f"{name}: a rate needs rate_count and rate_seconds.")
    if found.fair_by and found.by_arrival:
        raise InvalidTaskData("limits", f"{name}: give fair_by or by_arrival, not both.")
    return found


def _load(plan: Plan, scenario: Mapping[str, Any], *, with_load: bool) -> Load:
    """Return the load with other priorities, and with further tasks; check all of it before making any task."""
    priorities = scenario.get("priorities", {})
    if not isinstance(priorities, Mapping):
        raise InvalidTaskData("priorities", "priorities must hold a band for each task type.")
    bands = {name: _band(band) for name, band in priorities.items()}
    further = [_further(each, plan.begin) for each in _list(scenario, "load")]
    before = plan.load
    if (total := len(before) + sum(each.tasks for each in further)) > MAX_TASKS:
        raise InvalidTaskData("load", f"A simulation takes at most {MAX_TASKS:,} tasks, not {total:,}.")
    if not (with_load and (bands or further)):
        return before
    load, kinds = Load(), [_moved(kind, bands.get(kind.task_type)) for kind in before.kinds]
    load.turnaround = before.turnaround
    for place, queued_at, runs, waited in zip(before.kind, before.queued_at, before.runs, before.waited, strict=True):
        load.add(kinds[place], queued_at, runs, waited)
    chance = random.Random(len(before))  # noqa: S311 - repeatable, not secret
    for each in further:
        for _ in range(each.tasks):
            load.add(each.kind, each.at + round(chance.random() * each.over * SECOND), each.runs)
    return load


def _moved(kind: TaskKind, band: Band | None) -> TaskKind:
    return kind if band is None else kind._replace(band=band.value, band_before=kind.band)


class _Further(NamedTuple):
    """Tasks that a scenario adds: queued from ``at`` on, within ``over`` seconds."""

    kind: TaskKind
    tasks: int
    at: int
    over: float
    runs: int


def _further(each: Mapping[str, Any], begin: int) -> _Further:
    _known(each, _OF_LOAD, "load")
    kind = TaskKind(
        str(each.get("queue", "default")),
        str(each.get("task_type", "simulated")),
        _band(each.get("priority", "normal")),
        _names(each, "capabilities"),
        str(each.get("user", "")),
        str(each.get("key", "")),
        int(_number(each, "weight", 1)),
    )
    return _Further(
        kind,
        tasks=int(_number(each, "count", 1, most=MAX_COUNT)),
        at=begin + round(_seconds(each, "at", 0.0) * SECOND),
        over=_seconds(each, "over", 0.0),
        runs=round(_seconds(each, "runs", 1.0) * SECOND),
    )


def _crew(each: Mapping[str, Any], plan: Plan, types: Sequence[str]) -> Crew:
    _known(each, _OF_WORKERS, "workers")
    slots = int(_number(each, "count", 1, most=MAX_SLOTS)) * int(_number(each, "slots", 1, most=MAX_SLOTS))
    if slots > MAX_SLOTS:
        raise InvalidTaskData("workers", f"workers may have at most {MAX_SLOTS} slots, not {slots}.")
    changes = [(plan.begin + round(_seconds(each, "at", 0.0) * SECOND), slots)]
    if "until" in each:
        changes.append((plan.begin + round(_seconds(each, "until", 0.0) * SECOND), -slots))
        if changes[1] <= changes[0]:
            raise InvalidTaskData("until", "workers: until must come after at.")
    names = [_names(each, part) for part in ("queues", "task_types", "capabilities")]
    return Crew(names[0], names[1] or tuple(types), names[2], tuple(changes))


def _pause(each: Mapping[str, Any], plan: Plan, limits: Mapping[str, Limits]) -> Iterator[Change]:
    _known(each, {"limit", "at", "lasts"}, "pauses")
    gate = gate_named(str(each.get("limit", "everything")))
    at = plan.begin + round(_seconds(each, "at", 0.0) * SECOND)
    known = limits.get(gate)
    yield Change(at, gate, replace(known or Limits(), paused=True))
    if "lasts" in each:
        yield Change(at + round(_seconds(each, "lasts", 0.0) * SECOND), gate, known)


def _table(scenario: Mapping[str, Any], part: str) -> Mapping[str, Mapping[str, Any]]:
    found = scenario.get(part, {})
    if not isinstance(found, Mapping) or not all(isinstance(each, Mapping) for each in found.values()):
        raise InvalidTaskData(part, f"{part} must hold a table for each name.")
    return found


def _list(scenario: Mapping[str, Any], part: str) -> Sequence[Mapping[str, Any]]:
    found = scenario.get(part, [])
    if not isinstance(found, Sequence) or not all(isinstance(each, Mapping) for each in found):
        raise InvalidTaskData(part, f"{part} must be a list of tables, as [[{part}]] in TOML.")
    return found


def _known(each: Mapping[str, Any], names: set[str], part: str) -> None:
    if unknown := sorted(set(each) - names):
        raise InvalidTaskData(part, f"{part} has no {unknown[0]!r:.60}. It may have: {', '.join(sorted(names))}.")


def _names(each: Mapping[str, Any], part: str) -> tuple[str, ...]:
    found = each.get(part, [])
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise InvalidTaskData(part, f"{part} must be a list of names, not {found!r:.60}.")
    return tuple(sorted(set(found)))


def _band(name: object) -> Band:
    found = {band.label: band for band in Band} | {"medium": Band.NORMAL}
    if name not in found:
        raise InvalidTaskData("bands", f"{name!r:.60} is no band: use {', '.join(band.label for band in Band)}.")
    return found[str(name)]


def _number(values: Mapping[str, Any], name: str, default: Any, most: float = 10**9) -> Any:
    value = values.get(name, default)
    if value is None and default is None:
        return None
    kinds = (int,) if name in _WHOLE else (int, float)
    if type(value) not in kinds or not 0 < value <= most:
        kind = "whole number" if name in _WHOLE else "number"
        raise InvalidTaskData(name, f"{name} must be a {kind} above 0 and at most {most:g}, not {value!r:.60}.")
    return value


def _seconds(values: Mapping[str, Any], name: str, default: float) -> float:
    """Return seconds, also of a text such as 90s or 1h30m; times count from the beginning of the window."""
    value = values.get(name, default)
    if isinstance(value, str) and (found := _DURATION.fullmatch(value)) and value:
        parts = zip(found.groups(), (86_400, 3600, 60, 1), strict=True)
        value = sum(float(part or 0) * unit for part, unit in parts)
    if type(value) not in (int, float) or not 0 <= value <= MAX_SECONDS:
        raise InvalidTaskData(
            name, f"{name} must be a time up to 366d: seconds, or such as 90s or 1h30m, not {value!r:.60}."
        )
    return float(value)
