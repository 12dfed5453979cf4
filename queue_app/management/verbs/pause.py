"""Pause a queue, a task type, a key or everything; running tasks finish."""

from argparse import ArgumentParser

from django.utils import timezone

from queue_app.management.verbs import Call, Needs, add_by_and_json
from queue_app.management.verbs._values import duration
from queue_app.services.control.pause import BY_KIND, EVERYTHING, describe
from queue_app.sql.database import atomic

EXAMPLE = "taskqueue pause mail --reason 'the provider is down' --for 2h"
NEEDS = Needs.DATABASE


def add_target(parser: ArgumentParser) -> None:
    """Declare what to pause or resume; exactly one must be given."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("queue", nargs="?", metavar="QUEUE")
    what.add_argument("--type", metavar="TYPE", help="a task type, in all queues")
    what.add_argument("--key", metavar="KEY", help="a concurrency key")
    what.add_argument("--all", action="store_true", help="everything")


def target(call: Call) -> tuple[str, str]:
    """Return (kind, name) as the audit log stores them; "all" has no name."""
    return next(((kind, call[kind]) for kind in ("queue", "type", "key") if call[kind] is not None), ("all", ""))


def add_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add_target(parser)
    add("--reason", default="", metavar="TEXT", help="why; shown in the admin and by explain")
    add("--for", dest="length", type=duration, metavar="TIME", help="resume by itself after 90s, 15m, 2h, 1d")
    add_by_and_json(parser)


def run(call: Call) -> int:
    """Pause, and record it in the audit log."""
    kind, name = target(call)
    names = [name] if name else []
    call.note_unknown_type(call["type"])
    until = None if call["length"] is None else timezone.now() + call["length"]
    with atomic():
        paused = BY_KIND[EVERYTHING if kind == "all" else kind][0](
            *names, by=call.by, reason=call["reason"], resume_at=until
        )
        call.record("pause", kind, names, reason=call["reason"])
    end = f" until {paused.resume_at:%Y-%m-%d %H:%M:%S %Z}" if paused.resume_at else ""
    facts = {"by": paused.paused_by, "reason": paused.paused_reason, "resume_at": paused.resume_at}
    text = f"{describe(paused)} is paused by {paused.paused_by}{end}"
    return call.answer(text, {kind: name or True, "paused": True} | facts)
