"""The wheel in a stranger's empty project: built, installed into a fresh environment, and used as the tutorial says."""

import json
import os
import shlex
import subprocess
import sys
import textwrap
import zipfile
from itertools import takewhile
from pathlib import Path

import psycopg
import pytest

from tests.docs.pages import ROOT, blocks
from tests.integration.test_migrations import database
from tests.stock.environments import run, uv
from tests.support.waiting import until

TEMPLATES = sorted(
    str(path.relative_to(ROOT / "templates"))
    for path in (ROOT / "templates").rglob("*")
    if path.suffix in {".html", ".txt"}
)

pytestmark = [pytest.mark.packaging, pytest.mark.slow, pytest.mark.timeout(900)]

# What the tutorial leaves to its reader: the addresses of the servers. The stranger has no dj-database-url.
ADDRESSES = """
    import os
    from urllib.parse import unquote, urlsplit

    _parts = urlsplit(os.environ["DATABASE_URL"])
    ALLOWED_HOSTS = ["testserver"]
    DATABASES["default"] |= {
        "NAME": _parts.path[1:],
        "USER": _parts.username,
        "PASSWORD": unquote(_parts.password or ""),
        "HOST": _parts.hostname,
        "PORT": _parts.port,
    }
"""
# What the README takes for granted.
POSTGRESQL = 'DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql"}}\n'
INSPECT = """
    import json, sys
    import queue_app.workers
    from queue_app.models import Task
    from django.contrib import admin
    from django.contrib.auth import get_user_model
    from django.template.loader import get_template
    from django.test import Client
    from django.urls import reverse

    client = Client()
    client.force_login(get_user_model().objects.get(username="ann"))
    pages = {"index": client.get(reverse("admin:index"))}
    for model in admin.site._registry:
        if model._meta.app_label == "queue_app":
            page = reverse(f"admin:queue_app_{model._meta.model_name}_changelist")
            pages[model.__name__] = client.get(page, follow=True)
    for name in json.loads(sys.argv[1]):
        get_template(name)
    print(json.dumps({
        "tasks": dict(Task.objects.values_list("task_type", "status")),
        "pages": {name: page.status_code for name, page in pages.items()},
        "index_lists_tasks": reverse("admin:queue_app_task_changelist") in pages["index"].content.decode(),
        "packages": [queue_app.__file__, queue_app.workers.__file__],
    }))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build the sdist, and the wheel from it: what the sdist lacks, the wheel lacks too."""
    out = tmp_path_factory.mktemp("dist")
    # The locked hatchling of this environment builds it, so that nothing is downloaded.
    run(uv(), "build", "--no-build-isolation", "--python", sys.executable, "--out-dir", out, cwd=ROOT)
    return out


@pytest.fixture(scope="module")
def wheel(built):
    (wheel,) = built.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def sdist(built):
    (sdist,) = built.glob("*.tar.gz")
    return sdist


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """Return a Python that has the wheel and nothing but its dependencies."""
    venv = tmp_path_factory.mktemp("stranger-venv") / "venv"
    run(uv(), "venv", "--python", sys.executable, venv)
    executable = venv / "bin" / "python"
    constraints = ROOT / "requirements" / "dev.txt"
    run(uv(), "pip", "install", "--python", executable, "-c", constraints, f"{wheel}[api]", "psycopg[binary]")
    return executable


@pytest.fixture
def address():
    """The address of a database of its own for the stranger, beside that of the tests."""
    with database("wheel") as url:
        yield url


GREET = """
from django.tasks import task


@task
def greet(name):
    return f"Hello, {name}"
"""
TUTORIAL = blocks(ROOT / "docs/tutorial/index.md")
#: The blocks of "In your own project", up to the addition of Redis.
README = list(takewhile(lambda block: "CACHES" not in block.text, blocks(ROOT / "README.md")[1:]))
#: Commands that the tutorial leaves running.
SERVICES = {"runscheduler", "runworker"}


class Stranger:
    """Somebody who does what the tutorial says, in an empty folder."""

    def __init__(self, python, folder, database):
        self.python = python
        self.folder = folder
        left_out = ("DJANGO", "TASKQUEUE", "PYTHONDONTWRITEBYTECODE")  # each command would compile all anew
        kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
        self.environment = kept | {
            "DATABASE_URL": database,
            "DJANGO_SUPERUSER_PASSWORD": "x",
        }
        self.services = []

    def follow(self, page):
        """Do what each block says; what is typed in the shell goes into one session, as it is told to stay open."""
        session = []
        for block in page:
            if block.language == "text":
                continue  # what a command prints
            if block.mark == "run":
                session.append(block)
                continue
            if block.language == "python" or not session:
                self.obey(block)
                continue
            self.shell("".join(part for step in session for part in self.typed(step)))
            session = []
            self.obey(block)

    def obey(self, block):
        match block.mark:
            case "settings":
                with (self.folder / "shop_site/settings.py").open("a") as file:
                    file.write(block.text + textwrap.dedent(ADDRESSES))
            case "exec":
                with (self.folder / "shop_site/urls.py").open("a" if "urlpatterns +=" in block.text else "w") as file:
                    file.write(block.text)
            case "file":
                (self.folder / block.name).write_text(block.text)
            case _:
                for command in block.commands():
                    self.type(shlex.split(command))

    def type(self, words):
        match words:
            case ["python", "-m", "pip", *_]:
                pass  # the wheel is installed already
            case ["python", "manage.py", name] if name == "createsuperuser":
                self.manage(name, "--noinput", "--username", "ann", "--email", "ann@example.org")
            case ["python", "manage.py", name] if name == "check":
                self.manage(name, "--fail-level", "WARNING")
            case ["python", "manage.py", name, *_] if name in SERVICES:
                self.services.append(
                    subprocess.Popen([self.python, "-W", "ignore", *words[1:]], cwd=self.folder, env=self.environment)
                )
            case ["python", *rest]:
                run(self.python, *rest, cwd=self.folder, env=self.environment)
            case _:
                run(*words, cwd=self.folder)

    def typed(self, step):
        """Yield what a step of the session is in one script."""
        if step.language == "python":
            yield step.text
        else:
            for command in step.commands():
                words = shlex.split(command)[1:]
                yield f"import subprocess, sys; subprocess.run([sys.executable, *{words}], check=True)\n"

    def manage(self, *arguments):
        return run(self.python, "-W", "ignore", "manage.py", *arguments, cwd=self.folder, env=self.environment)

    def shell(self, script):
        (self.folder / "session.py").write_text(script)
        return self.manage("shell", "--no-imports", "-c", "exec(open('session.py').read())")

    def leave(self):
        for service in self.services:
            service.terminate()
        return [service.wait(timeout=60) for service in self.services]


@pytest.fixture
def stranger(python, address, tmp_path):
    somebody = Stranger(python, tmp_path, address)
    yield somebody
    somebody.leave()


def test_the_wheel_works_as_the_tutorial_says(stranger, python):
    stranger.follow(TUTORIAL)
    with psycopg.connect(stranger.environment["DATABASE_URL"], autocommit=True) as connection:
        died = "SELECT 1 FROM queue_app_task WHERE status = 'dead_letter'"
        until(lambda: bool(connection.execute(died).fetchone()), "the division becomes a dead letter", seconds=300)
    assert stranger.leave() == [0, 0]
    stranger.manage("makemigrations", "--check", "--dry-run")
    tasks_of_an_app_called_workers(stranger)
    script = f"import sys; sys.argv = ['', {json.dumps(TEMPLATES)!r}]\n" + textwrap.dedent(INSPECT)
    found = json.loads(stranger.shell(script).splitlines()[-1])

    assert found["tasks"] == {
        "shop.tasks.add": "completed",
        "shop.tasks.divide": "dead_letter",
        "workers.tasks.greet": "completed",
    }
    assert set(found["pages"].values()) == {200}
    assert {"Task", "Queue", "Worker"} <= set(found["pages"])
    assert found["index_lists_tasks"]
    assert all(str(python.parent.parent) in path for path in found["packages"])


def test_a_project_as_in_the_readme_needs_postgresql_alone(stranger, python):
    assert "redis" not in run(uv(), "pip", "list", "--python", python)
    stranger.type(["python", "-m", "django", "startproject", "shop_site", "."])
    stranger.type(["python", "manage.py", "startapp", "shop"])
    with (stranger.folder / "shop_site/settings.py").open("a") as file:
        file.write('INSTALLED_APPS += ["shop"]\n' + POSTGRESQL)
    stranger.follow(README)
    with psycopg.connect(stranger.environment["DATABASE_URL"], autocommit=True) as connection:
        ended = "SELECT status FROM queue_app_task WHERE task_type = 'shop.tasks.send_receipt'"
        until(lambda: connection.execute(ended).fetchall() == [("completed",)], "the receipt is sent")
    assert stranger.leave() == [0]


def tasks_of_an_app_called_workers(stranger):
    """The runtime lies in the folder workers/ of this repository; a project may use that name for an app."""
    stranger.manage("startapp", "workers")
    (stranger.folder / "workers/tasks.py").write_text(GREET)
    with (stranger.folder / "shop_site/settings.py").open("a") as file:
        file.write('INSTALLED_APPS += ["workers"]\n')
    stranger.shell('from workers.tasks import greet\ngreet.enqueue("Ada")\n')
    stranger.manage("runworker", "--burst")


def test_the_wheel_installs_one_package(wheel):
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
        assert {top for top in tops if not top.endswith(".dist-info")} == {"queue_app"}
        assert len(archive.namelist()) == len(set(archive.namelist())), "each file is there once"


def test_the_metadata_names_what_users_install_and_no_tool_of_development(wheel):
    with zipfile.ZipFile(wheel) as archive:
        [name] = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        lines = archive.read(name).decode().splitlines()
    extras = {line.removeprefix("Provides-Extra: ") for line in lines if line.startswith("Provides-Extra: ")}
    assert extras == {"api", "api-docs", "celery", "encryption", "otel", "prometheus", "redis", "typed"}
    required = [line for line in lines if line.startswith("Requires-Dist: ")]
    assert len([line for line in required if "extra ==" not in line]) == 3
    assert not any("pytest" in line for line in required)


def test_an_editable_install_exposes_one_package_with_its_templates(tmp_path):
    build = f"from hatchling.build import build_editable; build_editable({str(tmp_path)!r})"
    run(sys.executable, "-c", build, cwd=ROOT)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as archive:
        [link] = [name for name in archive.namelist() if name.endswith(".pth")]
        [folder] = [Path(line) for line in archive.read(link).decode().split()]
    assert [each.name for each in folder.iterdir()] == ["queue_app"]
    assert [name for name in TEMPLATES if not (folder / "queue_app/templates" / name).exists()] == []


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_it_holds_what_it_needs_and_no_more(wheel, sdist, kind):
    if kind == "wheel":
        names = run(sys.executable, "-m", "zipfile", "--list", wheel)
    else:
        names = run(sys.executable, "-m", "tarfile", "--list", sdist)
    wanted = ["queue_app/py.typed", "queue_app/migrations/0001_initial.py", "queue_app/testing/plugin.py", "LICENSE"]
    for folder in ("lua", "rows/sql", "static", "locale"):
        wanted += [str(path.relative_to(ROOT)) for path in (ROOT / "queue_app").rglob(f"{folder}/**/*.*")]
    wanted += [f"templates/{name}" for name in TEMPLATES]
    assert [name for name in wanted if "__pycache__" not in name and name not in names] == []
    for unwanted in ("taskqueue_project/", "tests/", ".editable/", "__pycache__"):
        assert unwanted not in names
