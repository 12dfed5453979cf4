"""An index belongs to one database: another project, or a copy of the database, is refused."""

import io

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from queue_app import checks
from queue_app.core.reasons import Level
from queue_app.diagnose.explain import explain
from queue_app.diagnose.work import check_index
from queue_app.exceptions import IndexNotReady, IndexOfAnotherDatabase
from queue_app.models import IndexGeneration
from queue_app.services.control.pause import pause, pause_everything
from queue_app.services.control.queues import set_queue_limits
from queue_app.services.lifecycle.actions import cancel
from queue_app.services.notify.index import breaker
from queue_app.services.owner import check_owner
from queue_app.services.repair.rebuild import rebuild, rebuild_if_needed
from queue_app.sql import doctor, snapshot
from queue_app.sql.doctor import database_identity
from tests.support.engine import assert_index_agrees, index_away, put, take, take_ids
from tests.support.index_state import client_of

OTHER = "7431260212345678901/shop/public"


def bind(engine, **fields):
    """Let the index be another database's."""
    client_of(engine.index).hset(engine.index.keys.generation, mapping={"database": OTHER} | fields)


def dump(engine):
    """Return all keys but the generation, which has the time of the last look."""
    client, keys = client_of(engine.index), engine.index.keys
    return {key: client.dump(key) for key in client.scan_iter(match=keys.everything) if key != keys.generation.encode()}


def test_another_project_changes_nothing_in_the_index(engine):
    put()
    bind(engine, number=snapshot.generation() + 3)
    before = dump(engine)
    for attempt in (rebuild, rebuild_if_needed):
        with pytest.raises(IndexOfAnotherDatabase, match=r"belongs to the database 'shop' .*KEY_PREFIX"):
            attempt()
    assert dump(engine) == before


def test_pauses_limits_and_cancellations_in_a_copy_do_not_reach_the_index_of_the_original(engine):
    """Staging may have production's data and, by mistake, its Redis."""
    task, other = put(), put()
    bind(engine)
    before = dump(engine)
    pause("default")
    breaker.reset()
    set_queue_limits("default", max_concurrent=1)
    breaker.reset()
    pause_everything()
    breaker.reset()
    assert cancel(task) == "cancelled"
    assert dump(engine) == before
    assert explain(other).codes[0] == "index_unreachable"
    assert "belongs to another database" in explain(other).reasons[0].text


def test_an_index_that_changes_hands_gets_no_task_granted(engine):
    """Both had lost the index, and the other one was first; by chance the numbers are the same."""
    hand, task = engine.worker(), put()
    bind(engine)
    with pytest.raises(IndexOfAnotherDatabase):
        rebuild_if_needed()
    with pytest.raises(IndexNotReady):
        take(hand)
    rebuild(adopt=True)
    engine.index.register(hand.profile, hand.id)
    assert take_ids(hand) == [task]


def test_the_check_before_the_rebuild_may_be_too_early(engine):
    number = snapshot.raise_generation()
    bind(engine)
    assert not engine.index.begin_generation(number, database=database_identity())
    assert engine.index.generation().owner == OTHER


def test_a_database_that_replaced_another_takes_its_index_over(engine):
    put()
    bind(engine)
    call_command("taskqueue", "rebuild", "--adopt", stdout=io.StringIO())
    assert engine.index.generation().owner == database_identity()
    assert_index_agrees()


@pytest.mark.parametrize("junk", [b"\xff junk", b"7", b"", b"no/identity/at all"])
def test_a_damaged_owner_binds_nothing(engine, junk):
    bind(engine, database=junk)
    assert rebuild() is not None
    assert engine.index.generation().owner == database_identity()


@pytest.mark.parametrize("command", ["runworker", "runscheduler"])
def test_processes_refuse_to_start_with_one_line_that_says_what_to_set(engine, override, command):
    bind(engine)
    with pytest.raises(CommandError) as refused:
        call_command(command)
    assert refused.value.returncode == 2
    message = str(refused.value)
    assert "\n" not in message
    assert "TASKQUEUE['KEY_PREFIX']" in message
    assert "taskqueue rebuild --adopt" in message
    assert "override_queue(real=True)" in message
    override(connection.settings_dict, NAME="shop")
    with pytest.raises(CommandError) as refused:
        call_command(command)
    assert "override_queue" not in str(refused.value)


def test_the_system_check(engine, override):
    override(connection.settings_dict, NAME="shop")
    assert checks.check_owner(databases=["default"]) == []
    bind(engine)
    (found,) = checks.check_owner(databases=["default"])
    assert found.id == "queue_app.E014"
    assert "'shop'" in found.msg
    assert "KEY_PREFIX" in found.hint
    assert checks.check_owner(databases=None) == [], "only with --database"
    with index_away():
        assert checks.check_owner(databases=["default"]) == [], "migrate does not need Redis"


def test_a_project_runs_its_tests_beside_its_development_server(engine):
    bind(engine)
    assert checks.check_owner(databases=["default"]) == [], "Django's test runner runs this check"


def test_doctor(engine):
    bind(engine)
    (found,) = check_index()
    assert found.level is Level.FAIL
    assert "'shop'" in found.message
    assert "KEY_PREFIX" in found.hint


def test_a_service_that_hides_the_number_of_the_cluster(engine, monkeypatch):
    """Then the random number of the row stands for it."""
    monkeypatch.setattr(doctor, "_CLUSTER", "SELECT 1 / 0")
    connection.close()  # a new one is asked again
    row = IndexGeneration.objects.get()
    assert database_identity().split("/")[0] == str(row.database)
    connection.close()


def test_a_schema_of_a_tenant_in_front_of_that_of_the_tables_changes_nothing(engine):
    before = database_identity()
    connection.close()
    try:
        with connection.cursor() as cursor:
            cursor.execute("CREATE SCHEMA ann")
            cursor.execute("SET search_path = ann, public")
        assert database_identity() == before
        check_owner()
    finally:
        with connection.cursor() as cursor:
            cursor.execute("RESET search_path")
            cursor.execute("DROP SCHEMA ann")
