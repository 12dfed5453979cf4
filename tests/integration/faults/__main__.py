"""Run every fault in its long form, and print what must be beside what came out.

Usage: python -m tests.integration.faults [--seed N] [--tasks N] [--only NAME ...] [--format text|markdown]
       python -m tests.integration.faults --alerts [NUMBER ...]
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from tests.integration.faults.arena import Arena


def main() -> int:
    """Start servers of our own, then everything else; return the exit code."""
    parser = argparse.ArgumentParser(prog="./dev faults", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**8), help="repeats a run; default: random")
    parser.add_argument("--tasks", type=int, default=2000, help="of each fault (default 2000)")
    parser.add_argument("--only", nargs="*", default=[], help="names of faults, or 'timing'; default: all")
    parser.add_argument(
        "--alerts",
        nargs="*",
        type=int,
        metavar="NUMBER",
        help="instead: which alerts fire at a Prometheus, all or some",
    )
    parser.add_argument("--format", choices=["text", "markdown"], default="text", help="markdown: only the tables")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # or servers and processes would be left behind
    print(f"seed {options.seed}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="taskqueue-faults-") as folder:
        Path(folder).chmod(0o711)
        with Arena(Path(folder)) as arena:
            os.environ.update(arena.env)
            import django  # noqa: PLC0415 - it reads the addresses of the servers

            django.setup()
            from tests.integration.faults.alerts import fire_all  # noqa: PLC0415 - models need Django
            from tests.integration.faults.report import Report  # noqa: PLC0415
            from tests.integration.faults.run import run_on  # noqa: PLC0415

            started = time.monotonic()
            if options.alerts is not None:
                with arena.entered(), run_on(arena, Path(folder) / "run", seed=options.seed, count=0) as run:
                    return 0 if fire_all(run, options.alerts) else 1
            progress = sys.stderr if options.format == "markdown" else sys.stdout
            report = Report(arena, Path(folder) / "runs", progress, seed=options.seed, count=options.tasks)
            with arena.entered():
                report.run(options.only)
            print(report.table())
            print(f"\n{datetime.now(UTC):%-d %B %Y}, seed {options.seed}, {time.monotonic() - started:.0f} s")
            return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
