"""What people did, as sentences: entries of the audit log, and operations."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, gettext_lazy as _lazy, ngettext, ngettext_lazy

from queue_app import conf
from queue_app.core.failures import is_own
from queue_app.core.priorities import Band
from queue_app.dashboard import labels
from queue_app.dashboard.labels import word
from queue_app.models import AuditEntry, Operation
from queue_app.models.operation import OperationKind
from queue_app.services.control.api_keys import purposes_of
from queue_app.services.control.audit import ADMIN

#: Word of an action, as the admin, the commands and the API write it -> sentence.
#: The most telling word comes first.
_DONE: Final[Mapping[str, Any]] = {
    "pause": _lazy("{who} paused {what}"),
    "resume": _lazy("{who} resumed {what}"),
    "cancel": _lazy("{who} cancelled {what}"),
    "reprioritise": _lazy("{who} changed the priority of {what}"),
    "retry": _lazy("{who} retried {what}"),
    "run_now": _lazy("{who} ran {what} before its time"),
    "run_again": _lazy("{who} ran {what} again, with edits"),
    "replay": _lazy("{who} replayed {what}"),
    "replay_edited": _lazy("{who} replayed {what}, with edits"),
    "discard": _lazy("{who} discarded {what}"),
    "drain": _lazy("{who} drained {what}"),
    "stack": _lazy("{who} asked where {what} is"),
    "stop": _lazy("{who} stopped {what}"),
    "run": _lazy("{who} ran {what}"),
    "backfill": _lazy("{who} backfilled {what}"),
    "give_back": _lazy("{who} gave {what} back to the code"),
    "signal": _lazy("{who} answered {what}"),
    "revoke": _lazy("{who} revoked {what}"),
    "rotate": _lazy("{who} gave {what} a new secret"),
    "create_key": _lazy("{who} made an API key for {what}"),
    "purge": _lazy("{who} purged {what}"),
    "rebuild": _lazy("{who} rebuilt {what}"),
    "reencrypt": _lazy("{who} encrypted {what} again"),
    "submit": _lazy("{who} submitted {what}"),
    "simulate": _lazy("{who} simulated a change of {what}"),
    "apply": _lazy("{who} applied {what}"),
    "add": _lazy("{who} added {what}"),
    "edit": _lazy("{who} edited {what}"),
    "delete": _lazy("{who} deleted {what}"),
}
#: Other words of an action -> the word above.
_SAME: Final = {
    "priority": "reprioritise", "revoke_key": "revoke", "token_revoke": "revoke", "token_rotate": "rotate",
    "token_create": "add", "patch": "edit", "put": "edit", "post": "add",
}  # fmt: skip
#: Kind of an object in the log -> its words, where the name of its model is none.
_KINDS: Final[Mapping[str, Any]] = {
    "deadletter": _lazy("dead letter"), "prioritypolicy": _lazy("policy"),
    "runtimesettings": _lazy("the runtime settings"),
    "apikey": _lazy("API key"), "key": _lazy("API key"), "workertoken": _lazy("worker token"),
    "token": _lazy("worker token"), "savedview": _lazy("saved view"), "index": _lazy("the index"),
}  # fmt: skip
#: Kind of an object in the log -> the words for a number of them.
_MANY: Final[Mapping[str, Any]] = {
    "task": ngettext_lazy("%(n)d task", "%(n)d tasks", "n"),
    "deadletter": ngettext_lazy("%(n)d dead letter", "%(n)d dead letters", "n"),
    "queue": ngettext_lazy("%(n)d queue", "%(n)d queues", "n"),
    "worker": ngettext_lazy("%(n)d worker", "%(n)d workers", "n"),
    "schedule": ngettext_lazy("%(n)d schedule", "%(n)d schedules", "n"),
    "limit": ngettext_lazy("%(n)d limit", "%(n)d limits", "n"),
    "operation": ngettext_lazy("%(n)d operation", "%(n)d operations", "n"),
    "ticks": ngettext_lazy("%(n)d run", "%(n)d runs", "n"),
}
#: Models with a page, by kind.
_PAGES: Final = frozenset({
    "task", "queue", "worker", "operation", "deadletter", "limit", "schedule", "workflow", "apikey", "workertoken",
    "prioritypolicy", "runtimesettings",
})  # fmt: skip
_BY_NAME: Final = frozenset({"queue", "prioritypolicy", "runtimesettings"})


def entry_sentence(entry: AuditEntry, url_of: Callable[[str, str], str]) -> SafeString:
    """Return who did what to what; ``url_of(model, id)`` returns the address of an object's page."""
    words = [word.removesuffix("_many").removesuffix("_all") for word in entry.action.replace("-", "_").split(".")]
    words = [_SAME.get(word, word) for word in words]
    other = _("{who} did “{action}” to {what}")
    pattern = next((sentence for word, sentence in _DONE.items() if word in words), other)
    who, what = entry.by or _("A program"), _object(entry, url_of)
    return format_html(str(pattern), who=format_html("<strong>{}</strong>", who), what=what, action=entry.action)


def _object(entry: AuditEntry, url_of: Callable[[str, str], str]) -> SafeString:
    kind, name = str(_KINDS.get(entry.target) or word(entry.target.replace("-", " "))), entry.target_id
    of_operation = entry.target == "operation" and entry.action.partition(".")[0] in _MANY
    operation = name if of_operation else str(entry.after.get("operation", ""))
    if of_operation or not name or entry.target in {"runtimesettings", "index"}:
        many = _MANY.get(entry.action.partition(".")[0] if of_operation else entry.target)
        is_one = entry.count == 1 and not of_operation
        text = kind if is_one or many is None else many % {"n": entry.count}
        if entry.action == "operation.simulate":
            text = _("limits")
        if labels.id_of(operation) is None:
            return format_html("{}", text)
        return format_html('<a href="{}">{}</a>', url_of("operation", operation), text)
    is_id = is_key(entry)
    shown = getattr(entry, "thing", "") or (name[-8:] if is_id else name)
    if entry.target == "prioritypolicy" and is_id:
        shown = word(Band(int(name)).label)
    if entry.target not in _PAGES or not (entry.target in _BY_NAME or is_id):
        return format_html("{} {}", kind, shown)
    return format_html('{} <a href="{}">{}</a>', kind, url_of(entry.target, name), shown)


def is_key(entry: AuditEntry) -> bool:
    """Return whether an entry names its object by the key of its row; only the admin knows objects by a number."""
    return labels.id_of(entry.target_id) is not None or (entry.via == ADMIN and entry.target_id.isdigit())


def changed_values(entry: AuditEntry) -> Iterator[tuple[str, str, str, bool]]:
    """Yield (name, before, after, whether they differ) of an entry's values, for people."""
    for name in dict.fromkeys([*entry.before, *entry.after]):
        before, after = entry.before.get(name), entry.after.get(name)
        differs = name in entry.before and name in entry.after and before != after
        yield name, _shown(name, before), _shown(name, after), differs


def _shown(name: str, value: Any) -> str:
    if name == "scopes":
        value = [word(purpose) for purpose in purposes_of(value or [])]
    elif name == "scope" and isinstance(value, str):
        value = word(value)
    elif name.endswith("_seconds") and isinstance(value, int | float):
        value = labels.duration(value)
    return value_text(value)


def change_text(entry: AuditEntry) -> str:
    """Return what an entry changed in one line: only values that are set or differ."""
    parts = []
    for name, before, after, differs in changed_values(entry):
        if differs:
            parts.append(f"{word(name)}: {before} → {after}")
        elif name not in _IDS and (value := after if before == "-" else before) != "-":
            parts.append(f"{word(name)}: {value}")
    return "; ".join(part[:120] for part in parts[:6])


_NOTHING: Final[tuple[Any, ...]] = (None, "", [], {})
_IDS: Final = frozenset({"ids", "prefix"})


def value_text(value: Any) -> str:
    """Return a recorded value for people."""
    if isinstance(value, bool):
        return _("yes") if value else _("no")
    if isinstance(value, Mapping):
        return filter_words(value) or "-"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    return "-" if value in _NOTHING else str(value)


def number_of(kind: str, count: int) -> str:
    """Return a number with the noun of a kind of object, such as "2 tasks"."""
    return str(_MANY[kind] % {"n": count})


def _things(operation: Operation) -> str:
    """Return the number of what an operation changes, and the new priority."""
    kind = {"tasks": "task", "dead_letters": "deadletter"}.get(operation.target, operation.target)
    to = operation.arguments.get("priority")
    return number_of(kind, operation.total) + (f" → {to}" if to else "")


def operation_sentence(operation: Operation, url: str = "") -> SafeString:
    """Return who did what to how many things, which lead to ``url``, the page of the operation."""
    is_trial = operation.kind == OperationKind.SIMULATE
    what = filter_words(operation.arguments) or _("limits") if is_trial else _things(operation)
    pattern = str(_DONE.get(operation.kind) or _("{who} changed {what}"))
    who = format_html("<strong>{}</strong>", operation.by or _("A program"))
    return format_html(pattern, who=who, what=format_html('<a href="{}">{}</a>', url, what) if url else what)


def filter_words(wanted: Mapping[str, Any]) -> str:
    """Return a filter in words, such as ``queue: mail; status: queued``."""
    return "; ".join(f"{label}: {shown}"[:200] if shown else label for _name, label, shown in filter_parts(wanted))


def filter_parts(wanted: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield (field, its name for people, value) of the conditions of a filter."""
    for name, value in wanted.items():
        if value in _NOTHING:
            continue
        if name == "ids":
            yield name, ngettext("%(n)d chosen", "%(n)d chosen", len(value)) % {"n": len(value)}, ""
        else:
            yield name, word(name), value_text(value) if isinstance(value, list | Mapping) else str(value)


# The admin's pages in sections.


class Section(NamedTuple):
    """Pages that belong together: models of Django's ``app_list``."""

    title: str
    pages: list[Mapping[str, Any]]


#: Name of the overview's entry in the menu; it stands for no model.
OVERVIEW: Final = "Overview"
#: The same of webhook deliveries, behind tasks.
DELIVERIES: Final = "WebhookDelivery"
#: (section, models), in the order of the menu.
_SECTIONS: Final[tuple[tuple[Any, tuple[str, ...]], ...]] = (
    (_lazy("Work"), ("Task", DELIVERIES, "Workflow", "TaskStats", "DeadLetter", "Queue", "Worker")),
    (_lazy("Rules"), ("Schedule", "Limit", "PriorityPolicy", "RuntimeSettings", "ApiKey", "WorkerToken")),
    (_lazy("Record"), ("AuditEntry", "Operation", "SavedView")),
    (_lazy("Machinery"), ("MaintenanceJob", "QueueStats", "IndexGeneration")),
)


def sections(models: Sequence[Mapping[str, Any]]) -> list[Section]:
    """Return the models of Django's ``app_list`` in sections; other models come last."""
    rest = {str(model["object_name"]): model for model in models if model["object_name"] != OVERVIEW}
    if "Task" in rest and conf.get().webhooks:  # the list of tasks with a filter
        address = f"{rest['Task'].get('admin_url')}?task_type=queue_app.webhooks.deliver"
        entry = {"name": _("Webhook deliveries"), "object_name": DELIVERIES, "admin_url": address, "add_url": None}
        rest[DELIVERIES] = dict(rest["Task"]) | entry
    found = [Section(str(title), [rest.pop(name) for name in names if name in rest]) for title, names in _SECTIONS]
    return [section for section in (*found, Section(_("More"), list(rest.values()))) if section.pages]


# A traceback as HTML: frames of the project's own code are open, frames of libraries are folded.

_FILE: Final = re.compile(r'^\s*File "([^"\n]{1,500})"')


def frames(text: str) -> list[tuple[bool, list[str]]]:
    """Return the lines of a traceback in parts: (whether they are frames of libraries, lines)."""
    marked: list[tuple[bool, str]] = []
    foreign = False
    for line in text.splitlines():
        found = _FILE.match(line)
        if found:
            foreign = not is_own(found[1])
        elif not line.startswith("    "):  # the source of a frame is indented further than its file
            foreign = False
        marked.append((foreign, line))
    return [(key, [line for _, line in lines]) for key, lines in groupby(marked, key=lambda each: each[0])]


def traceback_html(text: str) -> SafeString:
    """Return a traceback with the frames of libraries folded."""
    parts = []
    for foreign, lines in frames(text):
        shown = "\n".join(lines)
        if not foreign:
            parts.append(format_html('<pre class="tq-pre tq-own" tabindex="0">{}</pre>', shown))
            continue
        count = sum(bool(_FILE.match(line)) for line in lines)
        words = ngettext("%(n)d frame of a library", "%(n)d frames of libraries", count) % {"n": count}
        parts.append(format_html(
            '<details class="tq-frames"><summary>{}</summary><pre class="tq-pre">{}</pre></details>', words, shown
        ))  # fmt: skip
    return format_html_join("", "{}", ((part,) for part in parts))
