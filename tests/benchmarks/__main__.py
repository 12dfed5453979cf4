"""Measure the figures of the engine on servers of their own and print them as a table.

    ./dev bench                 all of them
    ./dev bench drain pickup    some of them
    ./dev bench peers --help    beside other queues; with --index rows without Redis
    PEER_PYTHON=python ./dev bench workflows steps    in turn with Celery or DBOS, if this interpreter has them

Ratios are measured in turn within one run; an absolute time says something about this
machine only. With DATABASE_URL and REDIS_URL set those servers are used: their tables of
the task queue are emptied.
"""

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent)]
os.environ["DJANGO_SETTINGS_MODULE"] = "bench_settings"
os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])

#: The benchmarks, in the order in which all of them run.
NAMES = [
    "claim", "limits", "rows", "caps", "workers", "processes", "memory", "enqueue", "drain", "pickup", "idle",
    "reconcile", "rebuild", "scrape", "growth", "soak", "http", "workflows", "snapshot", "steps",
    "shapes",
]  # fmt: skip


def main() -> int:
    """Run the named benchmarks."""
    if sys.argv[1:2] == ["peers"]:  # on servers of the harness, and without Django here
        from peers import main as beside_peers  # noqa: PLC0415 - needs the path above

        return beside_peers(sys.argv[2:])
    from taskqueue_project.embedded import EmbeddedServers  # noqa: PLC0415 - needs the path above

    parser = argparse.ArgumentParser(prog="./dev bench")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(NAMES)}; default: all")
    parser.add_argument("--quick", action="store_true", help="a tenth of the sizes: to try, not to quote")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(NAMES))
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; choose from {', '.join(NAMES)}")
    if os.environ.get("DATABASE_URL") and os.environ.get("REDIS_URL"):
        return run(options.names or NAMES, quick=options.quick)
    folder = Path(tempfile.mkdtemp(prefix="taskqueue-bench-"))
    servers = EmbeddedServers(folder)  # durable, as in production: nothing is gained by switching fsync off
    servers.start()
    try:
        os.environ["DATABASE_URL"], os.environ["REDIS_URL"] = servers.database_url, servers.redis_url
        return run(options.names or NAMES, quick=options.quick)
    finally:
        servers.stop()
        shutil.rmtree(folder, ignore_errors=True)


def run(names: list[str], *, quick: bool) -> int:
    """Set Django up and run each benchmark on empty tables."""
    import importlib  # noqa: PLC0415

    import django  # noqa: PLC0415 - its settings read the addresses of the servers
    from django.core.management import call_command  # noqa: PLC0415

    django.setup()
    call_command("migrate", verbosity=0)
    from bench import Table, reset  # noqa: PLC0415

    table = Table(scale=10 if quick else 1)
    for name in names:
        reset()
        importlib.import_module(f"bench_{name}").run(table)
    reset()
    print(table.render())
    return 0


if __name__ == "__main__":
    sys.exit(main())
