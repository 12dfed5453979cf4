"""Count the running and the waiting tasks behind limits of types and keys."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from queue_app.core.limits import Scope
from queue_app.models import Limit
from queue_app.models.limits import HAS_OWN
from queue_app.sql import stats
from queue_app.sql.database import alias


@dataclass(frozen=True, slots=True)
class Behind:
    """The tasks that have waited longest behind a limit of a type, a key or a family.

    ``fullest`` is the number of running tasks that count together: those of the type, or of one key of a family.
    """

    running: int
    fullest: int
    waiting: int
    oldest: float | None  # seconds
    is_least: bool  # more tasks may wait than were read


def behind(limits: Iterable[Limit]) -> list[Behind]:
    """Return the running and waiting tasks of each limit, by the rows."""
    limits, own = list(limits), with_own_limits()
    running, waits = stats.running_by_kind(), stats.waiting_by_kind()
    is_least = sum(count for count, _ in waits.values()) >= stats.MAX_READ
    return [_behind(counted_by(limit, own), running, waits, is_least=is_least) for limit in limits]


def _behind(
    name_of: Callable[[str, str], str],
    running: dict[tuple[str, str], int],
    waits: dict[tuple[str, str], tuple[float, float]],
    *,
    is_least: bool,
) -> Behind:
    together: Counter[str] = Counter()
    for kind, count in running.items():
        if name := name_of(*kind):
            together[name] += count
    waiting = [found for kind, found in waits.items() if name_of(*kind)]
    return Behind(
        together.total(),
        max(together.values(), default=0),
        round(sum(count for count, _ in waiting)),
        max((age for _, age in waiting), default=None),
        is_least,
    )


def with_own_limits() -> set[str]:
    """Return the keys for which the limit of their family does not hold."""
    return set(Limit.objects.using(alias()).filter(HAS_OWN, scope=Scope.KEY).values_list("name", flat=True))


def counted_by(limit: Limit, own: set[str]) -> Callable[[str, str], str]:
    """Return a function of type and key: the one that counts behind the limit, or "" if it does not hold for them."""
    if limit.scope == Scope.TYPE:
        return lambda task_type, _key: task_type if task_type == limit.name else ""
    family = f"{limit.name}:" if ":" not in limit.name else limit.name

    def of_key(_task_type: str, key: str) -> str:
        return key if key == limit.name or (key.startswith(family) and key not in own) else ""

    return of_key
