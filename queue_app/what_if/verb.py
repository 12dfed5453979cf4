"""Run recorded or invented tasks under other policies, in simulated time: what if?"""

import json
import sys
import tomllib
import uuid
from argparse import ArgumentParser, ArgumentTypeError
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.utils import timezone

from queue_app.exceptions import InvalidTaskData, in_one_line
from queue_app.management.verbs import OK, Call, Needs, add_json
from queue_app.management.verbs._values import duration, format_table, instant, setting, settings_by_owner
from queue_app.what_if.operation import carry_out
from queue_app.what_if.simulate import calibration_words, simulate, table

EXAMPLE = "taskqueue simulate --last 24h --set queue:mail.max_concurrent=5"
NEEDS = Needs.DATABASE


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--last", type=duration, metavar="DURATION", help="window: from this long ago until now")
    parser.add_argument("--since", type=instant, metavar="TIME", help="start of the window, instead of --last")
    parser.add_argument("--until", type=instant, metavar="TIME", help="end of the window; default: now")
    parser.add_argument("--scenario", type=Path, metavar="FILE", help="what to change: TOML or JSON")
    parser.add_argument(
        "--set", type=setting, action="append", default=[], metavar="NAME=VALUE",
        help="one change, such as queue:mail.max_concurrent=5, type:shop.tasks.export.max_concurrent=6,"
        " everything.max_concurrent=40 or band:low.promote_after_seconds=60; none for no limit",
    )  # fmt: skip
    parser.add_argument(
        "--workers", type=workers, action="append", default=[], metavar="COUNT[xSLOTS]",
        help="further workers, such as 2x10, for all queues and types",
    )  # fmt: skip
    tables = ["band", "queue", "type", "user", "limit"]
    parser.add_argument("--by", choices=tables, action="append", help="tables to print")
    parser.add_argument(
        "--shared-server", action="store_true",
        help="if no server program is installed, use the server of the index under separate keys",
    )  # fmt: skip
    parser.add_argument("--operation", type=uuid.UUID, metavar="ID", help="run what staff requested in the admin")
    add_json(parser)


def run(call: Call) -> int:
    """Simulate and print the waits, the calibration and what it means."""
    if call["operation"]:
        carry_out(call["operation"])
        return OK
    scenario = _scenario(call)
    since, until = call["since"], call["until"] or timezone.now()
    if call["last"]:
        since = until - call["last"]
    window = {"since": since, "until": until} if since else {}
    if not window and call["until"]:
        raise InvalidTaskData("since", "--until needs --since or --last.")
    seconds = scenario.pop("seconds", 86_400)
    answer = simulate(scenario, **window, seconds=seconds, shared_server=call["shared_server"], report=_progress(call))
    return call.answer("\n".join(lines(answer, call["by"] or ["band", "queue"])), answer)


def lines(answer: dict[str, Any], tables: list[str]) -> list[str]:
    """Return the answer as text; waits in seconds."""
    found = [f"{answer['from']} to {answer['to']}, waits in seconds", ""]
    for by in tables:
        found += [*format_table(list(table(answer, by))), ""]
    for name, what in (("unchanged", "unchanged"), ("changed", "with the changes")):
        if one := answer.get(name):
            drained = (
                f"drained at {one['drained_at']}" if one["drained_at"] else f"{one['starved']:,} of them never start"
            )
            text = f"{what}: {one['attempts']:,} attempts, {one['utilisation']:.0%} of the slots in use, {drained}"
            text += f" (simulated in {one['took_seconds']} s"
            text += f", waits exact to {one['exact_to_seconds']:.2g} s)" if one["exact_to_seconds"] else ")"
            found.append(text)
    if words := calibration_words(answer):
        found.append(f"calibration: {words}")
    found += [f"note: {note}" for note in answer["notes"]]
    return [*found, *answer.get("words", [])]


def workers(text: str) -> dict[str, int]:
    """Parse ``2x10``: two workers of ten slots."""
    count, _, slots = text.removeprefix("+").partition("x")
    if not count.isdigit() or not (slots or "1").isdigit():
        raise ArgumentTypeError(f"{text!r} is not COUNT or COUNTxSLOTS, such as 2x10")
    return {"count": int(count), "slots": int(slots or 1)}


def _scenario(call: Call) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if path := call["scenario"]:
        try:
            text = path.read_text(encoding="utf-8")
            found = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        except (OSError, ValueError) as error:
            raise InvalidTaskData("scenario", f"{path} cannot be read: {in_one_line(error)}") from None
        if not isinstance(found, dict):
            raise InvalidTaskData("scenario", f"{path} must hold a table.")
    for owner, fields in settings_by_owner(call["set"]).items():
        part, name = ("bands", owner[5:]) if owner.startswith("band:") else ("limits", owner)
        found.setdefault(part, {}).setdefault(name, {}).update(fields)
    if call["workers"]:
        found["workers"] = [*found.get("workers", []), *call["workers"]]
    return found


def _progress(call: Call) -> Any:
    """Return a function that shows the progress on a terminal."""
    last = [timezone.now() - timedelta(days=1)]

    def show(what: str, share: float) -> None:
        if sys.stderr.isatty() and not call["json"] and (timezone.now() - last[0]).total_seconds() > 1:
            last[0] = timezone.now()
            sys.stderr.write(f"{what}: {share:.0%}\r")

    return show
