"""The first notifications of a process: a thread imports the client library and connects, and the caller goes on."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from queue_app.index import get_index, notifier
from queue_app.services.notify import index as module
from queue_app.services.notify.index import FirstNotifications
from tests.support.engine import put, take_ids


def join() -> None:
    """Wait for the end of the thread."""
    for thread in threading.enumerate():
        if thread.name == "taskqueue-first-notifications":
            thread.join(10)


@pytest.fixture
def fresh(monkeypatch) -> Iterator[FirstNotifications]:
    """A process that has not opened the index; opening it begins when ``go`` is set."""
    found = FirstNotifications()
    found.go = threading.Event()
    opened = threading.Event()
    plain = module.notify_index

    def after_opening(*args):
        if not opened.is_set():
            assert found.go.wait(10)
            opened.set()
        return plain(*args)

    monkeypatch.setattr(module, "first", found)
    monkeypatch.setattr(module, "is_open", opened.is_set)
    monkeypatch.setattr(module, "notify_index", after_opening)
    yield found
    found.go.set()
    join()


def test_an_enqueue_does_not_wait_for_the_import(engine, fresh):
    hand = engine.worker("a")
    ids = [put(), put()]
    assert take_ids(hand, 2) == []
    fresh.go.set()
    join()
    assert take_ids(hand, 2) == ids
    last = put()
    assert take_ids(hand) == [last], "this one needs no thread"


def test_without_threads_a_later_notification_sends_those_that_wait(engine, fresh, monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", lambda self: None)
    hand = engine.worker("a")
    fresh.go.set()
    ids = [put(), put()]
    assert take_ids(hand, 2) == ids


@pytest.mark.parametrize("gathered_for", [0.0, 60.0])
def test_where_no_thread_can_be_started_the_caller_imports(engine, fresh, override, monkeypatch, gathered_for):
    """In a function that atexit calls; in Python 3.12, also in a thread for which the interpreter waits at its end."""
    refused = RuntimeError("can't create new thread at interpreter shutdown")
    hand = engine.worker("a")
    get_index().flush()
    override(notifier, GATHER_SECONDS=gathered_for)
    monkeypatch.setattr(threading.Thread, "start", Mock(side_effect=refused))
    monkeypatch.setattr(get_index()._notifier, "_thread", None)
    fresh.go.set()
    tasks = [put() for _ in range(3)]
    assert not get_index()._notifier._count, "nothing waits for a thread"
    assert take_ids(hand, 3) == tasks


def test_an_import_that_hangs_holds_notifications_up_for_a_while_only(engine, fresh, override):
    hand, first = engine.worker("a"), put()
    override(module, PATIENCE_SECONDS=-1.0)
    threading.Timer(0.1, fresh.go.set).start()
    second = put()
    join()
    assert sorted(take_ids(hand, 2)) == sorted([first, second])


FORK = """
import os, sys, threading
from django.core.management import execute_from_command_line
execute_from_command_line(["manage.py", "version"])
from queue_app.index import get_index, notifier
from queue_app.services.notify import index as module

class Late:
    returned = threading.Event()

    def find_spec(self, name, path=None, target=None):
        assert name != "redis" or self.returned.wait(60)

sys.meta_path.insert(0, Late())
module.PATIENCE_SECONDS = 0.01  # the import may take longer
assert "redis" not in sys.modules
module.first.notify((), ())
assert "redis" not in sys.modules, "the caller waited for the import"
Late.returned.set()
if os.fork() == 0:
    import redis
    redis.Redis
    os._exit(7)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7, "the child could not import the library"
assert "redis" in sys.modules, "fork waited for the thread"
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own."""
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "taskqueue_project.settings.test"}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False, env=environment
    )


def test_a_process_that_forks_after_its_first_notification_leaves_its_child_whole():
    done = run(FORK)
    assert done.returncode == 0, done.stderr


BESIDE = """
import sys, threading
from django.core.management import execute_from_command_line
execute_from_command_line(["manage.py", "version"])
from queue_app.index import get_index, notifier
from queue_app.services.notify import index as module

class Halfway:
    reached, go_on = threading.Event(), threading.Event()

    def find_spec(self, name, path=None, target=None):
        if name == "redis.asyncio" and threading.current_thread() is not threading.main_thread():
            self.reached.set()
            self.go_on.wait(1)

sys.meta_path.insert(0, Halfway())
module.first.notify((), ())
assert Halfway.reached.wait(60)
threading.Timer(0.2, Halfway.go_on.set).start()
from django.core.cache import cache
cache.client
module.get_index()
"""


def test_code_that_uses_the_cache_or_the_index_beside_the_import_gets_whole_modules():
    done = run(BESIDE)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("start", "is_imported"),
    [
        ("from django.core.wsgi import get_wsgi_application as start; start()", True),
        ("from django.core.asgi import get_asgi_application as start; start()", True),
        ("from django import setup as start; start()", True),
        ("from django.core.management import execute_from_command_line as start; start(['', 'version'])", False),
    ],
)
def test_a_server_or_a_script_imports_the_library_when_it_starts_and_a_command_does_not(start, is_imported):
    done = run(f"{start}\nimport sys; print('redis' in sys.modules)")
    assert done.stdout.split()[-1] == str(is_imported), done.stderr
