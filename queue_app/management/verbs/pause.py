"""Pause a queue, a task type, a key or everything; running tasks finish."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable

from django.utils import timezone

from queue_app.management.verbs import OK, Call, Needs, add_by, add_json
from queue_app.management.verbs._pausable import add_target, target
from queue_app.management.verbs._values import duration
from queue_app.services.control import audit
from queue_app.services.control.pause import Paused, describe, pause, pause_everything, pause_key, pause_type
from queue_app.sql.database import atomic

EXAMPLE = "taskqueue pause mail --reason 'the provider is down' --for 2h"
NEEDS = Needs.SETTINGS | Needs.DATABASE


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    add_target(parser)
    parser.add_argument("--reason", default="", help="shown in the admin and by explain")
    parser.add_argument(
        "--for", dest="length", type=duration, metavar="TIME", help="resume by itself after 90s, 15m, 2h, 1d"
    )
    add_by(parser)
    add_json(parser)


def run(call: Call) -> int:
    """Pause, and record it in the audit trail."""
    kind, name = target(call)
    by, reason = call.by, call["reason"]
    until = None if call["length"] is None else timezone.now() + call["length"]
    paused: Paused
    with atomic():
        if kind == "all":
            paused = pause_everything(by=by, reason=reason, resume_at=until)
        else:
            pauses: dict[str, Callable[..., Paused]] = {"queue": pause, "type": pause_type, "key": pause_key}
            paused = pauses[kind](name, by=by, reason=reason, resume_at=until)
        audit.record("pause", kind, [name] if name else [], by=by, via=audit.COMMAND, reason=reason)
    end = f" until {paused.resume_at:%Y-%m-%d %H:%M:%S %Z}" if paused.resume_at else ""
    call.write(f"{describe(paused)} is paused by {paused.paused_by}{end}")
    call.write_json(
        {
            kind: name or True,
            "paused": True,
            "by": paused.paused_by,
            "reason": paused.paused_reason,
            "resume_at": paused.resume_at,
        }
    )
    return OK
