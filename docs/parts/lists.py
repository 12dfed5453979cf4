"""The tables of metrics, reasons and policies."""

import re
from importlib import import_module

from parts.markdown import code, table
from queue_app import conf
from queue_app.core.priorities import Band
from queue_app.core.reasons import KINDS, Source
from queue_app.metrics.names import ALL


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
        rows.append((code(kind.answer or kind.code), text, _without_values(kind.remedy)))
    return table(("`code`", "it says", "what to do"), rows)


def _without_values(text: str) -> str:
    return re.sub(r"%\(\w+\)s", "…", text)


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
