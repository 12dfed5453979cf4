"""The guard: runs the servers until its standard input is closed.

Usage: python -m taskqueue_project.embedded DIRECTORY [--only postgres|valkey] [--throwaway]

Writes one line of JSON to standard output: the addresses or an error.
"""

import argparse
import contextlib
import json
import os
import select
import shutil
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .data_directory import DataDirectory, EmbeddedError
from .postgres import Postgres
from .server import Server
from .valkey import Valkey

KINDS: dict[str, type[Server]] = {"postgres": Postgres, "valkey": Valkey}
#: Time for a guard whose owner has died to stop its servers, before the next guard gives up.
PREDECESSOR_SECONDS = 30.0
CHECK_SECONDS = 1.0


def main() -> int:
    """Run the servers; return an exit code."""
    parser = argparse.ArgumentParser(prog="python -m taskqueue_project.embedded")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--only", choices=sorted(KINDS), action="append")
    parser.add_argument("--throwaway", action="store_true", help="fast and not durable; the directory is removed")
    options = parser.parse_args()

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner handles Ctrl-C and closes the pipe

    data = DataDirectory(options.directory)
    servers = [KINDS[kind](data, durable=not options.throwaway) for kind in options.only or KINDS]
    try:
        with data.locked("servers.lock", wait_seconds=PREDECESSOR_SECONDS), _running(servers):
            _report({server.name: server.url() for server in servers})
            return _wait(servers)
    except EmbeddedError as error:
        _report({"error": str(error)})
        return 1
    finally:
        if options.throwaway:
            shutil.rmtree(data.root, ignore_errors=True)


@contextlib.contextmanager
def _running(servers: list[Server]) -> Iterator[None]:
    """Start the servers in parallel; stop them at the end."""
    try:
        for server in servers:
            server.start()
        for server in servers:
            server.wait_until_ready()
        yield
    finally:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda server: server.stop(), servers))


def _report(message: dict[str, str]) -> None:
    with contextlib.suppress(BrokenPipeError):  # the owner may have ended already
        print(json.dumps(message), flush=True)  # noqa: T201 - the owner reads it


def _wait(servers: list[Server]) -> int:
    """Return 0 when the owner closes the pipe, 1 when a server ends by itself."""
    while True:
        if select.select([sys.stdin], [], [], CHECK_SECONDS)[0] and not os.read(sys.stdin.fileno(), 1):
            return 0
        if not all(server.is_running() for server in servers):
            return 1


if __name__ == "__main__":
    sys.exit(main())
