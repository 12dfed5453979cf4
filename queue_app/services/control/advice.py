"""Suggest what staff could change, with numbers: from statistics and simulations.

Nothing here changes a limit. A dismissal is a record of the audit log, and hides the suggestion for ``DISMISSED``. A
queue that is idle, or works through its backlog, gets no suggestion.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from django.utils import timezone

from queue_app.core.limit_values import Scope
from queue_app.core.sentence import joined, sentence
from queue_app.core.simulation import span
from queue_app.exceptions import InvalidTaskData
from queue_app.models import AuditEntry
from queue_app.services.control import audit
from queue_app.services.read.held import ENOUGH, PERIOD, held, trials_of
from queue_app.sql import advice as rows
from queue_app.sql.database import alias, atomic

#: Maximum number of suggestions at a time.
MOST: Final = 3
#: Bands order nothing if at least this many tasks wait on average, and one band has this share of them.
MANY_WAITING: Final = 20.0
MOST_OF_THEM: Final = 0.6
DISMISSED: Final = timedelta(days=30)
TARGET: Final = "advice"
_MAX_LIMITS: Final = 20


@dataclass(frozen=True, slots=True)
class Advice:
    """A suggestion: what was seen, and what to try. ``key`` names it for ``dismiss``."""

    key: str
    text: str
    hint: str
    queue: str = ""


def advice() -> list[Advice]:
    """Return at most ``MOST`` suggestions, without dismissed ones."""
    found = [*_limits(), *_bands()]
    if not found:
        return []
    entries = AuditEntry.objects.using(alias()).filter(target=TARGET, at__gte=timezone.now() - DISMISSED)
    dismissed = set(entries.filter(target_id__in=[each.key for each in found]).values_list("target_id", flat=True))
    return [each for each in found if each.key not in dismissed][:MOST]


def _limits() -> Iterator[Advice]:
    """Suggest higher limits where tasks wait while slots are idle, with the waits that a simulation found, if any."""
    some = held()
    trials = trials_of(some)
    for each in some[:_MAX_LIMITS]:
        name = each.name if each.scope == Scope.QUEUE else f"{each.scope} {each.name}"
        text = sentence(
            "%(name)s: the limit %(cap)s holds %(tasks)s tasks, the oldest for %(time)s, while %(idle)s slots are"
            " idle.",
            name=name, cap=each.cap, tasks=round(each.waiting), time=span(each.oldest), idle=each.idle,
        )  # fmt: skip
        trial = trials.get(each.limit)
        if trial is None:
            needs = sentence(
                "The tasks of the last %(minutes)s minutes and those that wait need %(wanted)s.",
                minutes=PERIOD.seconds // 60, wanted=each.wanted,
            )  # fmt: skip
            text = joined(text, needs)
            command = f"taskqueue simulate --last 1h --set {each.limit}.max_concurrent={each.wanted}"
            hint = sentence("Try it: %(command)s.", command=command)
        elif not trial.helps:
            continue
        else:
            names = {"before": span(trial.before), "after": span(trial.after)}
            found = sentence(
                "%(value)s would bring the wait of 95 %% from %(before)s to %(after)s, says the simulation of the last"
                " hour.",
                value=trial.value, **names,
            )  # fmt: skip
            text = joined(text, found, "" if trial.agrees else sentence("The simulation differs from what happened."))
            hint = sentence("Operation %(id)s shows it, and can apply it.", id=str(trial.operation))
        hint = joined(hint, sentence("Raise it only if the systems that the tasks use can bear the load."))
        yield Advice(f"limit:{each.limit if each.scope != Scope.QUEUE else each.name}:{each.cap}", text, hint,
                     each.name if each.scope == Scope.QUEUE else "")  # fmt: skip


def _bands() -> Iterator[Advice]:
    """Suggest lower priorities if most waiting tasks are urgent, so that the bands above normal order nothing."""
    found = rows.waiting_by_band(timezone.now() - PERIOD)
    snapshots = max((number for _, number in found.values()), default=0)
    total = sum(number for number, _ in found.values())
    if snapshots < ENOUGH or total / snapshots < MANY_WAITING:
        return
    for band in ("critical", "high"):
        share = found.get(band, (0, 0))[0] / total
        if share >= MOST_OF_THEM:
            text = sentence(
                "The band %(band)s holds %(share)s of the waiting tasks (%(tasks)s on average): they wait for each"
                " other.",
                band=band, share=f"{share:.0%}", tasks=round(total / snapshots),
            )  # fmt: skip
            hint = sentence("Give what can wait a lower priority, or add workers.")
            yield Advice(f"band:{band}", text, hint)


def dismiss(key: str, *, by: str, via: str, reason: str) -> Advice:
    """Hide a suggestion from everybody for ``DISMISSED``; raise ``InvalidTaskData`` if it is not made now."""
    with atomic():
        found = next((each for each in advice() if each.key == key), None)
        if found is None:
            raise InvalidTaskData("key", "This suggestion no longer applies; read the list again.")
        audit.record("advice.dismiss", TARGET, [key], by=by, via=via, after={"text": found.text}, reason=reason)
    return found
