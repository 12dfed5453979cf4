"""Two versions of a project at once: a deployment in the middle of a stream of calls loses and repeats none."""

import signal
import threading
from collections import Counter
from pathlib import Path

from django.db import connection

from queue_app.core.records import NewTask
from queue_app.core.states import Status
from queue_app.models import Task
from queue_app.services import enqueue
from tests.integration.processes import ROOT
from tests.support.waiting import let_pass, until

FOLDER = Path(__file__).parent / "rolling"
SHOP = "rolling_shop.tasks"


def test_a_rolling_deployment_loses_and_repeats_no_call(fleet, tmp_path):
    log = tmp_path / "rolling.log"
    log.touch()

    def worker(version: str):
        path = f"{FOLDER / version}:{ROOT}"
        settings = {"DJANGO_SETTINGS_MODULE": "tests.integration.rolling.settings", "PYTHONPATH": path}
        return fleet.worker("--concurrency", "4", ROLLING_LOG=str(log), **settings)

    def call(number: int, version: str) -> None:
        """Enqueue as a web process of this version does."""
        args, metadata = ([number, 1.5], None) if version == "old" else ([number, 150], {"task_version": 2})
        enqueue(NewTask(task_type=f"{SHOP}.charge", args=args, metadata=metadata))
        name = "mail_receipt" if version == "old" else "send_receipt"
        enqueue(NewTask(task_type=f"{SHOP}.{name}", args=[number]))

    numbers = iter(range(10**6))
    deployed = threading.Event()
    finished = threading.Event()

    def load(version: str) -> None:
        try:
            while not finished.is_set():
                if version == "old" or deployed.is_set():
                    call(next(numbers), version)
                let_pass(0.02)
        finally:
            connection.close()

    fleet.scheduler(DJANGO_SETTINGS_MODULE="tests.integration.lean")
    old = worker("old")
    threads = [threading.Thread(target=load, args=[version]) for version in ("old", "old", "new")]
    for each in threads:
        each.start()
    try:
        until(lambda: "old" in log.read_text(), "the old worker works")
        worker("new")
        deployed.set()  # from now on, web processes of both versions enqueue, and workers of both work
        put_off = Task.objects.filter(status=Status.SCHEDULED)  # a new call on the old worker
        until(lambda: " new" in log.read_text() and put_off.exists(), "both work")
        let_pass(1)
        old.send(signal.SIGTERM)
        let_pass(1)
    finally:
        finished.set()
        for each in threads:
            each.join()
    total = next(numbers)
    Task.objects.filter(status=Status.SCHEDULED).update(run_after="2026-01-01T00:00:00Z")  # put off by the old worker
    until(lambda: not Task.objects.exclude(status=Status.COMPLETED).exists(), "all is done")

    done = Counter(line.rsplit(" ", 1)[0] for line in log.read_text().splitlines())
    assert done == {
        f"{what} {n}{cents}": 1 for n in range(total) for what, cents in (("charge", " 150"), ("receipt", ""))
    }
    assert {line.rsplit(" ", 1)[1] for line in log.read_text().splitlines()} == {"old", "new"}
