"""Adapt the number of slots: ``runworker --concurrency auto``.

``step`` adds slots while all are in use, tasks wait, and CPU and memory are free. It removes slots when ready code
waits for the CPU or for Python's lock, or when memory runs short. It is a pure function: ``slot_watch`` measures.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from queue_app.exceptions import InvalidTaskData
from queue_app.workers.resources import cores

#: Demand for processor time as a share of the cores: above BUSY the worker adds no slots, above CROWDED it drops some.
BUSY, CROWDED = 0.9, 1.15
#: If ready code waits longer than this for Python's lock (s), fewer slots are tried. A thread that computes keeps the
#: lock for 5 ms.
TOO_LATE: Final = 0.012
#: Slots are added if this share of them is in use, and if tasks waited in this share of the samples.
FULL: Final = 0.9
SHORT: Final = 0.5
#: If more slots than this, relative to their number, are in use, the last reduction has not taken effect yet.
MANY: Final = 1.2
#: Factors by which one step adds and removes slots.
GROWTH, SHRINKAGE = 1.5, 0.8
#: A step pays if throughput changes by this power of the slots: 1.5 times the slots for 1.13 times the throughput.
PAYS: Final = 0.3
#: After a step, the worker settles until each slot has ended a task, for SETTLE_SECONDS at least. Then throughput is
#: measured until ENOUGH tasks have ended, for MEASURE_SECONDS at least. Each phase lasts LONGEST_SECONDS at most. With
#: fewer than LEAST_ENDED tasks the step is not judged.
SETTLE_SECONDS, MEASURE_SECONDS, LONGEST_SECONDS = 1.0, 2.0, 8.0
ENOUGH, LEAST_ENDED = 50, 10
#: Shares of the memory: slots are added up to the first, and removed above the second.
MEMORY_FULL, MEMORY_SHORT = 0.8, 0.88
#: Time until a step that did not pay is tried again (s); doubled each time, up to the second value.
FIRST_PAUSE, LONGEST_PAUSE = 30.0, 300.0
#: Default maximum of slots. A thread may hold a connection to PostgreSQL; a process needs memory of its own.
MOST: Final = {"threads": 50, "async": 500}
PROCESSES_PER_CORE: Final = 4
#: Numbers of slots that profiles name. Workers whose slots change often then share profiles. A task that is heavier
#: than the profile's number goes to another worker.
PROFILES: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


class SlotRange(NamedTuple):
    """The minimum and the maximum number of slots."""

    least: int
    most: int

    def clamp(self, slots: int) -> int:
        """Return the nearest number in the range."""
        return max(self.least, min(self.most, slots))


def parse_concurrency(text: str, pool: str) -> int | SlotRange:
    """Return a number, or the range of ``auto`` or ``auto:2-50``; raise ``InvalidTaskData``."""
    name, colon, numbers = text.strip().partition(":")
    if name.removeprefix("-").isdigit() and not colon:
        return int(name)
    least, dash, most = numbers.partition("-")
    if name != "auto" or (colon and not (dash and least.isdigit() and most.isdigit())):
        raise InvalidTaskData("concurrency", f"{text!r} is not a number, auto, or auto:LEAST-MOST such as auto:2-50.")
    if pool == "processes" and not Path("/proc/self/schedstat").exists():
        raise InvalidTaskData("concurrency", "auto with --pool processes needs Linux, to see waits for the CPU.")
    if colon:
        return SlotRange(int(least), int(most))
    return SlotRange(1, MOST.get(pool, PROCESSES_PER_CORE * math.ceil(cores())))


def profile_slots(slots: int) -> int:
    """Return the number of slots for the profile of a worker whose slots change."""
    return max(number for number in PROFILES if number <= max(1, slots))


class Seen(NamedTuple):
    """The measurements of one second."""

    used: float  # mean number of slots in use
    short: float  # share of the samples in which all slots were in use and more tasks may have waited
    wanted: float  # cores that the worker used; with processes, also the cores that they waited for
    late: float  # mean seconds that ready code waited for Python's lock
    ended: int = 0  # tasks that ended
    memory: float = 0.0  # share of the machine's or container's memory that is in use
    slot_memory: float = 0.0  # share of it that each used slot takes


@dataclass(frozen=True, slots=True)
class SlotState:
    """The number of slots, the step that led to it, and what has been seen since."""

    slots: int
    before: tuple[int, float] | None = None  # slots and tasks per second before the last step
    since: float = 0.0  # when the present phase began: settling, or measuring
    is_settled: bool = False
    seen: tuple[Seen, ...] = ()  # since then
    pause: float = FIRST_PAUSE
    no_more_until: float = 0.0
    no_fewer_until: float = 0.0
    reason: str = ""

    def to(self, slots: int, rate: float | None, now: float, reason: str) -> "SlotState":
        """Return the state with another number of slots; ``rate``: tasks per second until now, to judge the step."""
        before = None if rate is None else (self.slots, rate)
        return replace(self, slots=slots, before=before, since=now, is_settled=False, seen=(), reason=reason)


def step(state: SlotState, bounds: SlotRange, seen: Seen, cpus: float, now: float) -> SlotState:
    """Return the state after another second; ``cpus`` is the number of cores."""
    if seen.memory > MEMORY_SHORT and seen.slot_memory > 0 and seen.used <= MANY * state.slots:
        fewer = bounds.clamp(min(state.slots - 1, int(state.slots * SHRINKAGE)))
        return state.to(fewer, None, now, f"{seen.memory:.0%} of the memory is in use")
    state = replace(state, seen=(*state.seen, seen))
    lasted, ended = now - state.since, sum(one.ended for one in state.seen)
    if not state.is_settled:
        if (lasted >= SETTLE_SECONDS and ended >= state.slots) or lasted >= LONGEST_SECONDS:
            state = replace(state, is_settled=True, since=now, seen=())
        return state
    if (lasted < MEASURE_SECONDS or ended < ENOUGH) and lasted < LONGEST_SECONDS:
        return state
    rate = ended / lasted if ended >= LEAST_ENDED else None
    return _undone(state, rate, now) or _next(state, bounds, rate, cpus, now)


def _undone(state: SlotState, rate: float | None, now: float) -> SlotState | None:
    """Return the state before the last step, if that step did not pay; otherwise ``None``."""
    if state.before is None or rate is None:
        return None
    slots, earlier = state.before
    has_paid = math.log(rate / earlier) / math.log(state.slots / slots) > PAYS
    if has_paid == (state.slots > slots):
        return None
    until = {"no_more_until" if state.slots > slots else "no_fewer_until": now + state.pause}
    undone = replace(state, pause=min(LONGEST_PAUSE, 2 * state.pause), **until)  # type: ignore[arg-type]
    return undone.to(slots, None, now, f"{state.slots} slots did {rate / earlier:.2f} times as much")


def _next(state: SlotState, bounds: SlotRange, rate: float | None, cpus: float, now: float) -> SlotState:
    """Return the state with more or fewer slots where that may help; the same number otherwise."""
    used, short, wanted, late = (
        sum(values) / len(state.seen)
        for values in zip(*((one.used, one.short, one.wanted, one.late) for one in state.seen), strict=True)
    )
    last, slots = state.seen[-1], state.slots
    if (wanted > CROWDED * cpus or late > TOO_LATE) and now >= state.no_fewer_until and used <= MANY * slots:
        slots = bounds.clamp(min(slots - 1, int(slots * SHRINKAGE)))
        reason = f"it wants {wanted:.1f} of {cpus:.1f} cores, and ready code waits {late * 1000:.0f} ms"
    elif used >= FULL * slots and short >= SHORT and wanted < BUSY * cpus and now >= state.no_more_until:
        slots = int(slots * GROWTH) + 1
        if wanted > 0:
            slots = min(slots, math.ceil(state.slots * cpus / wanted))
        if last.slot_memory > 0:
            slots = min(slots, state.slots + max(0, int((MEMORY_FULL - last.memory) / last.slot_memory)))
        slots, reason = bounds.clamp(max(slots, state.slots)), "all slots are in use"
    if slots == state.slots:
        return replace(state, before=None, since=now, seen=())
    return state.to(slots, rate, now, reason)
