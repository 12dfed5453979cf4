"""Programs beside the tests, on their database and index: the environment of each, and web servers."""

import http.client
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from tests.support.waiting import until


def environment() -> dict[str, str]:
    """Return the environment of a process that uses the database and the index of the tests."""
    from django.db import connection  # noqa: PLC0415 - needs the settings

    parameters = connection.settings_dict
    address = f"{parameters['HOST']}:{parameters['PORT']}" if parameters["PORT"] else parameters["HOST"]
    user = ":".join(quote(parameters[name], safe="") for name in ("USER", "PASSWORD") if parameters[name])
    return os.environ | {
        "DATABASE_URL": f"postgresql://{user}@{address}/{parameters['NAME']}",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "PYTHONWARNINGS": "default",
    }


@contextmanager
def serving(arguments: Callable[[int], tuple[str, ...]], more: dict[str, str], **limits: object) -> Iterator[int]:
    """Run Python with the arguments for a free port, and with limits of the API; yield the port once it answers."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    settings = {f"TASKQUEUE__API__{name}": str(value) for name, value in limits.items()}
    environ = environment() | {"DJANGO_SETTINGS_MODULE": "taskqueue_project.settings.test"} | settings | more
    server = subprocess.Popen([sys.executable, "-W", "ignore", *arguments(port)], env=environ, start_new_session=True)

    def answers() -> bool:
        assert server.poll() is None
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            with closing(connection):
                connection.request("GET", "/healthz")
                return connection.getresponse().status == 200
        except OSError:
            return False

    try:
        until(answers, "it answers")
        yield port
    finally:
        os.killpg(server.pid, signal.SIGKILL)  # a graceful stop would wait for streams, and gunicorn's workers serve on
        server.wait(60)
