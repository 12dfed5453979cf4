"""Find dead letters: which ones a filter means, a page of them, one."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timedelta
from itertools import batched
from typing import Any, Final, Self

from django.db.models import Count, Max, Min, Q, QuerySet
from django.db.models.functions import TruncHour
from django.utils import timezone

from queue_app.core.fingerprint import normalise
from queue_app.core.redaction import Secrets, redact
from queue_app.core.states import Status
from queue_app.displayed_payload import displayed_payload
from queue_app.exceptions import DeadLetterNotFound, InvalidTransition
from queue_app.models import DeadLetter, Task, TaskPayload
from queue_app.models.dead_letter import DeadLetterQuerySet
from queue_app.sql.claim import statuses

#: What stands for the status of a task that is no more.
PURGED = "purged"
SAMPLE = 10
#: So many messages are looked through for secrets at a time.
LOOKED_THROUGH = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFilter:
    """Which dead letters; what is ``None`` does not restrict."""

    ids: Sequence[uuid.UUID] | None = None
    queue: str | None = None
    task_type: str | None = None
    exception_class: str | None = None  # with its module, or the bare name
    reason: str | None = None
    user: str | None = None
    died_after: datetime | None = None  # at or after
    died_before: datetime | None = None  # before
    fingerprint: str | None = None  # of its cause, see core.fingerprint
    text: str | None = None  # somewhere in the message as it is shown, without secrets, in upper or lower case

    def as_json(self) -> dict[str, Any]:
        """Return it as plain JSON, to be stored with an operation."""
        stored: dict[str, Any] = {name: value for name, value in asdict(self).items() if value is not None}
        if self.ids is not None:
            stored["ids"] = [str(letter_id) for letter_id in self.ids]
        for name in ("died_after", "died_before"):
            if name in stored:
                stored[name] = stored[name].isoformat()
        return stored

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Self:
        """Return what ``as_json`` stored."""
        values = {item.name: stored[item.name] for item in fields(cls) if item.name in stored}
        if "ids" in values:
            values["ids"] = [uuid.UUID(text) for text in values["ids"]]
        for name in ("died_after", "died_before"):
            if name in values:
                values[name] = datetime.fromisoformat(values[name])
        return cls(**values)


@dataclass(frozen=True, slots=True)
class DeathCursor:
    """A place in a list of dead letters; they are in the order of their deaths."""

    died_at: datetime
    id: uuid.UUID


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """Dead letters, latest death first; ``before`` is where the next page begins, ``None`` on the last one."""

    letters: list[DeadLetter]
    before: DeathCursor | None


@dataclass(frozen=True, slots=True)
class Preview:
    """What a filter means now: how many open dead letters, and the first of them."""

    count: int
    sample: list[uuid.UUID]


def matching(wanted: DeadLetterFilter, letters: DeadLetterQuerySet | None = None) -> DeadLetterQuerySet:
    """Return those of ``letters`` (all) that a filter means, in any state."""
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
        hidden = _found_in_secrets(letters, wanted.text)
        letters = letters.exclude(pk__in=hidden) if hidden else letters
    return letters


def _found_in_secrets(letters: DeadLetterQuerySet, text: str) -> list[uuid.UUID]:
    """Return those that have the text only in what nobody is shown: a search must not tell a secret by trying."""
    hidden: list[uuid.UUID] = []
    found = letters.order_by().values_list("pk", "task_id", "message").iterator(LOOKED_THROUGH)
    for page in batched(found, LOOKED_THROUGH):
        secrets = secrets_by_task([task_id for _, task_id, _ in page])
        for letter_id, task_id, message in page:
            shown = redact(message, secrets.get(task_id, ()))
            if shown != message and text.lower() not in shown.lower():
                hidden.append(letter_id)
    return hidden


def preview(wanted: DeadLetterFilter, limit: int | None = None) -> Preview:
    """Return how many open dead letters a filter means, at most ``limit``, and the ids of the first to be handled."""
    letters = matching(wanted).open()
    count = (letters[:limit] if limit is not None else letters).count()
    sample = letters.order_by("died_at", "id").values_list("id", flat=True)[: min(count, SAMPLE)]
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
    """Return one of ``letters`` by its id, or the one by which a task is dead now by the id of the task.

    Raises ``DeadLetterNotFound`` when it is not among them.
    """
    letter: DeadLetter | None = letters.filter(pk=name).first()
    if letter is None:
        letter = letters.filter(task_id=name, replayed_at__isnull=True).first()
    if letter is None:
        raise DeadLetterNotFound(f"There is no dead letter {name}.")
    return letter


def shown_parameters(task_id: uuid.UUID) -> tuple[list[Any], dict[str, Any]] | None:
    """Return (args, parameters) of a task without secrets; ``None`` when it was purged."""
    payload = TaskPayload.objects.filter(pk=task_id).first()
    task_type = Task.objects.filter(pk=task_id).values_list("task_type", flat=True).first()
    if payload is None:
        return None
    _secrets, args, parameters = displayed_payload(task_type or "", payload)
    return args, parameters


def secrets_by_task(task_ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, Secrets]:
    """Return what must not be shown of the messages of each task."""
    types = dict(Task.objects.filter(pk__in=task_ids).values_list("pk", "task_type"))
    payloads = TaskPayload.objects.filter(pk__in=task_ids)
    return {payload.task_id: displayed_payload(types.get(payload.task_id, ""), payload)[0] for payload in payloads}


def refusal(dead_letter_id: uuid.UUID, verb: str) -> DeadLetterNotFound | InvalidTransition:
    """Return why nothing could be done with a dead letter, as the error to raise; ``verb`` is a past participle."""
    letter = DeadLetter.objects.filter(pk=dead_letter_id).first()
    if letter is None:
        return DeadLetterNotFound(f"There is no dead letter {dead_letter_id}; it may have expired.")
    found = statuses([letter.task_id]).get(letter.task_id)
    status = PURGED if found is None else found
    if letter.replayed_at is not None:
        why = f"it was replayed{_by(letter.replayed_by)} at {letter.replayed_at:%Y-%m-%d %H:%M:%S %Z}"
    elif letter.discarded_at is not None:
        why = f"it was discarded{_by(letter.discarded_by)} at {letter.discarded_at:%Y-%m-%d %H:%M:%S %Z}"
    elif found is None:
        why = "its task was purged"
    else:
        why = f"its task is {found.replace('_', ' ')}"
    return InvalidTransition(f"The dead letter cannot be {verb}: {why}.", status=status)


def _by(name: str) -> str:
    return f" by {name}" if name else ""


def task_status(letter: DeadLetter) -> Status | None:
    """Return the status of the task of a dead letter now; ``None`` when it was purged."""
    found = Task.objects.filter(pk=letter.task_id).values_list("status", flat=True).first()
    return None if found is None else Status(found)


#: Groups on the page: the most frequent ones.
MAX_GROUPS: Final = 100
TREND: Final = timedelta(hours=24)


@dataclass(slots=True)
class Group:
    """Dead letters of one cause; ``latest`` is an example."""

    fingerprint: str
    count: int
    first: datetime
    last: datetime
    latest: DeadLetter
    trend: list[int] = field(default_factory=list)  # by hour of the last day, oldest first

    @property
    def wording(self) -> str:
        """The message without what differs each time."""
        return normalise(self.latest.message)

    @property
    def last_hour(self) -> int:
        """How many came in the hour that is not over."""
        return self.trend[-1] if self.trend else 0


def groups(letters: QuerySet[Any] | None = None) -> list[Group]:
    """Return the open dead letters by cause, the most frequent first: three queries, however many there are."""
    source = DeadLetter.objects.open() if letters is None else letters
    rows = list(
        source.order_by()
        .values("fingerprint")
        .annotate(count=Count("pk"), first=Min("died_at"), last=Max("died_at"))
        .order_by("-count", "fingerprint")[:MAX_GROUPS]
    )
    names = [row["fingerprint"] for row in rows]
    known = source.filter(fingerprint__in=names)
    latest = {
        letter.fingerprint: letter for letter in known.order_by("fingerprint", "-died_at").distinct("fingerprint")
    }
    trends = _trends(known)
    return [
        Group(row["fingerprint"], row["count"], row["first"], row["last"], latest[row["fingerprint"]],
              trends.get(row["fingerprint"], [0] * _HOURS))
        for row in rows
        if row["fingerprint"] in latest
    ]  # fmt: skip


_HOURS: Final = int(TREND.total_seconds() // 3600)


def _trends(letters: QuerySet[Any]) -> dict[str, list[int]]:
    """Return by cause how many died in each hour of the last day."""
    now = timezone.now()
    last = now.replace(minute=0, second=0, microsecond=0)
    begin = last - timedelta(hours=_HOURS - 1)
    found: dict[str, list[int]] = {}
    counted = (
        letters.filter(died_at__gte=begin)
        .order_by()
        .values("fingerprint", hour=TruncHour("died_at"))
        .annotate(count=Count("pk"))
    )
    for row in counted:
        place = int((row["hour"] - begin).total_seconds() // 3600)
        if 0 <= place < _HOURS:
            found.setdefault(row["fingerprint"], [0] * _HOURS)[place] = row["count"]
    return found
