"""Commands refuse to start with one line and without secrets."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, ProgrammingError, connection, connections

from queue_app.exceptions import IndexUnavailable
from queue_app.index import Index, hide_password
from queue_app.management import servers
from queue_app.management.servers import check_postgresql, check_redis, database_url
from queue_app.sql.connections import migrate_command
from queue_app.workers.lifecycle import Exit
from queue_app.workers.worker import Worker
from tests.support.faults import failing

PASSWORD = "hunter2-secret"
both = pytest.mark.parametrize("command", ["runworker", "runscheduler"])


def refused(*arguments: str) -> tuple[int, str]:
    """Run a command that must not start; return its exit code and its message, which is one line without secrets."""
    with pytest.raises(CommandError) as caught:
        call_command(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    assert PASSWORD not in message
    return caught.value.returncode, message


# -- arguments ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--concurrency", "0"], "--concurrency must lie between 1 and 1000, not 0."),
        (["--concurrency", "x"], "--concurrency: 'x' is not a number, auto, or auto:LEAST-MOST"),
        (["--processes", "0"], "--processes must lie between 1 and 256"),
        (["--processes", "999"], "--processes"),
        (["--max-tasks", "0"], "--max-tasks"),
        (["--grace", "-1"], "--grace"),
        (["--grace", "nan"], "--grace"),
        (["--queues", "a,b c"], "--queues: 'b c' is not a name"),
        (["--capabilities", "{gpu}"], "--capabilities: '{gpu}' is not a name"),
        (["--name", "two\nlines"], "--name"),
        (["--with-scheduler", "--server", "http://127.0.0.1:1"], "--with-scheduler needs PostgreSQL and Redis"),
    ],
)
def test_bad_options_are_a_usage_error_in_one_line(arguments, words):
    with failing(servers, "check_postgresql"):  # options come first
        code, message = refused("runworker", *arguments)
    assert code == 2
    assert words in message


@both
@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (
            {"WORKER": {"CONCURENCY": 3}},
            "TASKQUEUE WORKER.CONCURENCY is not a setting of the task queue. Did you mean 'CONCURRENCY'?",
        ),
        ({"REDIS_ALIAS": "nowhere"}, "TASKQUEUE REDIS_ALIAS names the cache 'nowhere', which CACHES does not define."),
        ({"REDIS_ALIAS": "memory", "INDEX": "redis"}, "'memory' is not served by django_redis"),
    ],
)
def test_a_setting_that_a_check_refuses_is_a_usage_error(db, settings, command, setting, words):
    settings.CACHES = {**settings.CACHES, "memory": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    settings.TASKQUEUE = setting
    code, message = refused(command)
    assert code == 2
    assert words in message


def test_a_server_that_is_too_strict(db):
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL transaction_isolation = 'repeatable read'")
    code, message = refused("runworker")
    assert code == 2
    assert "READ COMMITTED" in message


def test_help_names_the_exit_codes(capsys):
    with pytest.raises(SystemExit, match="0"):
        call_command("runworker", "--help")
    assert "5 tasks given back" in capsys.readouterr().out


# -- PostgreSQL -------------------------------------------------------------------------------------------


@pytest.fixture
def postgresql(django_db_blocker, override, monkeypatch):
    """Make statements on the tables fail with this error."""

    def fails(error: Exception, cause: Exception | None = None) -> None:
        class Cursor:
            def __enter__(self):
                return self

            def __exit__(self, *_):
                return False

            def execute(self, _sql):
                raise error from cause

        monkeypatch.setattr(connections["default"], "cursor", Cursor)
        override(connections["default"].settings_dict, PASSWORD=PASSWORD)

    return fails


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        ("connection failed:\n  Connection refused", r"^PostgreSQL at postgresql://.* reached: .*: Connection refused"),
        (
            "FATAL: unsupported startup parameter: options",
            r"PgBouncer does not .* remove it from DATABASES\['default'\]",
        ),
        ("FATAL: sorry, too many clients already", "its connections are used up"),
        ('FATAL: too many connections for role "shop"', "its connections are used up"),
        ("FATAL: remaining connection slots are reserved for roles with", "its connections are used up"),
        ("FATAL: the database system is starting up", "wait for some seconds"),
        ('FATAL: password authentication failed for user "shop"', "Correct the user, password and name"),
        (f'cannot parse "postgresql://me:{PASSWORD}@host/db"', "cannot parse"),
    ],
)
def test_a_postgresql_that_cannot_be_reached(postgresql, error, remedy):
    postgresql(OperationalError(error))
    with pytest.raises(CommandError, match=remedy) as caught:
        check_postgresql()
    assert caught.value.returncode == 4
    assert PASSWORD not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_redis_without_memory_fails_with_one_line_although_it_answers(transactional_db):
    error = IndexUnavailable("Redis failed (generation): command not allowed when used memory > 'maxmemory'.")
    with failing(Index, "generation", error):
        code, message = refused("runworker")
    assert code == 4
    assert "Raise its maxmemory" in message


def test_a_certificate_that_nobody_vouches_for():
    error = IndexUnavailable("Redis failed (ping): [SSL: CERTIFICATE_VERIFY_FAILED] self-signed certificate")
    with (
        failing(Index, "ping", error),
        pytest.raises(CommandError, match=r"ssl_ca_certs=/path/ca.pem\) in CACHES\['default'\]"),
    ):
        check_redis()


def test_missing_tables(db):
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE queue_app_indexgeneration RENAME TO elsewhere")
    code, message = refused("runworker")
    assert code == 4
    assert "run `manage.py migrate` first" in message


def test_another_error_is_not_taken_for_missing_tables(postgresql):
    postgresql(ProgrammingError("permission denied for table"))
    with pytest.raises(CommandError, match="cannot be used: permission denied") as caught:
        check_postgresql()
    assert "migrate" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({"USER": "me", "PASSWORD": PASSWORD, "HOST": "h", "PORT": 5, "NAME": "n"}, "postgresql://me@h:5/n"),
        ({"USER": "a@b", "HOST": "", "PORT": "", "NAME": "n"}, "postgresql://a%40b@localhost/n"),
        ({"HOST": "/var/run", "NAME": "n"}, "postgresql:///var/run/n"),
    ],
)
def test_the_address_of_a_database(settings, url):
    assert database_url(settings) == url


# -- Redis -------------------------------------------------------------------------------------------------


@both
def test_redis_out_of_reach(db, settings, command):
    away = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": f"redis://me:{PASSWORD}@127.0.0.1:1/0"}
    settings.CACHES = {**settings.CACHES, "nowhere": away}
    settings.TASKQUEUE = {**settings.TASKQUEUE, "REDIS_ALIAS": "nowhere"}
    code, message = refused(command)
    assert code == 4
    assert "redis://me:***@127.0.0.1:1/0" in message


@pytest.mark.parametrize(
    ("address", "displayed"),
    [
        ("redis://h:1/0", "redis://h:1/0"),
        ("redis://:s3cret@h:1/0", "redis://:***@h:1/0"),
        ("rediss://me:s3@c/r:et@h", "rediss://me:***@h"),
        ("redis://h/0?db=1&password=s3cret&x=1", "redis://h/0?db=1&password=***&x=1"),
        ("redis://:s3cret@a:1, redis://:s3cret@b:2", "redis://:***@a:1, redis://:***@b:2"),
    ],
)
def test_passwords_of_all_shapes_are_hidden(address, displayed):
    assert hide_password(address) == displayed


def test_the_hint_names_a_second_database():
    assert migrate_command("default") == "manage.py migrate"
    assert migrate_command("queue") == "manage.py migrate --database queue"


def test_a_port_that_no_server_can_have_is_refused():
    code, message = refused("runworker", "--health-port", "99999999")
    assert code == 2
    assert message == "--health-port is 99999999; give a port from 1 to 65535."


@both
def test_a_port_in_use_is_refused(transactional_db, command):
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        code, message = refused(command, "--health-port", str(port))
    assert code == 2
    assert message.startswith(f"--health-port: port {port} cannot be used: Address already in use")


def test_another_error_of_the_system_is_not_the_ports(transactional_db):
    full = OSError(24, "Too many open files")
    with failing(Worker, "run", full), pytest.raises(OSError, match="Too many open files"):
        call_command("runworker", verbosity=0)


# -- called by a test -----------------------------------------------------------------------------------


@both
def test_a_transaction_of_the_caller_is_refused(db, command):
    code, message = refused(command)
    assert code == 2
    assert "TransactionTestCase" in message


@both
def test_a_thread_that_may_not_handle_signals_is_refused(transactional_db, command):
    with ThreadPoolExecutor(1) as thread:
        code, message = thread.submit(refused, command).result()
        thread.submit(connections.close_all).result()
    assert code == 2
    assert "main thread" in message


def test_the_process_of_a_caller_goes_on_whatever_the_worker_returns(transactional_db):
    with patch.object(Worker, "run", side_effect=[Exit.GAVE_BACK, Exit.OK]):
        code, message = refused("runworker", "-q")
        call_command("runworker", verbosity=0)
    assert (code, message) == (5, "The worker ended with the exit code 5: GAVE_BACK.")
    assert "end" not in {thread.name for thread in threading.enumerate()}  # it would end the process with code 0
