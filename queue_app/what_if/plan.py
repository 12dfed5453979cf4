"""What a simulation is given and what it finds. Times are in µs since 1970; a task is its place in the load."""

from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from queue_app.core.limits import EVERYTHING, Limits, lane_name
from queue_app.core.priorities import Band, Thresholds
from queue_app.core.sentence import sentence

SECOND: Final = 1_000_000
NEVER: Final = -1
#: The wait of tasks that only take slots: their real wait is not known, and the simulated one is not reported.
HIDDEN: Final = -2
MAX_TASKS: Final = 5_000_000
#: Groups of a kind that a report shows, those with most tasks first.
MAX_GROUPS: Final = 15
#: A simulated percentile agrees with the recorded one within this share, or this number of seconds.
AGREES_SHARE: Final = 0.10
AGREES_SECONDS: Final = 0.05


class TaskKind(NamedTuple):
    """What tasks have in common for the index."""

    queue: str
    task_type: str
    band: int
    capabilities: tuple[str, ...] = ()
    user: str = ""
    key: str = ""
    weight: int = 1
    band_before: int | None = None  # the recorded one, if a scenario changes it: reports compare tasks with themselves

    @property
    def lane(self) -> str:
        """The name of the lane that its tasks wait in."""
        return lane_name(self.queue, self.task_type, self.capabilities, self.user, self.key, self.weight)

    def passes(self, gate: str) -> bool:
        """Return whether a gate counts its tasks; that of a family counts each of its keys."""
        scope, _, name = gate.partition(":")
        keys = (self.key, self.key.partition(":")[0]) if self.key else ()
        return {EVERYTHING: True, "q": self.queue == name, "t": self.task_type == name, "k": name in keys}[scope]


class Load:
    """Tasks: when they are queued, how long they run, and how long they waited in reality."""

    def __init__(self) -> None:
        self.kinds: list[TaskKind] = []
        self.kind, self.queued_at, self.runs, self.waited = array("i"), array("q"), array("q"), array("q")
        self._places: dict[TaskKind, int] = {}
        #: Time (µs) from the end of a task to the start of the next one in its slot, which each run takes longer.
        self.turnaround = 0

    def __len__(self) -> int:
        return len(self.kind)

    def add(self, kind: TaskKind, queued_at: int, runs: int, waited: int = NEVER) -> None:
        """Add a task; ``waited`` is its real wait, if it is known."""
        place = self._places.get(kind)
        if place is None:
            place = self._places[kind] = len(self.kinds)
            self.kinds.append(kind)
        self.kind.append(place)
        self.queued_at.append(queued_at)
        self.runs.append(max(0, runs))
        self.waited.append(waited)


@dataclass(frozen=True, slots=True)
class Crew:
    """Workers with the same abilities; ``changes`` are (time, slots gained or lost)."""

    queues: tuple[str, ...]  # none: all
    task_types: tuple[str, ...]
    capabilities: tuple[str, ...]
    changes: tuple[tuple[int, int], ...]

    def can_run(self, kind: TaskKind) -> bool:
        """Return whether they can run the tasks of a kind."""
        is_listed = not self.queues or kind.queue in self.queues
        return is_listed and kind.task_type in self.task_types and set(kind.capabilities) <= set(self.capabilities)


class Change(NamedTuple):
    """New limits of a gate from a time on; ``None``: none."""

    at: int
    gate: str
    limits: Limits | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that a simulation needs. Waits are reported of tasks that are queued from ``begin`` to ``end``."""

    load: Load
    crews: tuple[Crew, ...]
    limits: Mapping[str, Limits] = field(default_factory=dict)
    thresholds: Thresholds = field(default_factory=dict)
    changes: tuple[Change, ...] = ()
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Starts:
    """When each task started (``NEVER``: not at all), and how busy the slots were."""

    started: array[int]
    busy: int  # slot-µs in use, and
    offered: int  # offered, between the first and the last event of the reported time
    drained_at: int | None  # when the last task ended; None: some never start
    resolution: int
    turns: int

    @property
    def utilisation(self) -> float:
        """Share of the offered slots that were in use."""
        return self.busy / self.offered if self.offered else 0.0


class Waits(NamedTuple):
    """Waits of a group of tasks in seconds, the tasks that never started, and the share above the band's target."""

    tasks: int
    p50: float
    p95: float
    p99: float
    worst: float
    starved: int
    late: float | None = None

    @classmethod
    def of(cls, waits: list[int], target: float | None = None) -> "Waits":
        """Return the waits (µs, ``NEVER``: not started) as percentiles."""
        known = sorted(wait for wait in waits if wait != NEVER)
        starved = len(waits) - len(known)
        late = None
        if target is not None and waits:
            late = (sum(wait > target * SECOND for wait in known) + starved) / len(waits)
        if not known:
            return cls(len(waits), 0.0, 0.0, 0.0, 0.0, starved, late)
        p50, p95, p99 = (known[min(len(known) - 1, len(known) * share // 100)] / SECOND for share in (50, 95, 99))
        return cls(len(waits), p50, p95, p99, known[-1] / SECOND, starved, late)


def waits_by(
    plan: Plan,
    waited: Iterable[int],
    targets: Mapping[int, float | None],
    gates: Mapping[str, str] = MappingProxyType({}),
    *,
    recorded: bool = False,
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return waits by band, queue, task type, user, and those limits that ``gates`` names.

    With ``recorded``, only those of tasks whose real wait is known.
    """
    load, least = plan.load, 0 if recorded else NEVER
    found: dict[str, dict[Any, list[int]]] = {name: defaultdict(list) for name in ("band", "queue", "type", "user")}
    passed = [[name for name, gate in gates.items() if kind.passes(gate)] for kind in load.kinds] if gates else []
    found |= {"limit": {name: [] for each in passed for name in each}} if gates else {}
    for place, (kind, queued_at, wait) in enumerate(zip(load.kind, load.queued_at, waited, strict=True)):
        if not plan.begin <= queued_at < plan.end or load.waited[place] < least:
            continue
        what = load.kinds[kind]
        found["band"][what.band if what.band_before is None else what.band_before].append(wait)
        found["queue"][what.queue].append(wait)
        found["type"][what.task_type].append(wait)
        if what.user:
            found["user"][what.user].append(wait)
        for name in passed[kind] if passed else ():
            found["limit"][name].append(wait)
    answer: dict[str, dict[str, dict[str, Any]]] = {}
    for by, groups in found.items():
        most = sorted(groups.items(), key=lambda group: (-len(group[1]), str(group[0])))[:MAX_GROUPS]
        rows = sorted(most) if by == "band" else most
        answer[by] = {
            Band(name).label if by == "band" else name: Waits.of(
                waits, targets.get(name) if by == "band" else None
            )._asdict()
            for name, waits in rows
        }
    return answer


def agreement(actual: Mapping[str, Mapping[str, Any]], simulated: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return how far the simulated p50 and p95 of each band are from the real ones, and whether all agree."""
    bands: dict[str, Any] = {}
    for band, real in actual.items():
        other = simulated.get(band, {})
        for name in ("p50", "p95"):
            difference = float(other.get(name, 0.0)) - float(real[name])
            agrees = abs(difference) <= max(AGREES_SHARE * float(real[name]), AGREES_SECONDS)
            bands[f"{band} {name}"] = {"actual": real[name], "simulated": other.get(name), "agrees": agrees}
    return {"bands": bands, "agrees": all(each["agrees"] for each in bands.values())}


def corrected(
    waits: Mapping[str, Any], unchanged: Mapping[str, Any] | None, actual: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return simulated waits, corrected by how far the unchanged simulation of the same tasks is from what happened.

    The difference counts in full for waits that are longer than the unchanged ones, and in proportion for shorter ones.
    """
    if not (unchanged and actual):
        return dict(waits)
    found, longest = dict(waits), 0.0
    for name in ("p50", "p95", "p99", "worst"):
        share = min(1.0, waits[name] / unchanged[name]) if unchanged[name] else 1.0
        found[name] = longest = max(longest, waits[name] + share * (actual[name] - unchanged[name]))
    return found


def span(seconds: float) -> str:
    """Return a wait as staff say it: seconds up to two minutes, minutes up to two hours."""
    if seconds < 120:  # noqa: PLR2004 - as said
        return sentence("%(n)s s", n=float(f"{seconds:.2g}"))
    if seconds < 7200:  # noqa: PLR2004 - as said
        return sentence("%(n)s min", n=round(seconds / 60))
    return sentence("%(n)s h", n=round(seconds / 3600, 1))
