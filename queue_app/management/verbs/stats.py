"""Show queued and running tasks by queue and band, the workers, and the tasks that ended in the last minute."""

from argparse import ArgumentParser
from typing import Any

from queue_app.core.priorities import BAND_NAMES
from queue_app.dashboard.labels import age_or_dash
from queue_app.diagnose.system import System, troubles
from queue_app.exceptions import UnknownQueue
from queue_app.management.verbs import OK, UNREACHABLE, Call, Needs, add_json
from queue_app.management.verbs._values import format_table
from queue_app.services.read.stats import READY, UNREACHABLE as NO_INDEX, queue_stats
from queue_app.services.way import follow, is_detour

EXAMPLE = "taskqueue stats"
NEEDS = Needs.DATABASE | Needs.READABLE


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--queue", help="only this queue")
    add_json(parser)


def run(call: Call) -> int:
    """Print the numbers; they come from the rows unless the index is ready. Return 4 if Redis cannot be reached."""
    stats = queue_stats()
    if (name := call["queue"]) is not None:
        names = [queue["name"] for queue in stats["by_queue"]]
        if name not in names:
            raise UnknownQueue(name, names)
        stats["by_queue"] = [queue for queue in stats["by_queue"] if queue["name"] == name]
    call.answer("\n".join(lines(stats)), stats)
    return UNREACHABLE if stats["index"] == NO_INDEX else OK


def lines(stats: dict[str, Any]) -> list[str]:
    """Return the numbers as text."""
    workers, ended = stats["workers"], stats["throughput"]
    used = f"{workers['used_capacity']} of {workers['total_capacity']} slots in use"
    header = [
        f"index {stats['index']}   executing {stats['active']}",
        f"workers: {workers['active']} active, {workers['draining']} draining, {used}",
        "last minute: " + ", ".join(f"{count} {_state(name)}" for name, count in ended.items()),
        "",
    ]
    if stats["index"] != READY:
        header += [f"The index is {stats['index']}: these are PostgreSQL's numbers. Run `taskqueue doctor`.", ""]
    elif is_detour(way := follow()):
        header += [str(each.text) for each in troubles(System(stats["index"], way=way))] + [""]
    rows = [["queue", "active", "cap", *BAND_NAMES, "oldest", ""]]
    rows += [_row(queue) for queue in stats["by_queue"]]
    return header + format_table(rows)


def _state(name: str) -> str:
    return name.removesuffix("_last_minute").replace("_", " ")


def _row(queue: dict[str, Any]) -> list[str]:
    bands = queue["bands"]
    ages = [band["oldest_age_seconds"] for band in bands.values() if band["oldest_age_seconds"] is not None]
    return [
        queue["name"],
        str(queue["active"]),
        str(queue["max_concurrent"] or "-"),
        *(str(bands[name]["depth"]) for name in BAND_NAMES),
        age_or_dash(max(ages) if ages else None),
        "paused" if queue["paused"] else "",
    ]
