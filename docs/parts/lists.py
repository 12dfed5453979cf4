"""The tables of system checks, metrics, Redis keys and policies."""

import re
from importlib import import_module
from pathlib import Path

from parts.markdown import code, table
from queue_app import conf
from queue_app.core.priorities import Band
from queue_app.core.reasons import KINDS, Source
from queue_app.metrics.names import ALL

KEYS = Path(__file__).resolve().parents[2] / "queue_app/index/lua/lib/keys.lua"

CHECKS = {
    "queue_app.E001": "A key of `TASKQUEUE` is unknown or has a wrong value. The hint names the nearest key.",
    "queue_app.E002": "The database named by `DATABASE_ALIAS` is not PostgreSQL.",
    "queue_app.E003": "The PostgreSQL server is older than 15. Runs with `migrate` and `check --database`.",
    "queue_app.E004": "`REDIS_ALIAS` names a cache that `CACHES` does not define.",
    "queue_app.E005": "The entry in `TASKS` has `OPTIONS`; put the settings of the queue into `TASKQUEUE`.",
    "queue_app.E006": "`LEADER_SECONDS` is not above twice `DUE_SECONDS`: the leadership would lapse between runs.",
    "queue_app.E007": "The database named by `DATABASE_ALIAS` starts transactions in a stricter isolation level than"
    " READ COMMITTED: by its `OPTIONS`, or by the server's default. The latter runs with `migrate` and"
    " `check --database`, and before a worker or scheduler starts.",
    "queue_app.E008": "`USE_TZ` is false. The queue then refuses every call, before it writes anything.",
    "queue_app.E013": "A declared schedule has an invalid value, and is not stored.",
    "queue_app.E009": "Django writes the models of the queue to another database than the one that `DATABASE_ALIAS`"
    " names: a router is missing.",
    "queue_app.E010": "The database named by `DATABASE_ALIAS` is read-only, like a standby. E010, E011 and W002 run"
    " with `migrate` and `check --database`, and before a worker or scheduler starts.",
    "queue_app.E011": "The database is behind a pooler in transaction mode, without `DISABLE_SERVER_SIDE_CURSORS`.",
    "queue_app.E012": "The address of the cache named by `REDIS_ALIAS` does not begin with `redis://`, `rediss://` or"
    " `unix://`, or its password contains signs that must be percent-encoded.",
    "queue_app.E014": "The index in Redis belongs to the database of another project, or to the original of a"
    " copied one. Runs with `migrate` and `check --database` once both servers and all tables are there, and before a"
    " worker or scheduler starts.",
    "queue_app.E015": "A hook in `HOOKS` cannot be imported, or is no hook.",
    "queue_app.E016": "An entry of `CODECS` cannot be imported, or is no codec, Enum or dataclass.",
    "queue_app.E018": "A key in `ENCRYPTION.KEYS` cannot be used, `cryptography` is missing, or an encrypted task"
    " has no key.",
    "queue_app.E019": "An endpoint in `WEBHOOKS` cannot be used, or a callback of a task does not exist.",
    "queue_app.E017": "A probe of adaptive limits in `PROBES` cannot be imported, or is no function.",
    "queue_app.E020": "`TASKS` uses the backend of the queue, but `queue_app` is not in `INSTALLED_APPS`.",
    "queue_app.E021": "`QUEUES` is a string, or contains an invalid name of a queue.",
    "queue_app.E022": "`TYPED_ARGUMENTS` is on, and the package typeguard is missing.",
    "queue_app.E023": "A task module of an app cannot be imported.",
    "queue_app.E024": "An option of a task has a wrong value, so no call of it can be stored.",
    "queue_app.E025": "`queue_app` is in `TENANT_APPS` of django-tenants; it must be in `SHARED_APPS` only.",
    "queue_app.W001": "The cache named by `REDIS_ALIAS` does not use django-redis, so the index is unreachable.",
    "queue_app.W002": "`synchronous_commit` is off, so a crash of the server loses confirmed tasks and results.",
    "queue_app.W003": "No entry of `TASKS` uses the backend of the queue, so `enqueue()` stores nothing in it.",
    "queue_app.W004": "No installed app has a module that `TASK_MODULES` names.",
}


def checks() -> str:
    """Return the table of system checks."""
    return table(("id", "reports"), ((code(name), text) for name, text in sorted(CHECKS.items())))


def metrics() -> str:
    """Return the table of all metrics."""
    rows = ((code(m.name), m.kind, ", ".join(map(code, m.labels)), m.help) for m in ALL)
    return table(("name", "kind", "labels", "tells"), rows)


def reasons() -> str:
    """Return the table of the reasons that `explain` gives; an ellipsis stands for a value."""
    rows = []
    for kind in (kind for kind in KINDS.values() if kind.source not in (Source.WATCHDOG, Source.SCHEDULES)):
        text = re.sub(r"(?<=\w)%\(\w+\)s|(?<=[.]) %\(\w+\)s", "", kind.text)
        text = _without_values(text).rstrip(".") + "."
        rows.append((code(kind.answer or kind.code), text, _without_values(kind.remedy), kind.source))
    return table(("`code`", "it says", "what to do", "found in"), rows)


def _without_values(text: str) -> str:
    return re.sub(r"%\(\w+\)s", "…", text)


def keys() -> str:
    """Return the table of Redis keys, from the comments of `lua/lib/keys.lua`."""
    text = re.sub(r"\n +-- +", " ", KEYS.read_text())
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


def policies() -> str:
    """Return the table of the bands, with the policies that the first migration stores."""
    stored = import_module("queue_app.migrations.0002_defaults").POLICIES
    retry = conf.RetrySettings()
    rows = []
    for band in Band:
        retries, timeout, promote_after, target = stored[band]
        waits = [_duration(min(retry.base_seconds * 2**number, retry.cap_seconds)) for number in range(retries)]
        rises = f"after {_duration(promote_after)}" if promote_after else "never"
        rows.append((band.name.lower(), _duration(timeout), str(retries), ", ".join(waits), rises, _duration(target)))
    heads = ("band", "timeout", "retries", "waits before them", "rises", "target wait")
    return table(heads, rows)


def _duration(seconds: float) -> str:
    for unit, name in ((3600, "h"), (60, "min")):
        if seconds >= unit and seconds % unit == 0:
            return f"{seconds / unit:g} {name}"
    return f"{seconds:g} s"
