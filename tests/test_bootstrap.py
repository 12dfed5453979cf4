"""What tests/conftest.py promises: servers, separation, a clean index, the migrations' rows, turns."""

import os
import subprocess
import sys

import pytest
from django.conf import settings
from django.db import connection
from django_redis import get_redis_connection

from tests.integration.processes import ROOT
from tests.support.turns import somebody_waits_to_be_alone
from tests.support.waiting import until


@pytest.mark.parametrize("package", ["queue_app", "workers"])
def test_tests_lie_at_the_path_of_their_package(package):
    folders = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests" / package).rglob("test_*.py")}
    assert [folder for folder in folders if not (ROOT / folder / "__init__.py").is_file()] == []


def keys():
    return list(get_redis_connection("default").scan_iter(match=f"*{settings.TASKQUEUE['KEY_PREFIX']}*"))


@pytest.mark.parametrize("_", range(2))
@pytest.mark.django_db(transaction=True)
def test_the_migrations_rows_survive_a_flush(_):
    from queue_app.models import PriorityPolicy, Queue  # noqa: PLC0415 - needs Django's setup

    assert PriorityPolicy.objects.count() == 5
    Queue.objects.filter(pk="default").delete()


@pytest.mark.parametrize("_", range(2))
def test_the_index_is_empty_at_the_start_of_a_test(_):
    assert keys() == []
    get_redis_connection("default").set(f"{{{settings.TASKQUEUE['KEY_PREFIX']}}}:left behind", 1)
    assert len(keys()) == 1


def test_keys_of_others_are_left_alone(clean_index):
    client = get_redis_connection("default")
    client.set(f"{{{settings.TASKQUEUE['KEY_PREFIX']}}}:mine", 1)
    client.set("someone-elses", 1)
    clean_index()
    assert keys() == []
    assert client.getdel("someone-elses") == b"1"


def test_a_process_of_a_test_sees_its_database_and_its_index(process_env):
    from queue_app.models import Queue  # noqa: PLC0415 - needs Django's setup

    Queue.objects.create(name="only-here")
    script = """
import django; django.setup()
from django.conf import settings; from queue_app.models import Queue
print(Queue.objects.filter(name="only-here").count(), settings.TASKQUEUE["KEY_PREFIX"])
"""
    result = subprocess.run([sys.executable, "-c", script], env=process_env, capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["1", settings.TASKQUEUE["KEY_PREFIX"]]


@pytest.mark.django_db
def test_the_database_is_a_separate_one():
    assert connection.settings_dict["NAME"].startswith("test_")
    assert os.environ["DATABASE_URL"].rpartition("/")[2] != connection.settings_dict["NAME"]


TAKES_A_TURN = """
import sys
from pathlib import Path
from tests.support.turns import turn
turns, log, name, how = sys.argv[1:]
def note(what):
    with Path(log).open("a") as file:
        file.write(what + name + " ")
with turn(turns, alone=how == "alone"):
    note("+")
    print("in", flush=True)
    sys.stdin.read()
    note("-")
"""


def test_a_serial_test_waits_for_those_that_run_and_lets_nobody_overtake(tmp_path):
    turns, log = tmp_path / "turns", tmp_path / "log"
    turns.touch()

    def start(name, how):
        command = [sys.executable, "-c", TAKES_A_TURN, turns, log, name, how]
        return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def is_in(process):
        return process.stdout.readline() == "in\n"

    def leave(process):
        process.communicate(timeout=240)
        assert process.returncode == 0

    one, two = start("1", "beside"), start("2", "beside")
    assert is_in(one)
    assert is_in(two)
    serial = start("S", "alone")
    until(lambda: somebody_waits_to_be_alone(turns), "it waits")
    late = start("3", "beside")
    leave(one)
    leave(two)
    assert is_in(serial)
    leave(serial)
    assert is_in(late)
    leave(late)
    assert log.read_text().split()[-6:] == ["-1", "-2", "+S", "-S", "+3", "-3"]
