"""What is wrong with the installation as a whole: Redis, the index, the scheduler, the watchdog.

``read`` asks the servers, at a cost that does not grow with the number of tasks. ``troubles`` says what is wrong. The
doors differ only in what they have asked already.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from django.utils import timezone

from queue_app import conf
from queue_app.core.reasons import KINDS, Reason, reason
from queue_app.core.sentence import age, joined, sentence
from queue_app.diagnose import stalls
from queue_app.diagnose.stalls import Watched
from queue_app.exceptions import IndexUnavailable
from queue_app.index import get_index
from queue_app.index.server import index_health
from queue_app.services.owner import is_foreign
from queue_app.services.read.stats import LOADING, READY, UNREACHABLE
from queue_app.services.upkeep.jobs import leader_lapses
from queue_app.services.way import follow, is_detour
from queue_app.sql.snapshot import Way


@dataclass(frozen=True, slots=True)
class System:
    """The state of the installation; ``None`` for what was not asked or is not known."""

    index: str  # ready, loading, rebuilding, missing, unreachable
    has_leader: bool | None = None
    refusal: str = ""  # why Redis refuses writes
    is_current: bool = True  # the index is of the generation that the rows name
    is_foreign: bool = False  # it belongs to another database
    watched: Watched | None = None  # what the watchdog found last
    way: Way | None = None  # where claims find tasks

    @property
    def watched_stalls(self) -> tuple[stalls.Stall, ...]:
        """What stands still, unless the watchdog has not looked lately."""
        return self.watched.stalls if self.watched and self.watched.is_running else ()

    @property
    def is_open(self) -> bool:
        """Whether the index may propose tasks."""
        return self.index in (READY, LOADING) and self.is_current and not self.is_foreign


def read(*, watchdog: bool = False) -> System:
    """Return the state now; with ``watchdog``, also what stands still."""
    watched = stalls.read() if watchdog else None
    has_leader, way = leader_lapses() is not None, follow()
    try:
        health = index_health(get_index())
    except IndexUnavailable:
        return System(UNREACHABLE, has_leader, watched=watched, way=way)
    is_current = health.generation == way.number
    return System(health.state, has_leader, health.refusal, is_current, is_foreign(health.owner), watched, way)


type Finder = Callable[[System], Iterator[Reason]]
#: Functions that find troubles; ``finds_troubles`` adds one.
FINDERS: Final[list[Finder]] = []


def finds_troubles(finder: Finder) -> Finder:
    """Decorate a function that yields what is wrong with the installation."""
    FINDERS.append(finder)
    return finder


def troubles(system: System) -> list[Reason]:
    """Return everything that is wrong, in the order of the finders."""
    return [found for finder in FINDERS for found in finder(system)]


#: What is said where PostgreSQL is the index too (``INDEX``).
OF_ROWS: Final = sentence(
    "The tables of the index cannot be read in PostgreSQL, so no task starts. Tasks are safe in theirs."
)


@finds_troubles
def _index(system: System) -> Iterator[Reason]:
    """Yield why the index does not propose every task."""
    if system.index == UNREACHABLE:
        yield reason("index_unreachable", text=OF_ROWS if conf.get().index == conf.ROWS else "")
    elif system.refusal:
        yield reason("index_refuses", error=system.refusal, details={"error": system.refusal})
    elif system.is_foreign:
        yield reason("index_foreign")
    elif not system.is_open:
        is_other = system.index in (READY, LOADING)
        state = sentence("of another generation than the rows") if is_other else system.index
        yield reason("index_rebuilding", state=sentence(state), details={"state": system.index})
    elif system.index == LOADING:
        yield reason("index_loading", details={"state": system.index})
    if system.way and is_detour(system.way):
        since = system.way.since or timezone.now()
        seconds = max(0.0, (timezone.now() - since).total_seconds())
        error = f"{system.way.because.rstrip('.')}."
        yield reason("index_away", time=age(seconds), error=error, details={"since": since, "error": error})


@finds_troubles
def _scheduler(system: System) -> Iterator[Reason]:
    """Yield that no scheduler leads."""
    if system.has_leader is False:
        yield reason("no_scheduler")


@finds_troubles
def _watchdog(system: System) -> Iterator[Reason]:
    """Yield what stands still, or that the leading scheduler does not look for it."""
    if system.watched is None:
        return
    if system.has_leader and not system.watched.is_running:
        yield reason("no_watchdog")
    for stall in system.watched_stalls:
        yield Reason(kind := KINDS[stall.kind], joined(stall.text, stall.steps), kind.remedy)


def way_name(way: Way) -> str:
    """Return where claims find tasks: ``redis`` or ``rows``."""
    if way.number == 0:  # before the first rebuild
        return conf.get().index
    return conf.ROWS if way.is_rows else conf.REDIS


def why_unled() -> str:
    """Return that no scheduler leads, and what that means; '' if one does."""
    if leader_lapses() is not None:
        return ""
    return " ".join(each.advice for each in troubles(System(READY, has_leader=False)))
