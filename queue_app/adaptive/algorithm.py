"""Adaptive limits: how many tasks may run at once, judged by how long they run and how often they fail.

``step`` decides the next value of one limit from the measurement of the last seconds. It is pure: state in, state out.
The limit is multiplied by the gradient baseline / run time, as in Netflix's concurrency-limits (``gradient2``) and
Envoy; run times count as multiples of their baseline (``ratio``). It begins with TCP's slow start. The baseline is
measured again as Envoy measures its minimum latency: for a moment, at a lower limit.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Self

from queue_app.core.sentence import as_json, from_json, joined, sentence

#: Share of the limit that must be in use for the limit to rise: one that does not bind says nothing.
FULL: Final = 0.9
#: Fewer tasks than this, or than the limit itself, are too few to judge by.
MIN_TASKS: Final = 10
#: A ratio up to this, plus the uncertainty of the medians, is none.
TOLERANCE: Final = 1.05
#: Run times whose quartiles are further apart than this factor say more about the tasks than about the load.
WIDEST: Final = 4.0
#: Factor of the limit after failures or a ``Throttle``, and when a probe reports more than its full load.
BACKOFF: Final = 0.7
PROBE_BACKOFF: Final = 0.9
#: Failures in a sample, and their share above twice the usual share, that count as too many.
MIN_FAILURES: Final = 3
FAILURE_SHARE: Final = 0.1
#: Share of failed attempts that stays the reason while too few tasks complete, also once it is the usual share.
MOST_FAIL: Final = 0.5
#: A step that moves the limit by less than this holds it.
HELD: Final = 0.25
#: Seconds after which the baseline of a full limit is measured again, at a quarter of it. The first time comes sooner,
#: because the limit may have begun under the load of others. A measurement takes no longer than MEASURE_SECONDS.
BASELINE_SECONDS: Final = 300.0
FIRST_BASELINE_SECONDS: Final = 30.0
MEASURE_SECONDS: Final = 30.0
#: Seconds that the limit was full for, before its baseline is measured: a flat load may touch it for a moment.
PRESSED_SECONDS: Final = 15.0
#: Seconds at the least after which run times that stay long are the new baseline: nothing less can be tried.
LEAST_SECONDS: Final = 60.0
#: Maximum number of kinds of tasks with a baseline of their own.
MAX_KINDS: Final = 20


class Sample(NamedTuple):
    """Run times of the tasks of one kind that ended lately: their number and quartiles, in seconds."""

    tasks: int
    p25: float
    p50: float
    p75: float

    @property
    def spread(self) -> float:
        """How many times longer the upper quartile is than the lower one."""
        return self.p75 / self.p25 if self.p25 > 0 else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What staff set: the least and most value."""

    least: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What was seen of a limit's tasks; ``samples`` holds only tasks that began after the value last changed."""

    now: float  # seconds since 1970
    running: float
    samples: Mapping[str, Sample] = field(default_factory=dict)
    ended: int = 0  # attempts that ended since the last step
    failures: int = 0  # failed ones among them
    throttled: bool = False  # a task raised Throttle since the last step
    load: float | None = None  # what the probe reports; 1: full


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveState:
    """What a step leaves for the next one."""

    limit: float
    changed_at: float  # when its whole number changed last
    is_starting: bool = True  # slow start, until the first congestion
    baselines: Mapping[str, float] = field(default_factory=dict)  # kind -> seconds
    measure_at: float = 0.0  # when to measure the baseline again
    full_since: float | None = None
    resume: float | None = None  # the limit to continue with once the baseline is measured
    failure_share: float = 0.0  # the usual one
    ratio: float | None = None  # of the last judgement
    cause: str = ""  # why the value is what it is
    reason: str = ""
    since: float = 0.0  # since when that is the cause

    @classmethod
    def load(cls, stored: Mapping[str, Any]) -> Self:
        """Return the state that ``dump`` made; unknown parts of a later version are left out."""
        known = {name: stored[name] for name in cls.__slots__ if name in stored}
        return cls(**known | {"reason": from_json(known.get("reason", ""))})

    def dump(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__} | {"reason": as_json(self.reason)}

    def value(self, bounds: Bounds) -> int:
        """Return the limit in force, a whole number within the bounds."""
        return max(bounds.least, min(bounds.most, round(self.limit)))

    def moved(self, seconds: float) -> Self:
        """Return the state with its times moved, after the clock was set back or forward."""
        full = self.full_since and self.full_since + seconds
        return replace(
            self, changed_at=self.changed_at + seconds, measure_at=self.measure_at + seconds,
            full_since=full, since=self.since + seconds,
        )  # fmt: skip


def begin(bounds: Bounds, now: float, value: int | None = None) -> AdaptiveState:
    """Return the state of a limit that has just become adaptive, or that continues with a value."""
    reason = sentence("It continues with its last value.") if value else sentence("It begins at the least.")
    return AdaptiveState(
        limit=float(value or bounds.least), changed_at=now, measure_at=now + FIRST_BASELINE_SECONDS, since=now,
        reason=reason, is_starting=value is None,
    )  # fmt: skip


def step(state: AdaptiveState, bounds: Bounds, seen: Measurement) -> AdaptiveState:
    """Return the state after one step. The value stays where nothing can be judged, and always within the bounds."""
    old = state.value(bounds)
    share = seen.failures / seen.ended if seen.ended else 0.0
    after = _decide(state, bounds, seen, share)
    limit = max(float(bounds.least), min(float(bounds.most), after.limit))
    usual = state.failure_share + 0.05 * (share - state.failure_share) if seen.ended else state.failure_share
    reason = after.reason if after.reason == state.reason else joined(_decision(limit - state.limit), after.reason)
    after = replace(after, limit=limit, failure_share=usual, reason=reason)
    if after.value(bounds) != old:
        after = replace(after, changed_at=seen.now)
    return after if after.cause == state.cause else replace(after, since=seen.now)


def _decision(moves: float) -> str:
    """Return in a word what a step does; a limit that moves by less than a quarter of a slot is held."""
    if abs(moves) < HELD:
        return sentence("Held.")
    return sentence("Rising.") if moves > 0 else sentence("Falling.")


def _decide(state: AdaptiveState, bounds: Bounds, seen: Measurement, share: float) -> AdaptiveState:  # noqa: PLR0911 - one a signal
    if seen.throttled:
        return _backed_off(state, BACKOFF, "throttle", sentence("Tasks asked to slow down (Throttle)."))
    # What ends now may have begun before the last change: judge only what came after.
    is_settled = seen.now - state.changed_at >= min(LEAST_SECONDS, 2 * max(state.baselines.values(), default=0.0))
    if is_settled and seen.failures >= MIN_FAILURES and share > 2 * state.failure_share + FAILURE_SHARE:
        return _backed_off(state, BACKOFF, "failures", _failed(share))
    if is_settled and seen.load is not None and seen.load > 1:
        reason = sentence("The probe reports %(load)s of a full load.", load=float(f"{seen.load:.3g}"))
        return _backed_off(state, PROBE_BACKOFF, "probe", reason)
    wanted = max(3, min(MIN_TASKS, state.value(bounds)))
    count = sum(sample.tasks for sample in seen.samples.values())
    measured_again = sentence("It measured the baseline again, and continues with its former value.")
    if count < wanted:
        if state.resume is not None and seen.now - state.changed_at > MEASURE_SECONDS:
            return replace(
                state, limit=state.resume, resume=None, measure_at=seen.now + BASELINE_SECONDS, reason=measured_again
            )
        if state.cause == "failures" and not seen.ended:
            return state
        if seen.failures >= MIN_FAILURES and share >= MOST_FAIL:
            return replace(state, cause="failures", reason=_failed(share))
        reason = sentence("Too few tasks ran to judge: %(count)s, of %(wanted)s or more.", count=count, wanted=wanted)
        return replace(state, cause="few", reason=reason)
    if state.resume is not None:
        measured = {kind: sample.p50 for kind, sample in seen.samples.items() if sample.p50 > 0}
        return replace(
            state, limit=state.resume, resume=None, measure_at=seen.now + BASELINE_SECONDS,
            baselines=_bounded(state.baselines, measured), reason=measured_again,
        )  # fmt: skip
    return _judge(state, bounds, seen)


def _failed(share: float) -> str:
    return sentence("%(share)s of the attempts failed.", share=f"{share:.0%}")


def _judge(state: AdaptiveState, bounds: Bounds, seen: Measurement) -> AdaptiveState:  # noqa: PLR0911 - one a finding
    narrow = {kind: sample for kind, sample in seen.samples.items() if sample.spread <= WIDEST and sample.p50 > 0}
    is_full = seen.running >= FULL * state.value(bounds) and (seen.load is None or seen.load <= FULL)
    if not narrow:
        reason = sentence("Run times vary too much to judge by; only failures, Throttle and the probe count.")
        grown = replace(state, ratio=None, cause="spread", reason=reason)
        return replace(grown, limit=state.limit + is_full)
    ratio, chance = _compare(state.baselines, narrow)
    tolerance = TOLERANCE + 1.5 * chance
    full_since = (state.full_since or seen.now) if is_full else None
    state = replace(state, ratio=ratio, baselines=_learned(state.baselines, narrow), full_since=full_since)
    text = sentence(
        "Run times are %(ratio)s times their baseline, allowed %(most)s.",
        ratio=f"{ratio:.1f}", most=f"{tolerance:.1f}",
    )  # fmt: skip
    if ratio > tolerance and seen.running * 2 < state.value(bounds):
        but = sentence("But only %(n)s run: it is not the limit.", n=round(seen.running))
        return replace(state, cause="idle", reason=joined(text, but))
    if ratio > tolerance and state.value(bounds) == bounds.least and seen.now - state.changed_at > LEAST_SECONDS:
        measured = {kind: sample.p50 for kind, sample in narrow.items()}
        reason = sentence("Run times stay long at the least: they are the new baseline.")
        return replace(state, cause="baseline", reason=reason, baselines=_bounded(state.baselines, measured))
    is_pressed = full_since is not None and seen.now - full_since > PRESSED_SECONDS
    if is_pressed and seen.now > state.measure_at and ratio > TOLERANCE and state.value(bounds) > bounds.least:
        reason = sentence("It measures the baseline again.")
        return replace(state, limit=math.ceil(state.limit / 4), resume=state.limit, cause="baseline", reason=reason)
    if state.is_starting and ratio <= tolerance:
        return (
            replace(state, limit=state.limit * 1.5 + 1, cause="start", reason=text) if is_full else _still(state, seen)
        )
    after = replace(state, limit=_followed(state.limit, tolerance / ratio, is_full), is_starting=False)
    if ratio > tolerance:
        return replace(after, cause="slow", reason=text)
    return replace(after, cause="good", reason=text) if is_full else _still(after, seen)


def _followed(limit: float, gradient: float, is_full: bool) -> float:  # noqa: FBT001 - read in one place
    """Multiply a limit by the gradient, at most halving it, and leave room for one more; smoothed by half."""
    return (limit + limit * max(0.5, min(1.0, gradient)) + is_full) / 2


def _still(state: AdaptiveState, seen: Measurement) -> AdaptiveState:
    return replace(state, cause="room", reason=sentence("It is not full: %(n)s run.", n=round(seen.running)))


def _backed_off(state: AdaptiveState, factor: float, cause: str, reason: str) -> AdaptiveState:
    return replace(state, limit=state.limit * factor, is_starting=False, resume=None, cause=cause, reason=reason)


def _compare(baselines: Mapping[str, float], samples: Mapping[str, Sample]) -> tuple[float, float]:
    """Return run times / baselines over all kinds, and the standard error of that by the spread of the samples."""
    total = sum(sample.tasks for sample in samples.values())
    logs = errors = 0.0
    for kind, (count, low, middle, high) in samples.items():
        logs += count / total * math.log(middle / min(baselines.get(kind, middle), 1e9))
        errors += count / total * 1.25 * math.log(max(1.0, high / low)) / 1.35
    return math.exp(logs), errors / math.sqrt(total)


def _learned(known: Mapping[str, float], samples: Mapping[str, Sample]) -> dict[str, float]:
    """Learn baselines of new kinds, and let shorter run times lower the known ones."""
    usual = {kind: known.get(kind, sample.p50) for kind, sample in samples.items()}
    lower = {kind: usual[kind] + 0.3 * min(0.0, sample.p50 - usual[kind]) for kind, sample in samples.items()}
    return _bounded(known, lower)


def _bounded(known: Mapping[str, float], learned: Mapping[str, float]) -> dict[str, float]:
    """Return the baselines with the learned ones last; the oldest go when there are too many."""
    kept = {kind: seconds for kind, seconds in known.items() if kind not in learned} | dict(learned)
    return dict(list(kept.items())[-MAX_KINDS:])
