"""A process that cannot end by itself is ended, with its stacks on the standard error."""

import os
import signal
import subprocess
import sys

import pytest

from tests.support.waiting import let_pass

SCRIPT = """
import ctypes, threading, time
from queue_app.workers import process_guard
from queue_app.workers.lifecycle import Shutdown
process_guard.EXIT_SECONDS = 0.3
shutdown = Shutdown(0.1)
guard = process_guard.ProcessGuard(0.5, shutdown)
guard.fork_watcher()
guard.__enter__()
def waits(seconds=60): time.sleep(seconds)
waits(1)
print("alive", flush=True)
"""
ENDS = {
    "keeps the lock of Python": ("def keeps(): ctypes.PyDLL(None).sleep(60)\nkeeps()", -signal.SIGALRM, "in keeps"),
    "keeps it in a thread": (
        "threading.Thread(target=lambda: ctypes.PyDLL(None).sleep(60)).start()\nwaits()",
        -signal.SIGALRM,
        "in <lambda>",
    ),
    "does not end after a drain": ("shutdown.drain()\nwaits()", 1, "in waits"),
    "does not end when hurried": ("shutdown.hurry()\nwaits()", 1, "in waits"),
    "does not end when dead": ("shutdown.lose('dead')\nwaits()", 1, "in waits"),
    "ends": ("guard.__exit__()\nwaits(1)", 0, ""),
}


SIMILAR = {"does not end when hurried", "does not end when dead"}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] if kind in SIMILAR else []) for kind in ENDS]
)
def test_a_process_that_cannot_end_by_itself_is_ended(kind):
    code, exit_code, stack = ENDS[kind]
    found = subprocess.run(
        [sys.executable, "-c", SCRIPT + code], capture_output=True, text=True, timeout=50, check=False
    )
    assert (found.returncode, found.stdout) == (exit_code, "alive\n")
    assert stack in found.stderr


@pytest.mark.parametrize("thread", ["", "threading.Thread(target=time.sleep, args=(60,)).start()"])
def test_a_process_ends_although_a_task_has_left_a_thread(thread):
    code = f"""
import threading, time
from queue_app.workers import lifecycle
lifecycle.THREADS_SECONDS = 0.2
lifecycle.end_with_main_thread()
{thread}
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=50, check=False).returncode == 0


FREEZE = """
import os, threading, time
from queue_app.workers import process_guard
from queue_app.workers.lifecycle import Shutdown
process_guard.MAX_GAP_SECONDS = 0.5
guard = process_guard.ProcessGuard(1.0, Shutdown(0.1))
guard.fork_watcher()
guard.__enter__()
for line in iter(input, "end"):
    frozen = guard.take_frozen()
    print(f"{frozen:.1f}", flush=True)
guard.__exit__()
"""


@pytest.mark.slow
def test_a_freeze_ends_no_process_and_is_measured():
    """All processes of a container stop, for longer than a stuck process has, and continue: twice."""
    with subprocess.Popen(
        [sys.executable, "-c", FREEZE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0
    ) as process:

        def ask() -> float:
            process.stdin.write("frozen?\n")
            process.stdin.flush()
            return float(process.stdout.readline())

        assert ask() == 0
        for _ in range(2):
            os.killpg(process.pid, signal.SIGSTOP)
            let_pass(1.5)  # the fault itself
            os.killpg(process.pid, signal.SIGCONT)
            assert 1 <= ask() < 30
        assert ask() == 0
        process.stdin.write("end\n")
        process.stdin.flush()
        assert process.wait(30) == 0
        with pytest.raises(ProcessLookupError):  # its watcher has ended, too
            os.killpg(process.pid, 0)
