"""Each reason for which tasks wait, and each trouble of the installation, said once.

``KINDS`` has one line for each: code, sentence, what to do, severity, and how it is found. explain, the overview, the
doctor, readiness, the watchdog, workers' consoles, metrics, the filter of the task list and the reference page read it.
To add one, add its line, and a finder where it is found: ``finds_tasks`` (``explain``) or ``finds_troubles``
(``system``). The order of the lines is that of the answers, the most decisive first.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from django.utils import timezone
from django.utils.translation import gettext_noop as _noop

from queue_app.core.sentence import age, duration, joined, listed, sentence
from queue_app.core.states import predicate


class Level(StrEnum):
    """``warn``: no or little harm so far. ``fail``: the queue does not work as it should."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Source(StrEnum):
    """Where a reason is found. The index checks its gates with each claim."""

    ROW = "the task's row"
    INDEX = "the index"
    GATE = "a gate of the index"
    WORKERS = "the live workers"
    SYSTEM = "the servers"
    WATCHDOG = "the watchdog"
    SCHEDULES = "the schedules"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of reason. ``text`` and ``remedy`` may name values, such as ``%(queue)s``.

    ``answer`` is the code in answers, if it is not ``code``. ``check`` is the doctor's name for a trouble. Unless it
    ``blocks``, the reason only describes the place of a task: a worker may get it nevertheless.
    """

    code: str
    text: str
    remedy: str
    source: Source
    level: Level = Level.OK
    answer: str = ""
    check: str = ""
    blocks: bool = True

    @property
    def is_counted(self) -> bool:
        """Whether the overview counts the tasks that wait for it, and the task list can be filtered by it."""
        return self.source in (Source.GATE, Source.WORKERS)


_ROW, _INDEX, _GATE, _WORKERS, _SYSTEM, _WATCHDOG, _SCHEDULES = Source
_WARN, _FAIL = Level.WARN, Level.FAIL
_REFUSED: Final = "index_unreachable"
_STALLED: Final = (
    "See the runbook `stalled`. The scheduler repairs the index itself, ever less often; to do it now, run"
    " `manage.py taskqueue rebuild`."
)

#: Every kind by its code. ``makemessages`` finds the sentences by the name ``Kind``, and what pages show of remedies.
KINDS: Final = {kind.code: kind for kind in (
    Kind("finished", "It has ended, %(time)s.", "", _ROW),
    Kind("error", "Attempt %(n)s ended with %(error)s.", "Read its last attempt.", _ROW, blocks=False),
    Kind("executing", "It has been executing%(where)s since %(time)s, in attempt %(n)s.", "", _ROW),
    Kind("waits_for_signal", "It waits for the signal %(name)s.", "Send it, or wait.", _ROW),
    Kind("workflow_paused", "Its workflow %(name)s is paused%(by)s%(why)s", "Resume it.", _ROW),
    Kind("waits_for_tasks", "It waits for %(tasks)s.", "Fix the failed ones, or wait.", _ROW),
    Kind("workflow_limit", "Its workflow may have only %(n)s tasks queued or running at the same time.", "Wait.", _ROW),
    Kind("blocked", "It waits for other tasks of its workflow.", "Wait.", _ROW),
    Kind("sleeps", "It sleeps until %(time)s, and then continues after its last step.", "Wait.", _ROW),
    Kind("waits_until", "It starts no earlier than %(time)s.", "Wait.", _ROW),
    Kind("retry", "It failed; retry %(n)s of %(most)s starts no earlier than %(time)s.", "Read its last attempt.",
         _ROW),
    Kind("index_unreachable",
         "Redis cannot be reached from here. Tasks are safe in PostgreSQL, and start in workers that reach it.",
         _noop("Start it, or fail over. Once the workers miss it too, claims read the rows."), _SYSTEM, _FAIL,
         check="redis"),
    Kind("index_refuses", "Redis refuses writes. Tasks are safe in PostgreSQL. %(error)s",
         _noop("Let `manage.py taskqueue doctor` say what to do."), _SYSTEM, _FAIL, _REFUSED, check="redis"),
    Kind("index_foreign", "The index in Redis belongs to another database, so no task starts.",
         _noop("Let `manage.py taskqueue doctor` say which."), _SYSTEM, _FAIL, _REFUSED, check="index"),
    Kind("index_rebuilding",
         "The index is %(state)s. No task starts until a scheduler or worker has rebuilt it from PostgreSQL.",
         _noop("Start `manage.py runscheduler`, or run `manage.py taskqueue rebuild`."), _SYSTEM, _FAIL,
         check="index"),
    Kind("index_loading", "The index is being rebuilt. Tasks start; some that wait are not in it yet.",
         _noop("Wait until all waiting tasks are in it."), _SYSTEM, _WARN, "index_rebuilding", check="index"),
    Kind("index_away", "Redis has been away for %(time)s, so claims read the rows: tasks run, only slower. %(error)s",
         _noop("Start it, or fail over: claims return to it by themselves."), _SYSTEM, _WARN, check="redis",
         blocks=False),
    Kind("being_claimed", "A worker is claiming it. If the worker dies before it starts the task, it is queued again"
         " within 20 s.", "Wait.", _INDEX),
    Kind("index_missing", "The index lacks the task; the reconciler adds it within seconds.", "Wait.", _INDEX),
    Kind("no_scheduler",
         "No scheduler runs: due tasks and retries are not queued, tasks of dead workers are not requeued, and the"
         " index is not repaired.", _noop("Start `manage.py runscheduler`, or workers with --with-scheduler."),
         _SYSTEM, _FAIL, check="scheduler"),
    Kind("no_watchdog", "A scheduler leads, but has not looked for work that stands still: its loop may hang.",
         _noop("See its log, then restart it."), _WATCHDOG, _FAIL, check="stalls"),
    Kind("paused", "%(what)s is paused%(by)s%(since)s%(why)s", "Resume it.", _GATE),
    Kind("no_worker", "No live worker takes new tasks.", _noop("Start one: `manage.py runworker`."), _WORKERS, _FAIL,
         check="workers"),
    Kind("no_worker_for_queue", "No live worker serves the queue %(queue)s.",
         _noop("Start `manage.py runworker --queues %(queue)s`, or one without --queues."), _WORKERS, _FAIL,
         check="queues"),
    Kind("no_worker_with_capabilities", "No live worker of this queue offers %(names)s.",
         _noop("Start `manage.py runworker --capabilities %(needed)s`, or cancel the tasks."), _WORKERS, _FAIL),
    Kind("no_worker_knows_type", "No live worker that could run it knows the task type %(type)s.",
         _noop("Restart the workers, or deploy what they lack."), _WORKERS, _FAIL),
    Kind("too_heavy", "It takes %(slots)s slots, and no worker that could run it has that many.",
         _noop("Start a worker with more slots."), _WORKERS, _FAIL),
    Kind("limit_reached", "%(what)s is at its limit: %(used)s of at most %(most)s run.", "Wait, or raise the limit.",
         _GATE),
    Kind("throttled", "%(what)s is throttled, because its code asked to slow down: none of its tasks starts %(when)s.",
         "Wait, or clear `throttled_until`.", _GATE),
    Kind("rate_limited", "%(what)s has used up its rate%(rate)s: the next task may start %(time)s.", "Wait.", _GATE),
    Kind("no_free_slot", "It takes %(slots)s slots of one worker; none that could run it has more than %(free)s free.",
         "Wait, or start more workers.", _WORKERS),
    Kind("stalled", "Work stands still in queue %(queue)s, although workers ask for tasks. Staff see why.",
         "See the runbook `stalled`.", _ROW, blocks=False),
    Kind("not_started", "Work stands still in queue %(queue)s: task %(id)s (%(type)s) has waited since %(time)s.",
         _STALLED, _WATCHDOG, _FAIL, check="stalls"),
    Kind("not_due", "A task was due at %(time)s, and the scheduler has not queued it.", _STALLED, _WATCHDOG, _FAIL,
         check="stalls"),
    Kind("overrun", "A task should have ended by %(time)s, and still counts as executing.", _STALLED, _WATCHDOG,
         _FAIL, check="stalls"),
    Kind("job", "The scheduler's job %(job)s has failed %(n)s times in a row: %(error)s",
         "Remove the cause; the scheduler tries the job again by itself. Its log has the traceback.", _WATCHDOG,
         _FAIL, check="stalls"),
    Kind("schedule_late", "The schedule %(name)s was due %(time)s ago and has not run since.",
         "Start `manage.py runscheduler`; if one leads, see its log for the name. Missed ticks are caught up.",
         _SCHEDULES, _FAIL, check="schedules"),
    Kind("schedule_failing", "The schedule %(name)s has failed %(count)s times in a row.",
         "See the schedule's page in the admin for the reasons; pause the schedule, or mend its task.",
         _SCHEDULES, _WARN, check="schedules"),
    Kind("position", "Position %(n)s in its queue.", "Wait, or raise its priority.", _INDEX, blocks=False),
    Kind("holds_workflow", "It holds its workflow. Retry it (`taskqueue workflow retry %(flow)s`), or skip it"
         " (`taskqueue workflow skip %(flow)s --task %(task)s`).", "Retry it, or skip it.", _ROW, blocks=False),
    Kind("unique", "It is unique: %(rule)s.", "Nothing: enqueue returns this task instead of a second one.", _ROW,
         blocks=False),
    Kind("schedule", "It is the tick of %(time)s of the schedule %(name)s.", "Nothing.", _ROW, blocks=False),
)}  # fmt: skip

#: The codes that the filter of the task list shows, as words, so that makemessages finds them.
WORDS: Final = (
    _noop("paused"), _noop("limit reached"), _noop("throttled"), _noop("rate limited"), _noop("no worker"),
    _noop("no worker for queue"), _noop("no worker with capabilities"), _noop("no worker knows type"),
    _noop("too heavy"), _noop("no free slot"),
)  # fmt: skip


def say(code: str, /, **values: Any) -> str:
    """Return the sentence of a kind."""
    return sentence(KINDS[code].text, **values)


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason, as a sentence and as data. ``until``: when it ends, if time alone ends it."""

    kind: Kind
    text: str
    remedy: str = ""  # what to do
    until: datetime | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def code(self) -> str:
        return self.kind.answer or self.kind.code

    @property
    def blocks(self) -> bool:
        """Whether no worker gets the task, however idle and able."""
        return self.kind.blocks

    @property
    def advice(self) -> str:
        """The sentence, and what to do."""
        return joined(self.text, self.remedy)

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("code", "text", "blocks", "until", "details")}


def reason(
    code: str,
    /,
    *more: str,
    text: str = "",
    until: datetime | None = None,
    details: Mapping[str, Any] | None = None,
    **values: Any,
) -> Reason:
    """Return a reason with the sentence of its kind, or ``text``, and ``more`` sentences behind it."""
    kind, said = KINDS[code], text or say(code, **values)
    remedy = sentence(kind.remedy, **values)
    return Reason(kind, joined(said, *more) if any(more) else said, remedy, until, details or {})


def decisive_first(reasons: Sequence[Reason]) -> list[Reason]:
    """Return reasons in the order of the registry."""
    order = {code: place for place, code in enumerate(KINDS)}
    return sorted(reasons, key=lambda each: order[each.kind.code])


@dataclass(frozen=True, slots=True)
class Explanation:
    """All reasons of one task, the most decisive first."""

    task_id: uuid.UUID
    status: str
    reasons: tuple[Reason, ...]

    @property
    def blocking(self) -> tuple[Reason, ...]:
        """The reasons that keep an idle, able worker from getting the task."""
        return tuple(reason for reason in self.reasons if reason.blocks)

    @property
    def codes(self) -> tuple[str, ...]:
        return tuple(reason.code for reason in self.reasons)

    @property
    def next_start(self) -> datetime | None:
        """Earliest start time, set when the task only waits for time (a delay or a rate limit)."""
        times = [reason.until for reason in self.blocking]
        known = [at for at in times if at is not None]
        return max(known) if known and len(known) == len(times) else None

    def lines(self) -> list[str]:
        """Return the reasons as lines of text."""
        first = f"Task {self.task_id} {predicate(self.status)}."
        return [first, *(f"{'-' if reason.blocks else ' '} {reason.text}" for reason in self.reasons)]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data; ids and times are not yet text."""
        return {
            "task_id": self.task_id,
            "status": self.status,
            "blocked": bool(self.blocking),
            "next_start": self.next_start,
            "reasons": [reason.as_dict() for reason in self.reasons],
        }


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check of the doctor found; unless all is well, ``hint`` says what to do."""

    check: str
    level: Level
    message: str
    hint: str = ""


def ok(check: str, message: str) -> Finding:
    """Return a finding that needs no action."""
    return Finding(check, Level.OK, message)


def warn(check: str, message: str, hint: str) -> Finding:
    """Return a warning."""
    return Finding(check, Level.WARN, message, hint)


def fail(check: str, message: str, hint: str) -> Finding:
    """Return a failure."""
    return Finding(check, Level.FAIL, message, hint)


# -- phrases that sentences share ----------------------------------------------------------------


def status_name(status: str) -> str:
    """Return the name of a state for people; ``dashboard.labels`` has the texts."""
    return sentence(status.replace("_", " "))


def subject(scope: str, name: str = "") -> str:
    """Return what a limit or a pause is about."""
    match scope:
        case "everything":
            return sentence("Everything")
        case "queue":
            return sentence("The queue %(name)s", name=name)
        case "type":
            return sentence("The task type %(name)s", name=name)
        case "key":
            return sentence("The key %(name)s", name=name)
    return sentence("The user %(name)s in this queue", name=name)


def by(person: str) -> str:
    """Return who did it, to be put behind a verb; empty if unknown."""
    return sentence(" by %(by)s", by=person) if person else ""


def because(reason: str) -> str:
    """Return the end of a sentence, with the reason that a person gave."""
    return f": {reason.rstrip('.')}." if reason else "."


def all_of(parts: Sequence[str]) -> str:
    """Return texts with an "and" before the last one."""
    return sentence("%(first)s and %(last)s", first=listed(parts[:-1]), last=parts[-1]) if len(parts) > 1 else parts[0]


def moment(at: datetime | None) -> str:
    """Return a time to the second with its zone."""
    return sentence("at an unknown time") if at is None else f"{timezone.localtime(at):%Y-%m-%d %H:%M:%S %Z}"


def paused(what: str, row: Any, *, named: bool = True, now: datetime | None = None) -> str:
    """Return that a row of a queue, a limit or everything is paused; who did it and why if ``named``.

    With ``now`` it names no time of day, because viewers in several time zones share the text.
    """
    since = ""
    if row.paused_at is not None:
        ago = now and sentence(" (%(time)s ago)", time=age((now - row.paused_at).total_seconds()))
        since = ago or sentence(" since %(time)s", time=moment(row.paused_at))
    text = say(
        "paused",
        what=what,
        by=by(row.paused_by if named else ""),
        since=since,
        why=because(row.paused_reason if named else ""),
    )
    if row.resume_at is None:
        return text
    time = sentence("in %(time)s", time=age((row.resume_at - now).total_seconds())) if now else moment(row.resume_at)
    return joined(text, sentence("It resumes by itself %(time)s.", time=time))


def throttled(what: str, until: datetime, now: datetime | None = None) -> str:
    """Return that task code asked to slow down."""
    when = (
        sentence("for another %(time)s", time=age((until - now).total_seconds()))
        if now
        else sentence("before %(time)s", time=moment(until))
    )
    return say("throttled", what=what, when=when)


#: Seconds of a period -> the words of a rate.
_RATES: Final[Mapping[float, str]] = {
    1: _noop("%(n)s a second"), 60: _noop("%(n)s a minute"), 3600: _noop("%(n)s an hour"), 86_400: _noop("%(n)s a day"),
}  # fmt: skip


def rate_words(count: int, seconds: float) -> str:
    """Return a rate in words, such as ``100 a minute`` or ``5 per 30 s``."""
    return sentence(_RATES.get(seconds, _noop("%(n)s per %(time)s")), n=count, time=duration(seconds))
