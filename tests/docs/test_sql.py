"""The SQL in the pages runs: today, that of the guide that moves a project from django-tasks-db."""

import shlex

import pytest
from django.contrib import admin
from django.db import connection

from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "docs/how-to/migrate-from-django-tasks-db.md"


@pytest.fixture
def results(transactional_db, settings):
    """Return the model of django-tasks-db, with its table."""
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "django_tasks_db"]
    from django_tasks_db.models import DBTaskResult  # noqa: PLC0415 - models need an installed app

    with connection.schema_editor() as editor:
        editor.create_model(DBTaskResult)
    yield DBTaskResult
    with connection.schema_editor() as editor:
        editor.delete_model(DBTaskResult)
    if admin.site.is_registered(DBTaskResult):
        admin.site.unregister(DBTaskResult)


def test_the_rows_of_django_tasks_db_get_their_new_alias(results):
    row = results.objects.create(args_kwargs={}, task_path="shop.tasks.f", backend_name="default")
    [block] = [block for block in blocks(PAGE) if block.language == "sql"]
    with connection.cursor() as cursor:
        cursor.execute(block.text)
    row.refresh_from_db()
    assert row.backend_name == "old"


def test_the_app_whose_tables_are_removed_is_the_one_installed(results):
    commands = [shlex.split(line) for block in blocks(PAGE) for line in block.commands()]
    [removed] = [words[3] for words in commands if words[2] == "migrate" and words[-1] == "zero"]
    assert removed == results._meta.app_label
