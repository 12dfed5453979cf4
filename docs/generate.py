"""Write the generated parts of the reference: settings, states, commands, errors, keys.

Each part stands between two comments in a page, `<!-- generated: NAME -->` and `<!-- end -->`. Run

    .venv/bin/python docs/generate.py

after a change of the code; `tests/docs/test_reference.py` fails until then.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import os
import re
import sys
import textwrap
import typing
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path

from asgiref.sync import SyncToAsync

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
BLOCK = re.compile(r"(<!-- generated: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

#: Source of each transition; `None` marks an allowed transition that nothing makes.
MADE_BY = {
    "blocked": {
        "queued": "the end of the last task that it waits for; a signal; or the resume of its workflow",
        "scheduled": "the same, if its `run_after` is in the future",
        "cancelled": "cancel, of the task or its workflow; or a task that it waits for can no longer complete",
    },
    "scheduled": {
        "queued": "the scheduler, at its time; or staff, earlier",
        "cancelled": "cancel",
        "blocked": "pause of its workflow",
    },
    "queued": {
        "executing": "claim",
        "cancelled": "cancel",
        "expired": "expiry, if the queue allows it",
        "scheduled": None,
        "blocked": "pause of its workflow",
    },
    "executing": {
        "scheduled": "finish: the function raised with a retry left, or raised `Snooze`;"
        " or reap: its worker died again",
        "blocked": "finish: the function waits for a signal",
        "queued": "give back, by a worker that drains; or reap: its worker died for the first time",
        "completed": "finish: the function returned",
        "failed": "finish: the function raised `Discard`",
        "cancelled": "finish, give back or reap, when a cancel was requested",
        "dead_letter": "finish: the function raised, and no retry is left; or reap: its worker died too often",
    },
    "dead_letter": {"queued": "replay, or retry by staff"},
    "failed": {"queued": "retry by staff"},
    "cancelled": {"queued": "retry by staff"},
    "expired": {"queued": "retry by staff"},
}

MEANS = {
    "blocked": "It waits for other tasks of its workflow, or for a signal.",
    "scheduled": "It waits for its time: `run_after`, or the end of the wait before a retry.",
    "queued": "It waits for a worker.",
    "executing": "A worker has claimed it.",
    "completed": "Its function returned; the result is stored.",
    "failed": "It failed, and a retry would not help.",
    "cancelled": "A user, staff or code cancelled it before it completed.",
    "dead_letter": "It failed, and its retries are used up; a dead letter says why.",
    "expired": "It waited longer than its queue allows.",
}

CHECKS = {
    "queue_app.E001": "A key of `TASKQUEUE` is unknown or has a wrong value. The hint names the nearest key.",
    "queue_app.E002": "The database named by `DATABASE_ALIAS` is not PostgreSQL.",
    "queue_app.E003": "The PostgreSQL server is older than 15. Runs with `migrate` and `check --database`.",
    "queue_app.E004": "`REDIS_ALIAS` names a cache that `CACHES` does not define.",
    "queue_app.E005": "The entry of `TASKS` has `OPTIONS`; the settings of the queue belong in `TASKQUEUE`.",
    "queue_app.E006": "`LEADER_SECONDS` is not above twice `DUE_SECONDS`: the leadership would lapse between runs.",
    "queue_app.E007": "The database named by `DATABASE_ALIAS` starts transactions in a stricter isolation level than"
    " READ COMMITTED: by its `OPTIONS`, or by the server's default. The latter runs with `migrate` and"
    " `check --database`, and before a worker or scheduler starts.",
    "queue_app.E008": "`USE_TZ` is false. The queue then refuses every call, before it writes anything.",
    "queue_app.E013": "A schedule is declared with an invalid value, and is not stored.",
    "queue_app.E009": "Django writes the models of the queue to another database than the one that `DATABASE_ALIAS`"
    " names: a router is missing.",
    "queue_app.E010": "The database named by `DATABASE_ALIAS` is read-only, like a standby. E010, E011 and W002 run"
    " with `migrate` and `check --database`, and before a worker or scheduler starts.",
    "queue_app.E011": "A pooler pools transactions in front of the database; `DISABLE_SERVER_SIDE_CURSORS` is not set.",
    "queue_app.E012": "The address of the cache named by `REDIS_ALIAS` does not begin with `redis://`, `rediss://` or"
    " `unix://`.",
    "queue_app.E014": "The index in Redis belongs to another database: of another project, or to the original of a"
    " copy. Runs with `migrate` and `check --database` once both servers and all tables are there, and before a worker"
    " or scheduler starts.",
    "queue_app.E015": "A hook in `HOOKS` cannot be imported, or is no hook.",
    "queue_app.E016": "An entry of `CODECS` cannot be imported, or is no codec, Enum or dataclass.",
    "queue_app.E018": "A key in `ENCRYPTION.KEYS` cannot be used, `cryptography` is missing, or an encrypted task"
    " has no key.",
    "queue_app.E019": "An endpoint in `WEBHOOKS` cannot be used, or a callback of a task does not exist.",
    "queue_app.E017": "A probe of adaptive limits in `PROBES` cannot be imported, or is no function.",
    "queue_app.E020": "`TASKS` uses the backend of the queue, but `queue_app` is not in `INSTALLED_APPS`.",
    "queue_app.E021": "`QUEUES` is a string, or contains an invalid name of a queue.",
    "queue_app.E022": "`TYPED_ARGUMENTS` is on, and the package typeguard is missing.",
    "queue_app.W001": "The cache named by `REDIS_ALIAS` does not use django-redis, so the index is unreachable.",
    "queue_app.W002": "`synchronous_commit` is off: a crash of the server loses tasks and results that it confirmed.",
    "queue_app.W003": "No entry of `TASKS` uses the backend of the queue, so `enqueue()` stores nothing in it.",
}

#: Codes in the entries of `errors`, in addition to those of the table of errors.
FIELD_CODES = {
    "encrypted": "An encrypted task: its values cannot be searched, and a request stream cannot submit it.",
    "batch_too_large": "More tasks in one request than `limit`.",
    "blank": "An empty string where a value is needed.",
    "boolean_expected": "Not true or false.",
    "body_required": "The request has no body.",
    "capability_not_allowed": "The worker's token does not allow this capability. Answered with 403.",
    "conflicting_fields": "Two fields, or a field and a header, contradict each other.",
    "date_out_of_range": "A time beyond its bounds, which the message names.",
    "datetime_expected": "Not a date and time.",
    "duplicate_in_batch": "Two tasks of one request have the same idempotency key.",
    "duplicate_key": "A key occurs twice in one JSON object.",
    "integer_expected": "Not a whole number.",
    "invalid_characters": "Control or invisible characters.",
    "invalid_cursor": "Not a cursor of an earlier page.",
    "invalid_id": "Not a UUID, or not the id of an event.",
    "invalid_json": "The body is not JSON; the message says where.",
    "invalid_name": "Not a name of a queue or capability.",
    "invalid_unicode": "An unpaired surrogate.",
    "invalid_payload": "The payload of a signal does not match what the waiting task declares.",
    "list_expected": "Not a list.",
    "masked_value": "The mask `********` in a place that did not hold this masked value.",
    "non_finite_number": "NaN or an infinity.",
    "not_json": "A value that JSON cannot hold (from Python code).",
    "nul_not_allowed": "A NUL character in a text.",
    "number_expected": "Not a number.",
    "number_out_of_range": "A number that JSON readers would round or refuse; integers go up to ±2^53.",
    "number_too_long": "An integer of more than 20 digits.",
    "object_expected": "Not a JSON object with string keys.",
    "out_of_range": "A number outside its bounds; `limit` holds the upper one.",
    "payload_too_large": "More bytes than `PAYLOAD.MAX_BYTES`, or a larger body. Answered with 413.",
    "queue_not_allowed": "The worker's token does not allow this queue. Answered with 403.",
    "read_only_field": "A field that the queue sets, not the caller.",
    "repeated_parameter": "A query parameter is given twice.",
    "reversed_range": "A range of times that ends before it begins.",
    "required": "A required field is missing.",
    "sensitive_parameter": "A filter by a parameter whose value is masked.",
    "string_expected": "Not a string.",
    "timezone_required": "A time without a time zone.",
    "too_deep": "More levels of nesting than `PAYLOAD.MAX_DEPTH`.",
    "too_many": "More values in one filter than allowed.",
    "too_many_nodes": "More values than `PAYLOAD.MAX_NODES`.",
    "unknown_action": "Not an action for many tasks; the message lists the actions.",
    "invalid_cron": "Not a cron expression, or one that never ticks or ticks every second.",
    "unknown_zone": "Not a time zone.",
    "wrong_arguments": "The function of the task does not take these arguments.",
    "unknown_choice": "Not an allowed value; the message lists the values.",
    "unknown_event": "The `event` of a request in the stream is not `ExecutionRequested`.",
    "unknown_field": "A field that this request does not have; the message suggests the most similar one.",
    "unknown_format": "Not a format of this list; the message lists the formats.",
    "unknown_parameter": "A query parameter that this list does not have.",
    "unknown_priority": "Not the name of a band.",
    "unknown_queue": "No such queue; `near_matches` lists similar names.",
    "unknown_status": "Not the name of a state.",
    "utf8_required": "The body is not plain UTF-8.",
    "user_not_allowed": "A request in the stream names a user that `REQUESTS.USER` does not allow.",
    "unknown_task_type": "No registered task has this type; `near_matches` lists similar names.",
}

#: What a task raises, or sees.
TASK_EXCEPTIONS = (
    "Discard", "Retry", "Snooze", "Throttle", "TaskTimeout", "TaskCancelled", "AttemptLost", "SignalTimeout",
    "WorkerDied",
)  # fmt: skip

#: Command -> module of its app.
COMMANDS = {
    "runworker": "queue_app",
    "runscheduler": "queue_app",
    "quickstart": "taskqueue_project",
    "demo": "taskqueue_project.demo",
}


def set_up_django() -> None:
    """Load Django with settings that need no server."""
    sys.path.insert(0, str(ROOT))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "taskqueue_project.settings.test")
    import django  # noqa: PLC0415 - needs the path above

    django.setup()


def table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a Markdown table."""
    heads = list(heads)
    lines = [" | ".join(heads), " | ".join("---" for _ in heads)]
    lines += [" | ".join(str(cell).replace("|", "\\|") for cell in row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def code(value: object) -> str:
    """Return a value as code."""
    return f"`{value}`"


def summary_of(thing: object) -> str:
    """Return the first line of a docstring."""
    return (inspect.getdoc(thing) or "").partition("\n")[0].replace("``", "`")


# -- settings ------------------------------------------------------------------------------------


def comments_of(kind: type) -> dict[str, str]:
    """Return the comment beside each field of a dataclass."""
    found = re.findall(r"^    (\w+): .*?  # (.+)$", textwrap.dedent(inspect.getsource(kind)), re.MULTILINE)
    return dict(found)


def setting_table(kind: type) -> str:
    """Return the table of the settings of a dataclass, without its sections."""
    hints = typing.get_type_hints(kind)
    comments = comments_of(kind)
    rows = []
    for field in dataclasses.fields(kind):
        if dataclasses.is_dataclass(hints[field.name]):
            continue
        name = field.name.upper()
        default = field.default if field.default is not dataclasses.MISSING else field.default_factory()
        meaning = comments.get(field.name, "")
        rows.append((code(name), type_name(hints[field.name]), literal(default), meaning))
    return table(("key", "type", "default", "meaning"), rows)


def type_name(hint: object) -> str:
    """Return the type of a setting in words."""
    names = {str: "text", bool: "boolean", int: "integer", float: "number"}
    container = "dict" if typing.get_origin(hint) in (dict, Mapping) else "list"
    return names.get(typing.cast("type", hint), container)


def literal(value: object) -> str:
    """Return a default as Python code; whole floats without a fraction."""
    return code(int(value) if isinstance(value, float) and value.is_integer() else repr(value).replace("'", '"'))


def settings() -> str:
    """Return the tables of all settings."""
    from queue_app import conf  # noqa: PLC0415 - needs Django

    parts = [setting_table(conf.TaskQueueSettings)]
    for name, kind in typing.get_type_hints(conf.TaskQueueSettings).items():
        if dataclasses.is_dataclass(kind):
            head = f"## {code(name.upper())}\n\n{summary_of(kind)}"
            parts.append(f"{head}\n\n{setting_table(typing.cast('type', kind))}")
    return "\n\n".join(parts)


# -- states --------------------------------------------------------------------------------------


def states() -> str:
    """Return the table of states."""
    from queue_app.core.states import PENDING, Status  # noqa: PLC0415
    from queue_app.results import RESULT_STATUS  # noqa: PLC0415 - needs Django

    rows = []
    for status in Status:
        pending = "yes" if status in PENDING else "no"
        rows.append((code(status.value), MEANS[status.value], pending, code(RESULT_STATUS[status].value)))
    return table(("state", "meaning", "pending", "`django.tasks`"), rows)


def transitions() -> str:
    """Return the table of transitions."""
    from queue_app.core.states import TRANSITIONS, Status  # noqa: PLC0415 - needs Django

    order = list(Status)
    rows = [
        (code(before.value), code(after.value), MADE_BY[before.value][after.value] or "*nothing in this version*")
        for before in order
        for after in sorted(TRANSITIONS[before], key=order.index)
    ]
    return table(("from", "to", "made by"), rows)


# -- commands ------------------------------------------------------------------------------------


def options(add_arguments: Callable[[argparse.ArgumentParser], None], leave_out: Iterable[str] = ()) -> str:
    """Return the table of options that a function adds to a parser, without those whose help is left out."""
    parser = argparse.ArgumentParser(add_help=False)
    add_arguments(parser)
    rows = []
    for action in parser._actions:  # noqa: SLF001 - argparse publishes no list
        if action.help in leave_out:
            continue
        value = "" if action.nargs == 0 else str(action.metavar or action.dest.upper().replace("_", "-"))
        names = [*action.option_strings[-1:], value]
        meaning = action.help or ", ".join(map(code, action.choices or ())) or f"name of a {value.lower()}"
        rows.append((code(" ".join(filter(None, names))), meaning % {"default": action.default}))
    return table(("option", "meaning"), rows) if rows else ""


def command(name: str) -> str:
    """Return the help of a command and the table of its options."""
    from django.core.management import load_command_class  # noqa: PLC0415 - needs Django

    found = load_command_class(COMMANDS[name], name)
    return f"{found.help.partition(' Exit codes:')[0]}\n\n{options(found.add_arguments)}"


def verbs() -> str:
    """Return a section for each verb of `manage.py taskqueue`: what it does, an example, its options."""
    from queue_app.management import verbs as found  # noqa: PLC0415 - needs Django

    verbs_by_name = {name: found.load(name) for name in found.names()}
    common = argparse.ArgumentParser(add_help=False)
    found.add_by(common)
    found.add_json(common)
    of_most = [action.help for action in common._actions]  # noqa: SLF001 - argparse publishes no list
    return "\n\n".join(
        f"### `taskqueue {name}`\n\n{found.summary(verb)}\n\n```console\n$ python manage.py {verb.EXAMPLE}\n```\n\n"
        f"{options(verb.add_arguments, of_most)}".rstrip()
        for name, verb in verbs_by_name.items()
    )


# -- metrics -------------------------------------------------------------------------------------


def metrics() -> str:
    """Return the table of all metrics."""
    from queue_app.metrics.names import ALL  # noqa: PLC0415 - needs Django

    rows = ((code(m.name), m.kind, ", ".join(map(code, m.labels)), m.help) for m in ALL)
    return table(("name", "kind", "labels", "tells"), rows)


# -- HTTP, errors, checks ------------------------------------------------------------------------


def endpoints() -> str:
    """Return the table of addresses."""
    from queue_app.urls import urlpatterns  # noqa: PLC0415 - needs Django

    rows = []
    for pattern in urlpatterns:
        if pattern.name == "missing":
            continue
        view = pattern.callback.view_class
        address = re.sub(r"\(\?P<(\w+)>[^)]*\)", r"{\1}", str(pattern.pattern)).removeprefix("^").removesuffix(r"/?\Z")
        for method in ("get", "post", "put", "patch", "delete"):
            if hasattr(view, method):
                summary = summary_of(getattr(view, method))
                rows.append((code(method.upper()), code(f"/{address}"), summary))
    return table(("method", "address", "does"), rows)


def former_names() -> str:
    """Return the table of the names that requests may still use."""
    from queue_app.api.serializers import tasks, workers  # noqa: PLC0415 - needs Django

    bodies = {
        "tasks and schedules: body": tasks.Submission.aliases,
        "tasks: filter, in a query or a body": tasks.TaskFilters.aliases,
        "tasks: a name in `fields`": tasks.FORMER_FIELDS,
        "`/internal/workers/register`": workers.Registration.aliases,
        "`/internal/workers/{id}/poll`": workers.Poll.aliases,
    }
    rows = [(where, code(name), code(old)) for where, names in bodies.items() for old, name in names.items()]
    return table(("in", "name", "also accepted"), rows)


def http_errors() -> str:
    """Return the table of errors: status and code of each."""
    from queue_app.api import errors  # noqa: PLC0415 - needs Django

    rows = {}
    for rule in (*errors.RULES, errors.UNEXPECTED):
        name = rule.code or getattr(rule.error, "code", "")
        rows.setdefault((rule.status, name), rule.detail or summary_of(rule.error))
    del rows[403, "task_queue_error"]  # each error has a code of its own, which the other table lists
    rows[403, "permission_denied"] = "You may not do this; names the permission that is missing."
    rows[503, "storage_full"] = "The database has no room left."
    return table(
        ("status", "`code`", "says"),
        ((status, code(name), text) for (status, name), text in sorted(rows.items())),
    )


def field_errors() -> str:
    """Return the table of the codes in `errors`."""
    return table(("`code`", "means"), ((code(name), text) for name, text in sorted(FIELD_CODES.items())))


def checks() -> str:
    """Return the table of system checks."""
    return table(("id", "reports"), ((code(name), text) for name, text in CHECKS.items()))


# -- index ---------------------------------------------------------------------------------------


def keys() -> str:
    """Return the table of Redis keys, from the comments of `lua/lib/keys.lua`."""
    text = re.sub(r"\n +-- +", " ", (ROOT / "queue_app/index/lua/lib/keys.lua").read_text())
    rows = [
        (code(key_of(found["key"])), found["what"] or PARTS)
        for found in map(KEY_LINE.match, text.splitlines())
        if found
    ]
    rows.append((code("{taskqueue}:lock:NAME"), "string: token of the holder (`scheduler` or `rebuild`), with expiry"))
    return table(("key", "holds"), rows)


KEY_LINE = re.compile(
    r"local (?:function \w+\([\w, ]*\) return|\w+ =) P \.\. (?P<key>.+?)(?: end)?\s*(?:-- (?P<what>.+))?$"
)
#: Description of the keys of a profile's parts, which have no comment.
PARTS = "set: `queues`, `types`, `capabilities` and `workers` of a profile, each under its name"
ARGUMENTS = {"q": "QUEUE", "l": "LANE", "p": "PROFILE", "w": "WORKER", "g": "GATE"}


def key_of(expression: str) -> str:
    """Return a key with placeholders, from the Lua expression that builds it."""
    parts = [part.strip() for part in expression.split("..")]
    return "{taskqueue}" + "".join(
        part.strip("'").replace("\\31", " ") if part.startswith("'") else ARGUMENTS.get(part, part.upper())
        for part in parts
    )


# -- pages ---------------------------------------------------------------------------------------


def policies() -> str:
    """Return the table of the bands, with the policies that the first migration stores."""
    from queue_app import conf  # noqa: PLC0415 - needs Django
    from queue_app.core.priorities import Band  # noqa: PLC0415

    stored = import_module("queue_app.migrations.0002_defaults").POLICIES
    retry = conf.RetrySettings()
    rows = []
    for band in Band:
        retries, timeout, promote_after, target = stored[band]
        waits = [_duration(min(retry.base_seconds * 2**number, retry.cap_seconds)) for number in range(retries)]
        rises = f"after {_duration(promote_after)}" if promote_after else "never"
        rows.append((band.name.lower(), _duration(timeout), str(retries), ", ".join(waits), rises, _duration(target)))
    heads = ("band", "timeout", "retries", "waits before them", "rises", "longest wait that it should have")
    return table(heads, rows)


def _duration(seconds: float) -> str:
    for unit, name in ((3600, "h"), (60, "min")):
        if seconds >= unit and seconds % unit == 0:
            return f"{seconds / unit:g} {name}"
    return f"{seconds:g} s"


def members(module: str, names: Iterable[str] | None = None) -> str:
    """Return an entry for each public name of a module: how it is called, and what it does."""
    found = import_module(module)
    values = {name: getattr(found, name) for name in sorted(names or found.__all__, key=str.lower)}
    return "\n\n".join(_entry(name, value) for name, value in values.items() if not isinstance(value, SyncToAsync))


def context_members() -> str:
    """Return an entry for each public member of a task's context."""
    from queue_app.workers.context import QueueTaskContext  # noqa: PLC0415 - needs Django

    found = {name: value for name, value in vars(QueueTaskContext).items() if not name.startswith("_")}
    return "\n\n".join(_entry(f"context.{name}", value) for name, value in found.items() if inspect.getdoc(value))


def _entry(name: str, value: object) -> str:
    text = (inspect.getdoc(value) or "").replace("``", "`")
    if isinstance(value, property):
        return f"{code(name)}\n: {_first(text)}"
    return f"{code(name + _signature(value))}\n: {_first(text)}"


def _signature(value: object) -> str:
    """Return the parameters without their types: those stand in the code, where tools read them."""
    try:
        found = inspect.signature(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""
    parameters = [
        each.replace(annotation=inspect.Parameter.empty) for each in found.parameters.values() if each.name != "self"
    ]
    return str(found.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


def _first(text: str) -> str:
    return " ".join(text.partition("\n\n")[0].split())


PARTS_BY_NAME: dict[str, Callable[[], str]] = {
    "settings": settings,
    "states": states,
    "transitions": transitions,
    "endpoints": endpoints,
    "former-names": former_names,
    "http-errors": http_errors,
    "field-errors": field_errors,
    "checks": checks,
    "keys": keys,
    "metrics": metrics,
    "verbs": verbs,
    "policies": policies,
    "python-app": lambda: members("queue_app"),
    "python-context": context_members,
    "python-exceptions": lambda: members("queue_app.exceptions", TASK_EXCEPTIONS),
    "python-services": lambda: members("queue_app.services"),
    "python-testing": lambda: members("queue_app.testing"),
    **{f"command-{name}": (lambda name=name: command(name)) for name in COMMANDS},
}


def rendered(text: str) -> str:
    """Return the text of a page with up-to-date generated parts."""

    def part(match: re.Match[str]) -> str:
        return f"{match[1]}\n{PARTS_BY_NAME[match['name']]()}\n\n{match[3]}"

    return BLOCK.sub(part, text)


def pages() -> list[Path]:
    """Return the pages that hold generated parts."""
    return [path for path in sorted(DOCS.rglob("*.md")) if BLOCK.search(path.read_text())]


def main() -> int:
    """Rewrite the pages whose generated parts are out of date."""
    set_up_django()
    for path in pages():
        text = path.read_text()
        fresh = rendered(text)
        if fresh != text:
            path.write_text(fresh)
            print(f"wrote {path.relative_to(ROOT)}")  # noqa: T201 - a command talks to a terminal
    return 0


if __name__ == "__main__":
    sys.exit(main())
