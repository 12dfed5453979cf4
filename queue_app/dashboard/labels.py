"""Texts and small pieces of HTML for bands, states and times."""

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from django.template.defaultfilters import filesizeformat
from django.utils import formats, timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import (
    get_language,
    gettext,
    gettext as _,
    gettext_lazy as _lazy,
    gettext_noop as _noop,
    ngettext,
)

from queue_app.core import reasons, sentence
from queue_app.core.priorities import Band
from queue_app.core.states import Status
from queue_app.models import Limit, Queue, Task, Worker

# The language of the reader: sentences of services, and stored words such as states, bands and kinds.

#: So that makemessages finds them.
TEXTS: Final = (
    # states of tasks, workers, dead letters, operations, workflows, the index
    _noop("blocked"), _noop("scheduled"), _noop("queued"), _noop("executing"), _noop("completed"), _noop("failed"),
    _noop("cancelled"), _noop("dead letter"), _noop("expired"), _noop("pending"), _noop("active"), _noop("draining"),
    _noop("stopped"), _noop("dead"), _noop("open"), _noop("replayed"), _noop("discarded"), _noop("running"),
    _noop("done"), _noop("compensating"), _noop("compensated"), _noop("deleting"), _noop("ready"), _noop("missing"),
    _noop("rebuilding"), _noop("loading"), _noop("unreachable"), _noop("paused"), _noop("held"), _noop("waiting"),
    _noop("waits for a person"),
    _noop("cancelling"),
    # bands
    _noop("critical"), _noop("high"), _noop("normal"), _noop("low"), _noop("background"),
    # why tasks died
    _noop("retries exhausted"), _noop("timeout"), _noop("crash loop"),
    # what staff do
    _noop("cancel"), _noop("reprioritise"), _noop("replay"), _noop("retry"), _noop("run now"), _noop("delete"),
    _noop("reencrypt"), _noop("backfill"), _noop("simulate"), _noop("tasks"), _noop("dead letters"), _noop("ticks"),
    _noop("policies"),
    # schedules and steps
    _noop("due"), _noop("caught up"), _noop("manual"), _noop("skip"), _noop("last"), _noop("all"), _noop("allow"),
    _noop("queue one"), _noop("cancel previous"), _noop("step"), _noop("sleep"), _noop("signal"),
    # who changed it
    _noop("admin"), _noop("api"), _noop("command"), _noop("code"),
    # what keys may do
    _noop("read"), _noop("submit"), _noop("operate"), _noop("administer"), _noop("work"), _noop("nothing"),
    _noop("expires at"), _noop("since"), _noop("start"),
    # orders, and what limits and statistics are about
    _noop("oldest"), _noop("slowest"), _noop("attempts"), _noop("type"), _noop("key"), _noop("queue"), _noop("user"),
    _noop("band"), _noop("newest"), _noop("actual"), _noop("predicted"), _noop("unchanged"), _noop("worst"),
)  # fmt: skip

#: Name of a field or value in the code -> what staff read.
RENAMED: Final = {
    "args": _lazy("positional arguments"), "condemned": _lazy("found damaged, times in a row"),
    "condemned because": _lazy("damage"), "expire eagerly": _lazy("expire every minute"),
    "fair by": _lazy("who takes turns"), "fair weights": _lazy("weights of the turns"), "key": _lazy("concurrency key"),
    "leases": _lazy("running tasks"), "max concurrent": _lazy("tasks at the same time"),
    "max concurrent per user": _lazy("tasks of one user at the same time"),
    "max length": _lazy("waiting tasks at most"), "max pending per user": _lazy("pending tasks of one user at most"),
    "max retries": _lazy("retries"), "min concurrent": _lazy("tasks at the same time, at least"),
    "min delay seconds": _lazy("time between starts"), "parameters": _lazy("arguments"),
    "parameters edited": _lazy("arguments edited"), "promote after seconds": _lazy("promote after"),
    "rate burst": _lazy("starts at once after a quiet time"), "rate count": _lazy("starts in a period"),
    "rate seconds": _lazy("period"), "scope": _lazy("limit of"), "scopes": _lazy("may do"),
    "stale after seconds": _lazy("stale after"), "target seconds": _lazy("target for the wait"),
    "timeout seconds": _lazy("timeout"), "type": _lazy("task type"), "varies by": _lazy("run time depends on"),
}  # fmt: skip


def translate(text: str) -> str:
    """Return a sentence in the active language; text that is none, such as an error of a program, stays as it is."""
    if not isinstance(text, sentence.Sentence) or (get_language() or "en").startswith("en"):
        return text
    if text.plural:
        return sentence.filled(text, ngettext(text.template, text.plural, int(text.values["n"])), _written)
    return sentence.filled(text, gettext(text.template), _written)


def translate_error(error: Exception) -> str:
    """Return the message of an error in the active language; ``str`` would forget what the sentence was made of."""
    text = error.args[0] if error.args else ""
    return translate(text) if isinstance(text, str) else str(error)


def _written(value: Any) -> str:
    if isinstance(value, str):
        return translate(value)
    number = value if value % 1 else int(value)
    return str(formats.number_format(number, use_l10n=True, force_grouping=True))


def word(stored: str) -> str:
    """Return a stored word for people: ``dead_letter`` as "dead letter"; one that is not known stays as it is."""
    text = stored.replace("_", " ")
    return str(RENAMED.get(text) or gettext(text)) if text else ""


duration: Final = sentence.duration
#: Ages (s) below this read "just now".
_JUST_NOW: Final = 1.0


def usage(worker: Worker) -> str | None:
    """Return the processor time and the memory of a worker at its last heartbeat; ``None`` if it reported neither."""
    percent = None if worker.cpu_percent is None else f"{worker.cpu_percent:.0f} %"
    size = None if worker.memory_bytes is None else filesizeformat(worker.memory_bytes)
    return ", ".join(part for part in (percent, size) if part) or None


def age(seconds: float) -> str:
    """Return an age in the active language."""
    return translate(sentence.age(seconds))


def rate(limit: Limit | Queue) -> str:
    """Return the rate of a limit, such as "100 a minute"; a dash for none."""
    return translate(reasons.rate_words(limit.rate_count, limit.rate_seconds or 0)) if limit.rate_count else "-"


#: Rise in percent from which a change is written as "10 times".
MANY_TIMES: Final = 900
#: Change of a figure -> (whether it is in percent, least size that is shown, whether a rise is bad). Histograms are off
#: by up to a quarter.
CHANGES: Final = {"slower": (True, 25.0, True), "failing": (False, 1.0, True), "busier": (True, 25.0, False)}


def change(value: float | None, name: str) -> SafeString:
    """Return the change of a figure with its sign; empty if it is small, or there were too few tasks to tell."""
    is_share, least, is_bad = CHANGES[name]
    if value is None or abs(value) < least:
        return SafeString("")
    if not is_share:
        number = _("%(n)s points") % {"n": ("+" if value > 0 else "") + formats.number_format(value, 1)}
    else:
        number = f"{value:+.0f} %" if value < MANY_TIMES else _("%(n)s times") % {"n": f"{1 + value / 100:,.0f}"}
    worse = "tq-alert" if is_bad and value > 0 else "tq-below"
    return format_html('<small class="tq-change {}">{} {}</small>', worse, "▲" if value > 0 else "▼", number)


def lead(compared: Sequence[tuple[Any, Any]]) -> SafeString:
    """Return how long tasks run and how many fail now, each with its greatest change; empty if none ended now.

    ``compared`` holds what each comparison is with, and the comparison. Of equal changes, the last one tells most: that
    with the version before.
    """
    if not compared or not compared[0][1].now.total:
        return SafeString("")
    now, parts = compared[0][1].now, []
    figures = {
        "slower": _("p95 %(time)s") % {"time": duration(now.run_p95 or 0)},
        "failing": _("%(n)s %% failed") % {"n": formats.number_format(now.failed_share, 1)},
    }
    for name, figure in figures.items():
        changes = [
            (getattr(each, name), label) for label, each in reversed(compared) if getattr(each, name) is not None
        ]
        value, label = max(changes, key=lambda found: abs(found[0]), default=(None, ""))
        before = _("compared with %(before)s") % {"before": label} if abs(value or 0) >= CHANGES[name][1] else ""
        shown = [each for each in (figure, change(value, name), before) if each]
        parts.append(format_html_join(" ", "{}", ((each,) for each in shown)))
    return format_html_join("; ", "{}", ((part,) for part in parts))


def age_or_dash(seconds: float | None) -> str:
    """Return an age, or a dash for none."""
    return "-" if seconds is None else age(seconds)


def exact(value: datetime) -> str:
    """Return a time to the second with its zone, in the zone of the viewer."""
    local = timezone.localtime(value) if timezone.is_aware(value) else value
    return f"{local:%Y-%m-%d %H:%M:%S %Z}".strip()


def exact_moment(value: datetime) -> SafeString:
    """Return a time to the second, marked up so that the page's script writes it in the viewer's time zone."""
    return format_html('<time class="tq-exact" datetime="{}">{}</time>', value.isoformat(), exact(value))


_TIME = re.compile(r"(?P<at>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:[.,]\d{1,6})?(?P<zone>[+-]\d\d:\d\d|Z| [A-Z]{2,5}\b)?")


def with_times(text: str) -> SafeString:
    """Return escaped text in which each time is marked up, to the second, for the page's script to write it locally.

    A time without a zone, as in a log line, is one of the project's zone.
    """
    return marked(_TIME, text, _as_moment)


def marked(pattern: re.Pattern[str], text: str, mark: Callable[[re.Match[str]], Any]) -> SafeString:
    """Return escaped text in which ``mark`` says what stands for each match of a pattern."""
    parts: list[tuple[Any]] = []
    at = 0
    for found in pattern.finditer(text):
        parts += [(text[at : found.start()],), (mark(found),)]
        at = found.end()
    return format_html_join("", "{}", [*parts, (text[at:],)])


def _as_moment(found: re.Match[str]) -> SafeString | str:
    when = _parse(found["at"], (found["zone"] or "").strip())
    return found[0] if when is None else exact_moment(when)


def _parse(text: str, zone: str) -> datetime | None:
    try:
        if zone[:1] in "+-Z" and zone:
            return datetime.fromisoformat(text + zone)
        naive = datetime.fromisoformat(text)
        local = timezone.make_aware(naive)
    except (ValueError, OverflowError):
        return None
    if zone in ("", f"{local:%Z}"):
        return local
    return naive.replace(tzinfo=UTC) if zone == "UTC" else None


def moment(value: datetime, text: str) -> SafeString:
    """Return ``text`` marked up as a time, with the full time on hover."""
    return format_html('<time datetime="{}" title="{}">{}</time>', value.isoformat(), exact(value), text)


def ago(value: datetime, now: datetime) -> SafeString:
    """Return the distance to a past or future time."""
    seconds = (now - value).total_seconds()
    if seconds < 0:
        return moment(value, _("in %(time)s") % {"time": age(-seconds)})
    return moment(value, _("just now") if seconds < _JUST_NOW else _("%(time)s ago") % {"time": age(seconds)})


def band_label(band: int) -> SafeString:
    """Return a band's name as a coloured label."""
    name = Band(band).label
    return format_html('<span class="tq-label tq-band-{}">{}</span>', name, word(name))


def priority_label(task: Task) -> SafeString:
    """Return a task's effective band; if that is another one, also its own: ``high ↑ low``."""
    label = band_label(task.effective_band)
    if task.effective_band is task.band:
        return label
    return format_html(
        '{} <span class="tq-quiet tq-nowrap" title="{}">{} {}</span>',
        label,
        _("by its age, or by the order of its queue; its own priority is %(band)s") % {"band": word(task.band.label)},
        "↑" if task.effective_band < task.band else "↓",
        word(task.band.label),
    )


def status_label(task: Task) -> SafeString:
    """Return a task's status as a label."""
    status = Status(task.status)
    label = format_html('<span class="tq-label tq-status-{}">{}</span>', status, word(status))
    if status is Status.EXECUTING and task.cancel_requested_at is not None:
        return format_html('{} <span class="tq-quiet">{}</span>', label, _("cancel requested"))
    return label


def when(task: Task, now: datetime) -> SafeString:
    """Return when a task is due, how long it waits or runs, or how long it ran and when."""
    match Status(task.status):
        case Status.SCHEDULED if task.run_after is not None:
            late = (now - task.run_after).total_seconds()
            return moment(task.run_after, _("due now") if late >= 0 else _("due in %(time)s") % {"time": age(-late)})
        case Status.QUEUED if task.queued_at is not None:
            waits = age((now - task.queued_at).total_seconds())
            return moment(task.queued_at, _("waiting %(time)s") % {"time": waits})
        case Status.EXECUTING if task.started_at is not None:
            runs = age((now - task.started_at).total_seconds())
            running = moment(task.started_at, _("running %(time)s") % {"time": runs})
            if task.deadline is not None and task.deadline < now:
                return format_html('{} <span class="tq-alert">{}</span>', running, _("overdue"))
            return running
    end = task.finished_at or task.created_at
    if task.started_at is None or task.finished_at is None or task.finished_at < task.started_at:
        return ago(end, now)
    ran = duration((task.finished_at - task.started_at).total_seconds())
    return format_html('{}, <span class="tq-nowrap">{}</span>', ago(end, now), _("ran %(time)s") % {"time": ran})


def type_label(task_type: str, arguments: str = "", link: str = "") -> SafeString:
    """Return the function's name, whose title is the whole one, with the arguments of a task below, or the module."""
    module, _, name = task_type.rpartition(".")
    text = breakable(name or task_type)
    shown = format_html('<a href="{}">{}</a>', link, text) if link else text
    below = arguments or breakable(module)
    return format_html('<span class="tq-type" title="{}">{}<small>{}</small></span>', task_type, shown, below)


def class_name(exception_class: str) -> str:
    """Return the name of an exception's class; one that Python has built in goes without its module."""
    return exception_class.removeprefix("builtins.")


_BREAK: Final = re.compile(r"(?<=[._/:@-])")


def breakable(name: object) -> SafeString:
    """Return a long name that a narrow page breaks after its dots, and never within a word if it can."""
    return format_html_join(SafeString("<wbr>"), "{}", ((part,) for part in _BREAK.split(str(name))))


def id_of(text: str) -> UUID | None:
    """Return the id that a text is; ``None`` for any other text."""
    try:
        return UUID(text)
    except ValueError:
        return None


def short_id(task_id: object) -> str:
    """Return the end of an id. UUIDv7s of about the same time have the same beginning."""
    return str(task_id)[-8:]


#: Size of a sparkline in its own units.
_SPARK_WIDTH, _SPARK_HEIGHT = 96, 22


def sparkline(values: Sequence[float], title: str) -> SafeString:
    """Return an SVG sparkline with the title as its label; empty for fewer than two values."""
    if len(values) < 2:  # noqa: PLR2004 - a line needs two points
        return SafeString("")
    top = max(*values, 1)
    step = _SPARK_WIDTH / (len(values) - 1)
    height = _SPARK_HEIGHT - 3
    points = " ".join(f"{n * step:.1f},{1.5 + height * (1 - value / top):.1f}" for n, value in enumerate(values))
    return format_html(
        '<svg class="tq-spark" viewBox="0 0 {} {}" role="img" aria-label="{}" preserveAspectRatio="none">'
        '<polygon points="0,{} {} {},{}"/><polyline points="{}"/></svg>',
        _SPARK_WIDTH, _SPARK_HEIGHT, title, _SPARK_HEIGHT, points, _SPARK_WIDTH, _SPARK_HEIGHT, points,
    )  # fmt: skip


_JSON = re.compile(r'("(?:[^"\\]|\\.)*")(\s*:)?|(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null)')


def json_html(text: str) -> SafeString:
    """Return escaped JSON text with markup around names, texts and other values."""
    return marked(_JSON, text, _as_json)


def _as_json(found: re.Match[str]) -> SafeString:
    quoted, colon, value = found.groups()
    kind = "value" if value else "name" if colon else "text"
    return format_html('<span class="tq-json-{}">{}</span>{}', kind, quoted or value, colon or "")
