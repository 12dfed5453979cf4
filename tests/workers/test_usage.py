"""What a worker uses: its own process and those of its pool, between two readings."""

import os
import subprocess
import sys
import time

import pytest

from queue_app.models import Worker
from queue_app.workers import usage
from queue_app.workers.usage import UsageMeter


def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_a_busy_process_shows_processor_time_and_memory():
    meter = UsageMeter()
    burn(0.1)
    busy = meter.read()
    assert busy.cpu_percent > 0
    assert 2**20 < busy.memory_bytes < 2**34


def test_the_share_is_that_of_the_time_between_two_readings(monkeypatch):
    clock, used = [100.0], {os.getpid(): 7.0, 4711: 3.0}
    monkeypatch.setattr(usage.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(usage, "_cpu_seconds", used.get)
    meter = UsageMeter(lambda: [4711, 4712])
    for seconds, changes, percent in [
        (10, {os.getpid(): 12.0, 4711: 8.0}, 100.0),
        (10, {}, 0.0),
        (4, {4712: 1.0}, 25.0),  # started since
        (4, {4711: 0.5}, 0.0),  # another process with the same pid
    ]:
        clock[0] += seconds
        used |= changes
        assert meter.read().cpu_percent == percent


def test_the_processes_of_the_pool_count():
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        meter = UsageMeter(lambda: [child.pid])
        alone = UsageMeter()
        end = time.monotonic() + 20
        while (found := meter.read()).cpu_percent < 5 and time.monotonic() < end:
            time.sleep(0.1)
        assert found.cpu_percent >= 5
        assert found.memory_bytes > alone.read().memory_bytes
    finally:
        child.kill()
        child.wait()
    assert meter.read().memory_bytes is not None, "a process that has gone is left out"


def test_a_system_without_proc_tells_the_processor_time_only(monkeypatch):
    monkeypatch.setattr(usage, "_cpu_seconds", lambda _pid: None)
    monkeypatch.setattr(usage, "resident_bytes", lambda _pid: None)
    meter = UsageMeter()
    burn(0.05)
    found = meter.read()
    assert found.cpu_percent > 0
    assert found.memory_bytes is None


@pytest.mark.django_db(transaction=True)
def test_a_worker_tells_it_with_its_heartbeat(hire):
    worker = hire()
    assert worker._beat()
    row = Worker.objects.get(pk=worker.id)
    assert row.cpu_percent is not None
    assert row.memory_bytes > 2**20
    assert row.supervisor_pid is None
    assert row.pid == os.getpid()
