"""The tables of metrics, reasons, Redis keys and policies."""

import re
from importlib import import_module
from pathlib import Path

from parts.markdown import code, table
from queue_app import conf
from queue_app.core.priorities import Band
from queue_app.core.reasons import KINDS, Source
from queue_app.metrics.names import ALL

KEYS = Path(__file__).resolve().parents[2] / "queue_app/index/lua/lib/keys.lua"


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
