"""Read dead letters: filter, preview, list, one dead letter, and groups by cause."""

import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import batched
from typing import Any, Final

from django.db.models import Count, DateTimeField, Func, Max, Min, OuterRef, Q, QuerySet, Subquery, Value
from django.utils import timezone

from queue_app.core.redaction import Secrets, redact
from queue_app.core.sentence import sentence
from queue_app.core.states import Status, predicate
from queue_app.encryption.displayed import displayed_payload
from queue_app.exceptions import DeadLetterNotFound, InvalidTransition
from queue_app.models import DeadLetter, Task, TaskPayload, Worker
from queue_app.models.dead_letter import DeadLetterQuerySet
from queue_app.services.read.task_filter import StoredFilter
from queue_app.sql.claim import statuses

#: Stands for the status of a task that was purged.
PURGED = "purged"
#: Maximum number of ids in a preview.
SAMPLE = 10
#: Number of messages that are searched for secrets at a time.
SEARCH_BATCH = 500
#: Maximum number of groups; the most frequent causes come first.
MAX_GROUPS: Final = 100
_TREND_HOURS: Final = 24
#: Number of newest dead letters whose workers are asked for their releases.
_OF_RELEASES: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFilter(StoredFilter):
    """A filter of dead letters; fields that are ``None`` do not restrict."""

    ids: Sequence[uuid.UUID] | None = None
    queue: str | None = None
    task_type: str | None = None
    exception_class: str | None = None  # with its module, or the bare name
    reason: str | None = None
    user: str | None = None
    died_after: datetime | None = None  # at or after
    died_before: datetime | None = None  # before
    fingerprint: str | None = None  # of its cause, see core.fingerprint
    text: str | None = None  # case-insensitive part of the message as displayed, without secrets

    @property
    def task_types(self) -> Sequence[str]:
        """The task type as a filter of tasks names it."""
        return () if self.task_type is None else (self.task_type,)


@dataclass(frozen=True, slots=True)
class DeathCursor:
    """A place in a list of dead letters, which is ordered by the time of death."""

    died_at: datetime
    id: uuid.UUID


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """Dead letters, latest death first; ``before`` is where the next page begins, ``None`` on the last page."""

    letters: list[DeadLetter]
    before: DeathCursor | None


@dataclass(frozen=True, slots=True)
class Preview:
    """How many open dead letters match a filter now, and the first of them."""

    count: int
    sample: list[uuid.UUID]


def matching(wanted: DeadLetterFilter, letters: DeadLetterQuerySet | None = None) -> DeadLetterQuerySet:
    """Return the ``letters`` (default: all) that match the filter, in any state."""
    letters = DeadLetter.objects.all() if letters is None else letters
    exact = {name: getattr(wanted, name) for name in ("queue", "task_type", "reason", "user", "fingerprint")}
    exact |= {"died_at__gte": wanted.died_after, "died_at__lt": wanted.died_before}
    letters = letters.filter(**{name: value for name, value in exact.items() if value is not None})
    if wanted.ids is not None:
        letters = letters.filter(pk__in=wanted.ids)
    if wanted.exception_class is not None:
        name = wanted.exception_class
        letters = letters.filter(Q(exception_class=name) | Q(exception_class__endswith=f".{name}"))
    if wanted.text is not None:
        letters = letters.filter(message__icontains=wanted.text)
        hidden = _matched_in_secrets(letters, wanted.text)
        letters = letters.exclude(pk__in=hidden) if hidden else letters
    return letters


def _matched_in_secrets(letters: DeadLetterQuerySet, text: str) -> list[uuid.UUID]:
    """Return the dead letters with the text only in hidden secrets: guesses in a search must not reveal a secret."""
    hidden: list[uuid.UUID] = []
    found = letters.order_by().values_list("pk", "task_id", "message").iterator(SEARCH_BATCH)
    for page in batched(found, SEARCH_BATCH):
        secrets = secrets_by_task([task_id for _, task_id, _ in page])
        for letter_id, task_id, message in page:
            displayed = redact(message, secrets.get(task_id, ()))
            if displayed != message and text.lower() not in displayed.lower():
                hidden.append(letter_id)
    return hidden


def preview(wanted: DeadLetterFilter, limit: int | None = None, *, newest: bool = False) -> Preview:
    """Return how many open dead letters match the filter, at most ``limit``, and the ids of the first ones."""
    letters = matching(wanted).open()
    count = (letters[:limit] if limit is not None else letters).count()
    order = ("-died_at", "-id") if newest else ("died_at", "id")
    sample = letters.order_by(*order).values_list("id", flat=True)[: min(count, SAMPLE)]
    return Preview(count, list(sample))


def list_dead_letters(
    letters: DeadLetterQuerySet, *, page_size: int, before: DeathCursor | None = None
) -> DeadLetterPage:
    """Return one page of ``letters``; its cost does not depend on how many pages came before."""
    if before is not None:
        earlier = Q(died_at__lt=before.died_at) | Q(died_at=before.died_at, id__lt=before.id)
        letters = letters.filter(earlier, died_at__lte=before.died_at)
    found = list(letters.order_by("-died_at", "-id")[: page_size + 1])
    more = len(found) > page_size
    found = found[:page_size]
    return DeadLetterPage(found, DeathCursor(found[-1].died_at, found[-1].id) if more else None)


def get_dead_letter(letters: DeadLetterQuerySet, name: uuid.UUID) -> DeadLetter:
    """Return one of ``letters`` by its id, or by the id of a task that is dead now; raise ``DeadLetterNotFound``."""
    letter: DeadLetter | None = letters.filter(pk=name).first()
    if letter is None:
        letter = letters.filter(task_id=name, replayed_at__isnull=True).first()
    if letter is None:
        raise DeadLetterNotFound(f"There is no dead letter {name}.")
    return letter


def displayed_parameters(task_id: uuid.UUID) -> tuple[Any, dict[str, Any]] | None:
    """Return (args, parameters) of a task without secrets; ``None`` when the task was purged.

    ``args`` is a list, or a mapping by name if one of the names is that of a secret.
    """
    payload = TaskPayload.objects.filter(pk=task_id).first()
    task_type = Task.objects.filter(pk=task_id).values_list("task_type", flat=True).first()
    if payload is None:
        return None
    _secrets, args, parameters = displayed_payload(task_type or "", payload)
    return args, parameters


def secrets_by_task(task_ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, Secrets]:
    """Return the secrets to hide in the messages of each task."""
    types = dict(Task.objects.filter(pk__in=task_ids).values_list("pk", "task_type"))
    payloads = TaskPayload.objects.filter(pk__in=task_ids)
    return {payload.task_id: displayed_payload(types.get(payload.task_id, ""), payload)[0] for payload in payloads}


def refusal(dead_letter_id: uuid.UUID, verb: str) -> DeadLetterNotFound | InvalidTransition:
    """Return the error that says why a dead letter cannot be replayed or discarded; ``verb`` is a past participle."""
    letter = DeadLetter.objects.filter(pk=dead_letter_id).first()
    if letter is None:
        return DeadLetterNotFound(
            sentence("There is no dead letter %(id)s; it may have expired.", id=str(dead_letter_id))
        )
    found = statuses([letter.task_id]).get(letter.task_id)
    status = PURGED if found is None else found
    if letter.replayed_at is not None:
        at = f"{letter.replayed_at:%Y-%m-%d %H:%M:%S %Z}"
        why = sentence("it was replayed%(by)s at %(time)s", by=_by(letter.replayed_by), time=at)
    elif letter.discarded_at is not None:
        at = f"{letter.discarded_at:%Y-%m-%d %H:%M:%S %Z}"
        why = sentence("it was discarded%(by)s at %(time)s", by=_by(letter.discarded_by), time=at)
    elif found is None:
        why = sentence("its task was purged")
    else:
        why = sentence("its task %(state)s", state=predicate(found))
    text = sentence("The dead letter cannot be %(verb)s: %(why)s.", verb=sentence(verb), why=why)
    return InvalidTransition(text, status=status)


def _by(name: str) -> str:
    return sentence(" by %(by)s", by=name) if name else ""


def task_status(letter: DeadLetter) -> Status | None:
    """Return the current status of the task of a dead letter; ``None`` when the task was purged."""
    found = Task.objects.filter(pk=letter.task_id).values_list("status", flat=True).first()
    return None if found is None else Status(found)


@dataclass(slots=True)
class CauseGroup:
    """Dead letters with the same cause."""

    fingerprint: str
    count: int
    first: datetime
    last: datetime
    latest: DeadLetter
    trend: list[int]  # deaths in each of the last 24 times 60 minutes, oldest first
    releases: list[str]  # of the workers on which the newest of them failed

    @property
    def last_hour(self) -> int:
        return self.trend[-1]


def groups(letters: DeadLetterQuerySet | None = None) -> list[CauseGroup]:
    """Return the open dead letters (of ``letters``) by cause, the most frequent first, with four queries."""
    source = DeadLetter.objects.open() if letters is None else letters.open()
    rows = list(
        source.order_by()
        .values("fingerprint")
        .annotate(count=Count("pk"), first=Min("died_at"), last=Max("died_at"))
        .order_by("-count", "fingerprint")[:MAX_GROUPS]
    )
    known = source.filter(fingerprint__in=[row["fingerprint"] for row in rows])
    latest = {
        letter.fingerprint: letter for letter in known.order_by("fingerprint", "-died_at").distinct("fingerprint")
    }
    trends, releases = _trends(known), _releases(known)
    return [
        CauseGroup(
            **row,
            latest=latest[row["fingerprint"]],
            trend=trends[row["fingerprint"]],
            releases=sorted(releases[row["fingerprint"]]),
        )
        for row in rows
        if row["fingerprint"] in latest
    ]


def _trends(letters: QuerySet[Any]) -> defaultdict[str, list[int]]:
    """Return the number of deaths in each of the last 24 times 60 minutes, by cause."""
    begin = timezone.now() - timedelta(hours=_TREND_HOURS)
    begins = Func(Value(timedelta(hours=1)), "died_at", Value(begin), function="date_bin", output_field=DateTimeField())
    trends: defaultdict[str, list[int]] = defaultdict(lambda: [0] * _TREND_HOURS)
    counted = (
        letters.filter(died_at__gte=begin).order_by().values("fingerprint", hour=begins).annotate(count=Count("pk"))
    )
    for row in counted:
        hour = int((row["hour"] - begin).total_seconds() // 3600)
        if 0 <= hour < _TREND_HOURS:
            trends[row["fingerprint"]][hour] = row["count"]
    return trends


def _releases(letters: QuerySet[Any]) -> defaultdict[str, set[str]]:
    """Return the releases of the workers on which the newest dead letters failed, by cause."""
    releases: defaultdict[str, set[str]] = defaultdict(set)
    newest = DeadLetter.objects.filter(pk__in=letters.order_by("-died_at").values("pk")[:_OF_RELEASES])
    last = Task.objects.filter(pk=OuterRef(OuterRef("task_id"))).values("worker_id")[:1]
    release = Worker.objects.filter(pk=Subquery(last)).exclude(version="").values("version")[:1]
    for fingerprint, version in newest.order_by().values_list("fingerprint", Subquery(release)).distinct():
        if version:
            releases[fingerprint].add(version)
    return releases
