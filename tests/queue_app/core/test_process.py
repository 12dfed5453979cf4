"""Identities of processes stay unique when pids are reused."""

import os
import subprocess

from queue_app.core.process import machine_identity, process_identity


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["tail", "-f", "/dev/null"])


def test_a_process_keeps_its_identity_while_it_lives():
    child = sleeper()
    try:
        first = process_identity(child.pid)
        assert first == process_identity(child.pid)
        assert first != process_identity(os.getpid())
        assert first.startswith(machine_identity())
    finally:
        child.kill()
        child.wait()


def test_the_identity_changes_when_the_process_ends():
    child = sleeper()
    alive = process_identity(child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie: its parent has not reaped it yet
    zombie = process_identity(child.pid)
    child.wait()
    assert alive not in {zombie, process_identity(child.pid)}
