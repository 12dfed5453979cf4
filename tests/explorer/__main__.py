"""Explore how transitions of tasks meet: real code on real servers, one message at a time.

./dev explore                            every pair, in every state
./dev explore --pair claim cancel        one pair
./dev explore --with leave return        what meets a change of ways
./dev explore --twins                    break the code on purpose, and see it found
./dev explore --replay FILE              one schedule again, as a trace
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def main() -> int:
    """Start servers of our own, and explore on them; return the exit code."""
    parser = argparse.ArgumentParser(prog="./dev explore", description=__doc__.splitlines()[0])
    parser.add_argument("--pair", nargs=2, metavar="NAME", help="only these two transitions")
    parser.add_argument("--with", nargs="+", metavar="NAME", dest="among", help="only meetings of these transitions")
    parser.add_argument("--state", help="only from this state of the task")
    parser.add_argument("--twice", action="store_true", help="only commands that are said twice")
    parser.add_argument("--three", type=int, metavar="N", help="N meetings of three actors, drawn by the seed")
    parser.add_argument("--seconds", type=float, help="stop after this time; the order of pairs is drawn by the seed")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**8), help="order of pairs; default: random")
    parser.add_argument(
        "--faults",
        choices=["none", "one", "turns"],
        default="one",
        help="none: nothing dies, no connection breaks; one (default): each fault while the actors go one after the"
        " other; turns: with a change of turn before or after it, too",
    )
    parser.add_argument(
        "--drawn", type=int, metavar="N", help="with turns: N of these schedules of each pair, by the seed"
    )
    parser.add_argument("--all", action="store_true", help="report every broken schedule of a pair, not the first")
    parser.add_argument("--verbose", action="store_true", help="a line for each pair")
    parser.add_argument("--jobs", type=int, default=1, help="processes with servers of their own (default 1)")
    parser.add_argument("--part", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--twins", nargs="*", metavar="TWIN", help="broken twins of the code, all or some")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run one schedule again")
    parser.add_argument(
        "--out", type=Path, default=Path(".dev/explorer"), help="folder for schedules that break something"
    )
    options = parser.parse_args()
    if options.jobs > 1 and "--part" not in sys.argv:
        return _divide(options)
    from taskqueue_project.embedded import EmbeddedServers  # noqa: PLC0415 - before Django reads its settings

    with tempfile.TemporaryDirectory(prefix="taskqueue-explorer-") as folder:
        Path(folder).chmod(0o711)
        servers = EmbeddedServers(Path(folder), throwaway=True)
        servers.start()
        try:
            os.environ["DATABASE_URL"], os.environ["REDIS_URL"] = servers.database_url, servers.redis_url
            os.environ["DJANGO_SETTINGS_MODULE"] = "taskqueue_project.settings.test"
            import django  # noqa: PLC0415

            django.setup()
            logging.disable(logging.CRITICAL)  # deaths and lost connections are what we make
            from django.core.management import call_command  # noqa: PLC0415

            call_command("migrate", verbosity=0)
            return _explore(options)
        finally:
            servers.stop()


def _divide(options: argparse.Namespace) -> int:
    arguments = [sys.executable, "-m", "tests.explorer", *sys.argv[1:], "--seed", str(options.seed)]
    parts = [subprocess.Popen([*arguments, "--part", str(part)]) for part in range(options.jobs)]
    return max(part.wait() for part in parts)


def _wanted(options: argparse.Namespace, meetings: list[Any]) -> list[Any]:
    from tests.explorer.said_twice import COMMANDS  # noqa: PLC0415 - models need Django

    if options.pair:
        meetings = [each for each in meetings if sorted(each.names) == sorted(options.pair)]
    if options.among:
        meetings = [each for each in meetings if set(each.names) & set(options.among)]
    if options.state:
        meetings = [each for each in meetings if each.state == options.state]
    if options.twice:
        meetings = [each for each in meetings if set(each.names) & set(COMMANDS)]
    return meetings


def _explore(options: argparse.Namespace) -> int:
    from tests.explorer.instrument import instrument  # noqa: PLC0415 - models need Django
    from tests.explorer.meetings import sample  # noqa: PLC0415
    from tests.explorer.search import FAULTS, Explorer, load, search  # noqa: PLC0415

    with instrument() as (world, control):
        explorer = Explorer(world, control)
        if options.replay:
            meeting, plan = load(options.replay)
            run, problems = explorer.try_plan(meeting, plan)
            print(meeting, *run.trace, *(f"-> {problem}" for problem in problems), sep="\n")
            return 1 if problems else 0
        if options.twins is not None:
            from tests.explorer.twins import find_twins  # noqa: PLC0415

            return find_twins(explorer, options.twins)
        wanted = _wanted(options, sample(options.seed))[options.part :: options.jobs]
        print(f"seed {options.seed}: {len(wanted)} meetings", flush=True)
        numbers = iter(range(1, 10**6))

        def report(meeting, schedules, seconds, findings) -> None:
            if findings or options.pair or options.verbose:
                print(f"{meeting}: {schedules} schedules, {seconds:.1f} s", flush=True)
            for finding in findings:
                options.out.mkdir(parents=True, exist_ok=True)
                path = options.out / f"{options.part}-{next(numbers)}.json"
                path.write_text(json.dumps(finding.to_json()))
                print(finding, f"  ./dev explore --replay {path}", sep="\n", flush=True)

        if options.three:
            from tests.explorer.three import search_three  # noqa: PLC0415

            tally = search_three(
                explorer, options.seed + options.part, count=options.three, seconds=options.seconds, report=report
            )
            print(f"seed {options.seed}: {tally.meetings} meetings of three, {tally.schedules} schedules, ", end="")
            print(f"{tally.seconds:.0f} s, {len(tally.findings)} broken", flush=True)
            return 1 if tally.findings else 0
        began = time.perf_counter()
        tally = search(
            explorer,
            wanted,
            faults=() if options.faults == "none" else FAULTS,
            turns=options.faults == "turns",
            drawn=options.drawn,
            seed=options.seed,
            seconds=options.seconds,
            per_meeting=10**6 if options.all else 1,
            report=report,
        )
        print(
            f"seed {options.seed}: {tally.meetings} of {len(wanted)} meetings, {tally.schedules} schedules,"
            f" {time.perf_counter() - began:.0f} s, {len(tally.findings)} broken"
        )
        return 1 if tally.findings else 0


if __name__ == "__main__":
    sys.exit(main())
