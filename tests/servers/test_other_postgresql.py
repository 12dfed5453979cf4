"""The protocol on the PostgreSQL that the system has (Debian 12: 15), which is older than the embedded one."""

import os
import re
import subprocess
import sys
from functools import cached_property
from pathlib import Path

import pytest

from taskqueue_project.embedded.data_directory import DataDirectory
from taskqueue_project.embedded.postgres import Postgres
from tests.stock.servers import started
from tests.support.programs import skip

ROOT = Path(__file__).resolve().parent.parent.parent
INSTALLED = Path("/usr/lib/postgresql")
#: All migrations, and with them: storing, claims, ends and retries, the comparison with the index, the sweep.
SERVICES = (
    "lifecycle/test_claim",
    "lifecycle/test_claim_faults",
    "lifecycle/test_finish",
    "repair/test_reconcile",
    "repair/test_sweep",
)
TESTS = ["sql", *(f"services/{name}.py" for name in SERVICES)]


class SystemPostgres(Postgres):
    """The oldest that the system has installed."""

    locale = ("--locale=C",)
    hurried = ("--no-sync",)  # initdb has --set from PostgreSQL 16 on

    @cached_property
    def binaries(self) -> Path:
        """Its programs."""
        return min(INSTALLED.iterdir(), key=lambda path: int(path.name)) / "bin"


@pytest.fixture
def database_url(shared_folder):
    if not INSTALLED.is_dir():
        skip("pg_lsclusters")
    server = SystemPostgres(DataDirectory(shared_folder / "rows"), durable=False)
    with started(server):
        yield server.url()


def test_the_protocol(database_url):
    env = {name: value for name, value in os.environ.items() if not name.startswith(("DJANGO_", "PYTEST_"))}
    env |= {"DATABASE_URL": database_url, "TASKQUEUE_TEST_RUN": f"{os.getpid()}-other"}
    paths = [f"tests/queue_app/{name}" for name in TESTS]
    options = ("-q", "-p", "no:randomly", "-p", "no:cacheprovider", "--no-header")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *paths],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert int(re.search(r"(\d+) passed", ran.stdout)[1]) > 60
