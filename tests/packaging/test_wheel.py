"""The wheel in a stranger's empty project: built, installed into a fresh environment, and used as the README says."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from django.conf import settings

ROOT = Path(__file__).parent.parent.parent
TEMPLATES = sorted(
    str(path.relative_to(ROOT / "templates"))
    for path in (ROOT / "templates").rglob("*")
    if path.suffix in {".html", ".txt"}
)

pytestmark = [pytest.mark.packaging, pytest.mark.slow, pytest.mark.timeout(300)]

SETTINGS = """
    import os
    import database_url as _url

    ALLOWED_HOSTS = ["testserver"]
    INSTALLED_APPS += ["queue_app", "shop"]
    DATABASES = {"default": _url.database(os.environ["DATABASE_URL"])}
    CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": os.environ["REDIS_URL"]}}
    TASKS = {"default": {"BACKEND": "queue_app.backend.TaskQueueBackend", "QUEUES": []}}
    TASKQUEUE = {"REDIS_ALIAS": "default", "KEY_PREFIX": os.environ["KEY_PREFIX"]}
"""
# The stranger has only the dependencies of the wheel, so no dj-database-url.
URL_READER = """
    from urllib.parse import unquote, urlsplit

    def database(url):
        parts = urlsplit(url)
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": parts.path[1:],
            "USER": parts.username,
            "PASSWORD": unquote(parts.password or ""),
            "HOST": parts.hostname,
            "PORT": parts.port,
        }
"""
URLS = """
    from django.contrib import admin
    from django.urls import include, path

    urlpatterns = [path("admin/", admin.site.urls), path("", include("queue_app.urls"))]
"""
TASKS = """
    from django.tasks import task

    @task
    def add(a, b):
        return a + b
"""
ENQUEUE = "from shop.tasks import add; print(add.enqueue(20, b=22).id)"
INSPECT = """
    import json, sys
    import queue_app, workers
    from django.contrib import admin
    from django.contrib.auth import get_user_model
    from django.template.loader import get_template
    from django.test import Client
    from django.urls import reverse
    from shop.tasks import add

    result = add.get_result(sys.argv[1])
    user = get_user_model().objects.create_superuser("root", password="x")
    client = Client()
    client.force_login(user)
    pages = {"index": client.get(reverse("admin:index"))}
    for model in admin.site._registry:
        if model._meta.app_label == "queue_app":
            page = reverse(f"admin:queue_app_{model._meta.model_name}_changelist")
            pages[model.__name__] = client.get(page, follow=True)
    for name in json.loads(sys.argv[2]):
        get_template(name)
    print(json.dumps({
        "status": result.status,
        "value": result.return_value,
        "pages": {name: page.status_code for name, page in pages.items()},
        "index_lists_tasks": reverse("admin:queue_app_task_changelist") in pages["index"].content.decode(),
        "packages": [queue_app.__file__, workers.__file__],
    }))
"""


def run(*command, **options):
    result = subprocess.run(
        [str(part) for part in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=90,
        **options,
    )
    assert result.returncode == 0, f"{command} ended with {result.returncode}:\n{result.stdout}"
    return result.stdout


@pytest.fixture(scope="module")
def uv():
    candidates = [Path(sys.executable).parent / "uv", shutil.which("uv"), ROOT / ".dev/uv/bin/uv"]
    found = next((path for path in candidates if path and Path(path).exists()), None)
    assert found, "uv is missing, though requirements/dev.txt holds it"
    return found


@pytest.fixture(scope="module")
def wheel(uv, tmp_path_factory):
    out = tmp_path_factory.mktemp("dist")
    # The locked hatchling of this environment builds it, so that nothing is downloaded.
    run(uv, "build", "--wheel", "--no-build-isolation", "--python", sys.executable, "--out-dir", out, cwd=ROOT)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(uv, wheel, tmp_path_factory):
    """Return a Python that has the wheel and nothing but its dependencies."""
    venv = tmp_path_factory.mktemp("stranger-venv") / "venv"
    run(uv, "venv", "--python", sys.executable, venv)
    executable = venv / "bin" / "python"
    constraints = ROOT / "requirements" / "dev.txt"
    run(uv, "pip", "install", "--python", executable, "-c", constraints, wheel, "psycopg[binary]")
    return executable


@pytest.fixture
def database():
    """Create a database of its own for the stranger, beside that of the tests."""
    name = f"wheel_{uuid4().hex[:12]}"
    with psycopg.connect(settings.DATABASE_URL, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
        yield psycopg_url(name)
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def psycopg_url(name):
    address, _, _ = settings.DATABASE_URL.rpartition("/")
    return f"{address}/{name}"


@pytest.fixture
def project(python, database, tmp_path):
    """Make an empty project use the queue; return how to call its manage.py."""
    run(python, "-m", "django", "startproject", "stranger", tmp_path)
    for path, text in {
        "database_url.py": URL_READER,
        "stranger/urls.py": URLS,
        "shop/__init__.py": "",
        "shop/tasks.py": TASKS,
        "inspect_project.py": INSPECT,
    }.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(textwrap.dedent(text))
    with (tmp_path / "stranger/settings.py").open("a") as file:
        file.write(textwrap.dedent(SETTINGS))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DJANGO", "TASKQUEUE"))}
    environment |= {"DATABASE_URL": database, "KEY_PREFIX": settings.TASKQUEUE["KEY_PREFIX"]}

    def manage(*arguments):
        return run(python, "-W", "ignore", "manage.py", *arguments, cwd=tmp_path, env=environment)

    return manage


def test_the_wheel_works_in_an_empty_project(project, python):
    project("check", "--fail-level", "WARNING")
    project("makemigrations", "--check", "--dry-run")
    project("migrate")
    task_id = project("shell", "--no-imports", "-c", ENQUEUE).split()[-1]
    project("runworker", "--burst")
    script = (
        f"import sys; sys.argv = ['', {task_id!r}, {json.dumps(TEMPLATES)!r}]; exec(open('inspect_project.py').read())"
    )
    found = json.loads(project("shell", "--no-imports", "-c", script).splitlines()[-1])

    assert (found["status"], found["value"]) == ("SUCCESSFUL", 42)
    assert set(found["pages"].values()) == {200}
    assert {"Task", "Queue", "Worker"} <= set(found["pages"])
    assert found["index_lists_tasks"]
    assert all(str(python.parent.parent) in path for path in found["packages"])


def test_the_wheel_holds_what_it_needs_and_no_more(wheel):
    names = run(sys.executable, "-m", "zipfile", "--list", wheel)
    for wanted in ("queue_app/py.typed", "queue_app/index/lua/claim.lua", "queue_app/migrations/0001_initial.py"):
        assert wanted in names
    for unwanted in ("taskqueue_project/", "tests/", "__pycache__"):
        assert unwanted not in names
