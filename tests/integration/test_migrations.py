"""The migrations on real databases: users and queue in two of them, all the way back to nothing, and forward again."""

import ast
import json
import os
import subprocess
import sys
from contextlib import contextmanager
from importlib import import_module
from urllib.parse import urlsplit

import psycopg
import pytest
from django.db import connection

from tests.integration.processes import ROOT

GROUPS = ["Task queue: Admin", "Task queue: Operator", "Task queue: Viewer"]
LINKS = """
SELECT auth_group.name, array_agg(codename::text ORDER BY codename)
FROM auth_group
JOIN auth_group_permissions ON group_id = auth_group.id
JOIN auth_permission ON permission_id = auth_permission.id
GROUP BY 1 ORDER BY 1
"""
_PERMISSIONS = (
    "SELECT codename FROM auth_permission JOIN django_content_type type ON type.id = content_type_id"
    " WHERE app_label = 'queue_app'"
)

#: Runs commands one after the other, each as manage.py does.
COMMANDS = """
import json, sys
from django.core.management import execute_from_command_line

for command in json.loads(sys.argv[1]):
    execute_from_command_line(["manage.py", *command])
"""

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@contextmanager
def database(name, copy_of="template1"):
    """Make a database on the server of the tests, empty unless it is a copy; yield its address."""
    url = os.environ["DATABASE_URL"]
    with psycopg.connect(url, autocommit=True) as server:
        name = f"{name}_{os.getpid()}"
        server.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        server.execute(f"CREATE DATABASE {name} TEMPLATE {copy_of}")
        try:
            yield urlsplit(url)._replace(path=f"/{name}").geturl()
        finally:
            server.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def urls():
    with database("users") as default, database("queue") as queue:
        yield {"default": default, "queue": queue}


@pytest.fixture(scope="module")
def migrated():
    """Yield the name of a database with the tables of all apps, to be copied."""
    with database("migrated") as url:
        run({"default": url, "queue": url}, "QueueOnly", ["migrate", "-v0", "--database", "queue"])
        yield urlsplit(url).path.strip("/")


def run(urls, router, *commands):
    """Run commands of manage.py with one of the routers, in one process; return their output."""
    env = os.environ | {f"{name.upper()}_URL": url for name, url in urls.items()}
    env |= {"DJANGO_SETTINGS_MODULE": "tests.integration.two_databases", "ROUTER": router}
    ran = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps(commands)],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def ask(url, statement, *values):
    with psycopg.connect(url, autocommit=True) as server:
        return server.execute(statement, values or None).fetchall()


def has_table(url, name):
    return bool(ask(url, "SELECT FROM pg_class WHERE relname = %s", name))


def left_behind(url):
    """Return what names the app: tables, applied migrations, permissions, content types, groups."""
    found = [
        "SELECT relname FROM pg_class WHERE relname LIKE 'queue\\_app%' OR relname LIKE 'taskqueue%'",
        "SELECT name FROM django_migrations WHERE app = 'queue_app'",
    ]
    if has_table(url, "auth_group"):
        found += [
            _PERMISSIONS,
            "SELECT model FROM django_content_type WHERE app_label = 'queue_app'",
            "SELECT name FROM auth_group ORDER BY 1",
        ]
    return [row[0] for statement in found for row in ask(url, statement)]


@pytest.mark.parametrize(
    ("router", "first"),
    [("UsersOnDefault", "queue"), ("UsersOnDefault", "default"), ("QueueOnly", "queue"), ("Apart", "queue")],
)
def test_users_in_one_database_and_the_queue_in_another(urls, router, first):
    aliases = (first, *({"queue", "default"} - {first}))
    forward = (["migrate", "-v0", "--database", alias] for alias in aliases)
    create = ["createsuperuser", "-v0", "--noinput", "--username", "ann", "--email", "ann@example.com"]
    key = json.loads(run(urls, router, *forward, create, ["taskqueue", "key", "create", "ann", "--json"]))
    links = ask(urls["default"], LINKS)
    assert [name for name, _ in links] == GROUPS
    declared = import_module("queue_app.migrations.0002_defaults").GROUPS
    assert {name: set(codenames) for name, codenames in links} == {name: set(own) for name, own in declared.items()}
    assert has_table(urls["queue"], "auth_group") is (router == "QueueOnly")
    assert has_table(urls["default"], "queue_app_task") is (router == "UsersOnDefault")
    assert ask(urls["queue"], "SELECT count(*) FROM queue_app_prioritypolicy") == [(5,)]
    assert ask(urls["queue"], "SELECT prefix FROM queue_app_apikey") == [(key["prefix"],)]
    script = (
        "from queue_app.services.control.api_keys import find_key; from django.contrib.auth.models import User;"
        "from queue_app.models import ApiKey;"
        f"print(find_key('{key['key']}').user.username); User.objects.get().delete(); print(find_key('{key['key']}'));"
        "print(ApiKey.objects.using('queue').count())"
    )
    back = (["migrate", "queue_app", "zero", "-v0", "--database", alias] for alias in ("default", "queue"))
    said = run(urls, router, ["taskqueue", "key", "list", "--json"], ["shell", "-v0", "-c", script], *back)
    (shown,), end = json.JSONDecoder().raw_decode(said)
    assert (shown["user"], shown["prefix"]) == ("ann", key["prefix"])
    assert said[end:].split() == ["ann", "None", "0"], "deleted with the user"
    assert left_behind(urls["default"]) == left_behind(urls["queue"]) == []


def test_back_to_nothing_and_forward_again(migrated):
    with database("queue", copy_of=migrated) as url:
        urls = {"default": url, "queue": url}
        before, links = left_behind(url), ask(url, LINKS)
        run(urls, "QueueOnly", ["migrate", "queue_app", "zero", "-v0", "--database", "queue"])
        assert left_behind(url) == []
        run(urls, "QueueOnly", ["migrate", "-v0", "--database", "queue"])
        assert (sorted(left_behind(url)), ask(url, LINKS)) == (sorted(before), links)


def test_a_group_with_members_keeps_its_permissions(migrated):
    with database("queue", copy_of=migrated) as url:
        urls = {"default": url, "queue": url}
        ask(
            url,
            "INSERT INTO auth_user (username, password, is_superuser, is_staff, is_active, first_name, last_name,"
            " email, date_joined) VALUES ('ann', '', false, true, true, '', '', '', now()) RETURNING id",
        )
        ask(
            url,
            "INSERT INTO auth_user_groups (user_id, group_id) SELECT auth_user.id, auth_group.id FROM auth_user,"
            " auth_group WHERE name = %s RETURNING id",
            GROUPS[2],
        )
        links = ask(url, LINKS)
        run(urls, "QueueOnly", ["migrate", "queue_app", "zero", "-v0", "--database", "queue"])
        assert ask(url, LINKS) == links[2:]
        run(urls, "QueueOnly", ["migrate", "-v0", "--database", "queue"])
        assert ask(url, LINKS) == links


def test_on_its_own_without_the_other_apps(urls):
    """The tables of other apps that refer to content types do not exist."""
    there = "from queue_app.models import Task; print(Task.objects.using('queue').count())"
    options = ["-v0", "--database", "queue"]
    said = run(
        urls,
        "QueueOnly",
        ["migrate", "queue_app", *options],
        ["shell", "-v0", "-c", there],
        ["migrate", "queue_app", "zero", *options],
    )
    assert said.split() == ["0"], "the tables were there"
    assert not has_table(urls["queue"], "django_admin_log")
    assert left_behind(urls["queue"]) == []


def test_migrations_import_nothing_of_the_app():
    for path in (ROOT / "queue_app" / "migrations").glob("0*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                module = node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
                assert module.split(".")[0] in {"datetime", "django", "pathlib", "uuid"}, f"{path.name}: {module}"


@pytest.mark.django_db
def test_the_task_table_has_its_settings():
    with connection.cursor() as cursor:
        cursor.execute("SELECT reloptions FROM pg_class WHERE relname = 'queue_app_task'")
        assert sorted(cursor.fetchone()[0]) == [
            "autovacuum_analyze_scale_factor=0.02",
            "autovacuum_vacuum_scale_factor=0.01",
            "autovacuum_vacuum_threshold=1000",
            "fillfactor=90",
        ]
