"""rebuild_lock: a slow rebuild keeps the lock, and a dead or hanging one loses it."""

import os
import signal
import subprocess
import sys
import threading

import pytest
from django.core.management import call_command

from queue_app.exceptions import IndexUnavailable
from queue_app.services.repair import rebuild as module
from queue_app.services.repair.rebuild import rebuild, rebuild_if_needed, rebuild_lock
from tests.support.engine import assert_index_agrees, flush, index_away, put_many
from tests.support.index_state import client_of
from tests.support.waiting import until


@pytest.fixture
def remaining(engine):
    """Return how many milliseconds the lock lasts; negative if nobody holds it."""
    client, key = client_of(engine.index), engine.index.keys.lock("rebuild")
    return lambda milliseconds=None: client.pttl(key) if milliseconds is None else client.pexpire(key, milliseconds)


def renewing_threads():
    return [thread for thread in threading.enumerate() if thread.name == "taskqueue-rebuild-lock"]


def test_a_step_may_take_longer_than_the_lock_lasts(engine, remaining, before):
    """Else two processes would take the lock from each other for ever, and no task would start."""
    put_many(3)
    flush(engine)
    others = []

    def take_long():
        remaining(1500)
        until(lambda: remaining() > 2000, "the lock is renewed")
        others.append(rebuild())

    before(engine.index, "restore_leases", take_long)
    assert rebuild_if_needed() is not None
    assert others == [None], "another process waits"
    assert remaining() < 0, "the lock has been released"
    assert_index_agrees()


def test_a_step_that_hangs_loses_the_lock(engine, remaining, override):
    override(module, LOCK_SECONDS=0.2, STEP_SECONDS=0.0)
    with rebuild_lock(engine.index) as lock:
        until(lambda: remaining() < 0, "the lock lapses")
        with rebuild_lock(engine.index) as other:
            assert other is not None
            assert other.token != lock.token


def test_a_step_that_ends_prolongs_the_lock(engine, override):
    override(module, LOCK_SECONDS=0.05, STEP_SECONDS=1e9)
    with rebuild_lock(engine.index) as lock:
        lock._step_began_at -= 2e9  # as if it had begun long ago
        lock.end_step()
        [thread] = renewing_threads()
        thread.join(0.2)
        assert thread.is_alive()


def test_the_lock_of_another_process_is_left_alone(engine, override):
    override(module, LOCK_SECONDS=0.05)
    with rebuild_lock(engine.index):
        client_of(engine.index).set(engine.index.keys.lock("rebuild"), "another", px=9000)
        until(lambda: not renewing_threads(), "the thread ends")
    assert client_of(engine.index).get(engine.index.keys.lock("rebuild")) == b"another"


def test_no_thread_is_left(engine):
    with rebuild_lock(engine.index):
        assert renewing_threads()
    assert not renewing_threads()
    engine.index.lock("rebuild", "another process", 9)
    with rebuild_lock(engine.index) as lock:
        assert lock is None
        assert not renewing_threads()


def test_redis_may_be_away_for_a_moment(engine, remaining, override):
    override(module, LOCK_SECONDS=0.5)
    with rebuild_lock(engine.index):
        with index_away() as tried:
            until(lambda: "lock" in tried, "a renewal fails")
        remaining(400)
        until(lambda: remaining() > 400, "the lock is renewed")
    with pytest.raises(IndexUnavailable), rebuild_lock(engine.index), index_away():
        raise IndexUnavailable("away")
    assert module.unreleased == []


HOLD_AND_EXIT = """
import threading, django
django.setup()
from queue_app.index import get_index
from queue_app.services.repair.rebuild import rebuild_lock
held = threading.Event()
def hold():
    with rebuild_lock(get_index()):
        held.set()
        threading.Event().wait()
threading.Thread(target=hold, daemon=True).start()
held.wait()
"""


def test_a_process_that_exits_in_the_middle_of_a_rebuild_releases_the_lock(engine, remaining, process_env):
    subprocess.run([sys.executable, "-c", HOLD_AND_EXIT], env=process_env, check=True)
    assert remaining() < 0


def test_sigterm_ends_the_command_in_the_middle_and_releases_the_lock(engine, remaining, monkeypatch):
    flush(engine)
    monkeypatch.setattr(engine.index, "restore_leases", lambda _: os.kill(os.getpid(), signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as exited:
        call_command("taskqueue", "rebuild")
    assert exited.value.code == 128 + signal.SIGTERM
    assert remaining() < 0
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_forked_child_leaves_the_lock_of_its_parent_alone(engine, remaining, monkeypatch):
    with rebuild_lock(engine.index):
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: -1)
            module.release_at_exit()
        assert remaining() > 0
        module.release_at_exit()
        assert remaining() < 0
