"""A large project that knows nothing of this queue: Wagtail enqueues by django.tasks, and its tasks run unchanged."""

import sys
import textwrap

import psycopg
import pytest
from django.conf import settings

from tests.docs.pages import ROOT
from tests.integration.test_migrations import database
from tests.stock.environments import run

pytestmark = [pytest.mark.packaging, pytest.mark.slow, pytest.mark.timeout(600)]

SETTINGS = """
    import os, dj_database_url

    SECRET_KEY = "of a test"
    ALLOWED_HOSTS = ["*"]
    DATABASES = {"default": dj_database_url.config()}
    CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": os.environ["REDIS_URL"]}}
    INSTALLED_APPS = [
        "wagtail.contrib.redirects", "wagtail.embeds", "wagtail.sites", "wagtail.users", "wagtail.documents",
        "wagtail.images", "wagtail.search", "wagtail.admin", "wagtail", "modelcluster", "taggit",
        "django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions",
        "django.contrib.messages", "django.contrib.postgres", "django.contrib.staticfiles", "django_tasks", "queue_app",
    ]
    MIDDLEWARE = [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ]
    PROCESSORS = [
        "django.template.context_processors.request", "django.contrib.auth.context_processors.auth",
        "django.contrib.messages.context_processors.messages",
    ]
    TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True,
                  "OPTIONS": {"context_processors": PROCESSORS}}]
    STATIC_URL = "/static/"
    ROOT_URLCONF = "urls"
    USE_TZ = True
    MEDIA_ROOT = os.environ["MEDIA_ROOT"]
    WAGTAIL_SITE_NAME = "shop"
    WAGTAILADMIN_BASE_URL = "http://shop.example"
    TASKS = {"default": {"BACKEND": "queue_app.backend.TaskQueueBackend", "QUEUES": []}}
    TASKQUEUE = {"KEY_PREFIX": os.environ["KEY_PREFIX"]}
    # Wagtail's tables are made as its models say: its own two hundred migrations are not what is tested.
    OTHERS = ["wagtailredirects", "wagtailembeds", "wagtailusers", "wagtaildocs", "wagtailimages", "wagtailsearch",
              "wagtailadmin", "wagtailcore", "taggit"]
    MIGRATION_MODULES = dict.fromkeys(OTHERS)
"""
URLS = """
    from django.contrib import admin
    from django.urls import path

    urlpatterns = [path("admin/", admin.site.urls)]
"""
MIGRATE = """
    from django.core.management import call_command

    call_command("migrate", "auth", verbosity=0)  # tables without migrations come first, and refer to users
    call_command("migrate", run_syncdb=True, verbosity=0)

    from queue_app.models import Task

    assert not Task.objects.exists()
"""
EDIT = """
    from django.core.files.base import ContentFile
    from PIL import Image as Picture
    from wagtail.images.models import Image
    from wagtail.models import Collection, Locale, Page
    from io import BytesIO

    Locale.objects.create(language_code="en")
    Collection.add_root(name="Root")
    Page.add_root(title="Root", slug="root")
    file = BytesIO()
    Picture.new("RGB", (40, 30), "orange").save(file, "PNG")
    Image.objects.create(title="cat", file=ContentFile(file.getvalue(), "cat.png"))
    Page.objects.get(depth=1).add_child(title="Shop", slug="shop")
"""
DELETE = """
    from wagtail.images.models import Image

    Image.objects.get(title="cat").delete()
"""


class Project:
    """A new Wagtail project with a database of its own."""

    def __init__(self, folder, database):
        self.folder, self.database, self.media = folder, database, folder / "media"
        (folder / "shop_settings.py").write_text(textwrap.dedent(SETTINGS))
        (folder / "urls.py").write_text(textwrap.dedent(URLS))
        self.environment = {
            "DATABASE_URL": database,
            "REDIS_URL": settings.REDIS_URL,
            "KEY_PREFIX": settings.TASKQUEUE["KEY_PREFIX"],
            "MEDIA_ROOT": str(self.media),
            "DJANGO_SETTINGS_MODULE": "shop_settings",
            "PYTHONPATH": f"{folder}:{ROOT}",
        }

    def manage(self, *arguments):
        run(sys.executable, "-W", "ignore", "-m", "django", *arguments, env=self.environment, cwd=self.folder)

    def shell(self, *scripts):
        self.manage("shell", "--no-imports", "-c", "".join(map(textwrap.dedent, scripts)))

    def tasks(self):
        with psycopg.connect(self.database) as connection:
            return set(connection.execute("SELECT task_type, status FROM queue_app_task").fetchall())

    def files(self):
        return [path.name for path in self.media.rglob("*.png")]


@pytest.fixture
def project(tmp_path):
    with database("wagtail") as url:
        yield Project(tmp_path, url)


def test_wagtail(project):
    project.shell(MIGRATE, EDIT)
    assert ("wagtail.tasks.update_reference_index_task", "queued") in project.tasks()
    project.manage("runworker", "--burst")
    project.shell(DELETE)
    assert project.files() == ["cat.png"]
    project.manage("runworker", "--burst")
    assert ("wagtail.tasks.delete_file_from_storage_task", "completed") in project.tasks()
    assert {status for _, status in project.tasks()} == {"completed"}
    assert project.files() == []
