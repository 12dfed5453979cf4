"""The document and the server agree: the whole of schemathesis, with all checks, on every address.

Not by default: `./dev fuzz`, which CI runs.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.conf import settings as project
from django.contrib.auth.models import Permission, User

from queue_app.models import Queue
from queue_app.remote import tokens
from queue_app.services.control.api_keys import create_key, forget_keys

pytestmark = [pytest.mark.fuzz, pytest.mark.timeout(1800)]
#: Random requests per address, beside those that each schema implies.
#: CI leaves out the random phase, whose requests differ from run to run.
PHASES = os.environ.get("TASKQUEUE_FUZZ_PHASES", "examples,coverage,fuzzing")
EXAMPLES = os.environ.get("TASKQUEUE_FUZZ_EXAMPLES", "10")
CONFIG = Path(__file__).with_name("schemathesis.toml")
USERS, WORKERS = ("--exclude-path-regex", "^/internal"), ("--include-path-regex", "^/internal")


@pytest.fixture
def address(transactional_db, settings, live_server, monkeypatch):
    unlimited = dict.fromkeys(("HEAVY_PER_MINUTE", "READS_PER_MINUTE", "SUBMITS_PER_MINUTE"), 0)
    settings.TASKQUEUE = {**project.TASKQUEUE, "API": unlimited}
    monkeypatch.setattr("queue_app.api.views.tasks.wait_for_end", lambda *_: False)
    monkeypatch.setattr("queue_app.workflows.views.wait_for_workflow", lambda *_: False)
    monkeypatch.setattr("queue_app.services.worker.registration.wait_for_wake", lambda *_: None)
    Queue.objects.get_or_create(name="default")
    forget_keys()
    yield live_server.url
    forget_keys()


def secret_of_a_user() -> str:
    user = User.objects.create_user("fuzz", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="queue_app"))
    return create_key(user, "fuzz")[1]


@pytest.mark.parametrize("which", [USERS, WORKERS], ids=["users", "workers"])
def test_no_difference_is_found(address, which, tmp_path):
    secret = secret_of_a_user() if which == USERS else tokens.create("fuzz")[1]
    report = tmp_path / "report.txt"
    program = Path(sys.executable).with_name("st")
    command = [
        program, "--config-file", CONFIG, "run", f"{address}/api/schema",
        "--checks", "all", "--phases", PHASES, "-n", EXAMPLES,
        "--continue-on-failure", "--seed", "20260101", "--generation-database", "none", "-w", "2", "--no-color",
        "-H", f"Authorization: Bearer {secret}", *which,
    ]  # fmt: skip
    with report.open("w") as file:
        hooks = {"SCHEMATHESIS_HOOKS": "tests.fuzz.hooks", "PYTHONPATH": str(Path(__file__).parents[2])}
        found = subprocess.run(
            command, cwd=tmp_path, env={**os.environ, **hooks}, stdout=file, stderr=subprocess.STDOUT, check=False
        )
    assert found.returncode == 0, report.read_text()[-20_000:]
