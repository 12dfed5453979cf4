"""The production settings have no defaults that only suit development."""

import os
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from django.core.management.base import OutputWrapper

from taskqueue_project.celery import app
from taskqueue_project.terminal import terminal

ROOT = Path(__file__).parent.parent.parent
COMPLETE = {
    "DJANGO_SETTINGS_MODULE": "taskqueue_project.settings.production",
    "SECRET_KEY": "k7c!x2mq0z-w9v3n8b5l1p6r4t_y+u=s@d#f%g^h&j*abcdefghijk",
    "ALLOWED_HOSTS": "queue.example.org",
    "DATABASE_URL": "postgresql://127.0.0.1/none",
    "REDIS_URL": "redis://127.0.0.1/0",
}


def import_settings(environment):
    kept = {name: value for name, value in os.environ.items() if name in {"PATH", "HOME", "LANG"}}
    command = [sys.executable, "-c", f"import {COMPLETE['DJANGO_SETTINGS_MODULE']}"]
    return subprocess.run(command, cwd=ROOT, env=kept | environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["SECRET_KEY", "ALLOWED_HOSTS", "DATABASE_URL", "REDIS_URL"])
def test_a_missing_variable_is_named(name):
    result = import_settings({key: value for key, value in COMPLETE.items() if key != name})
    assert result.returncode != 0
    assert f"Set {name} in the environment" in result.stderr


EVERYTHING = """
from django.core.cache import cache
from queue_app.core.records import NewTask
from queue_app.index import Profile, get_index
from queue_app.metrics.exposition import of_process, of_queue
from queue_app.services.lifecycle.claim import claim
from queue_app.services.enqueue.store import enqueue_many
from queue_app.services.repair.rebuild import rebuild
import uuid

cache.get("nothing")
enqueue_many(NewTask(task_type="a") for _ in range(3))
rebuild()
worker, profile = uuid.uuid4(), Profile.of([], ["a"], [])
get_index().register(profile, worker)
print(len(claim(profile, worker, 3)), "claimed")
print((of_queue() + of_process()).decode())
"""


@pytest.mark.slow
def test_the_queue_works_with_counted_connections_and_metrics_show_them(process_env, settings):
    servers = {name: process_env[name] for name in ("DATABASE_URL", "REDIS_URL")}
    servers["TASKQUEUE__KEY_PREFIX"] = settings.TASKQUEUE["KEY_PREFIX"]
    ran = subprocess.run(
        [sys.executable, "manage.py", "shell", "--no-imports", "-c", EVERYTHING],
        cwd=ROOT,
        env=process_env | COMPLETE | servers,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "3 claimed" in ran.stdout
    assert 'queue_enqueue_total{queue="default",priority="normal"} 3' in ran.stdout
    assert "django_cache_get_total{" in ran.stdout
    assert "django_db_execute_total{" in ran.stdout


# -- terminal --------------------------------------------------------------------------------------------------------


def test_a_progress_bar_stays_on_its_line():
    written = StringIO()
    terminal(OutputWrapper(written)).print("half a line", end="\r")
    assert written.getvalue() == "half a line\r"


# -- addresses -------------------------------------------------------------------------------------------------------


def test_the_root_leads_to_the_admin(client):
    response = client.get("/")
    assert (response.status_code, response.url) == (302, "/admin/")


# -- celery ----------------------------------------------------------------------------------------------------------


def test_the_beat_runs_every_maintenance_task_and_nothing_else():
    app.loader.import_default_modules()
    ours = {name for name in app.tasks if name.startswith("queue_app.")} - {"queue_app.submit"}  # that is for projects
    assert ours
    assert {entry["task"] for entry in app.conf.beat_schedule.values()} == ours


def test_a_run_that_no_worker_starts_expires_when_the_next_is_due():
    for entry in app.conf.beat_schedule.values():
        assert entry["options"]["expires"] <= entry["schedule"]


def test_messages_are_json_only():
    assert app.conf.accept_content == ["json"]
    assert app.conf.task_serializer == "json"


# -- the script ./dev ------------------------------------------------------------------------------------------------


DEV = Path(__file__).parent.parent.parent / "dev"


def dev(*arguments, path=None):
    environment = os.environ | ({"PATH": path} if path else {})
    return subprocess.run(
        ["/bin/sh", str(DEV), *arguments], capture_output=True, text=True, env=environment, check=False
    )


def test_help_lists_every_command():
    result = dev("help")
    assert result.returncode == 0
    for command in ("quickstart", "test", "check", "fix", "lua", "docs", "bench", "faults", "ci", "manage", "lock"):
        assert f"\n  {command} " in result.stdout


def test_an_unknown_command_is_refused():
    result = dev("strat")
    assert result.returncode == 1
    assert "unknown command: strat" in result.stderr


def test_another_platform_is_told_so(tmp_path):
    uname = tmp_path / "uname"
    uname.write_text("#!/bin/sh\necho MINGW64_NT\n")
    uname.chmod(0o755)
    result = dev("test", path=f"{tmp_path}:{os.environ['PATH']}")
    assert result.returncode == 1
    assert "only Linux and macOS are supported (this is MINGW64_NT)" in result.stderr


def test_the_lock_file_names_no_registry():
    text = (DEV.parent / "requirements" / "dev.txt").read_text()
    assert "--hash=sha256:" in text
    assert "://" not in text
