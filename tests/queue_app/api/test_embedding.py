"""In another project: without optional packages, and with unusual settings."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from queue_app.api.views.docs import document

PROGRAM = """
import base64, json, os, sys, types

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"drf_spectacular", "celery", "django_prometheus"}:
            raise ImportError(name)
        if name.startswith("rest_framework.authtoken"):
            raise ImportError(name)

sys.meta_path.insert(0, Missing())

import dj_database_url, django
from django.conf import settings
from django.urls import include, path
from django.http import HttpResponse

settings.configure(
    DEBUG=True,
    SECRET_KEY="x" * 50,
    ALLOWED_HOSTS=["testserver"],
    ROOT_URLCONF="stranger_urls",
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", *APPS, "queue_app"],
    MIDDLEWARE=["django.middleware.common.CommonMiddleware"],
    DATABASES={"default": dj_database_url.parse(os.environ["DATABASE_URL"]) | {"ATOMIC_REQUESTS": True}},
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": os.environ["REDIS_URL"]}},
    TASKS={"default": {"BACKEND": "queue_app.backend.TaskQueueBackend", "QUEUES": []}},
    TASKQUEUE={"KEY_PREFIX": PREFIX},
    USE_TZ=True,
    PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
    REST_FRAMEWORK={
        "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.StaticHTMLRenderer"],
        "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.FormParser"],
        "DEFAULT_AUTHENTICATION_CLASSES": [],
        "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.AllowAny"],
        "DEFAULT_THROTTLE_CLASSES": ["rest_framework.throttling.AnonRateThrottle"],
        "DEFAULT_THROTTLE_RATES": {"anon": "1/day"},
        "DEFAULT_VERSIONING_CLASS": "rest_framework.versioning.AcceptHeaderVersioning",
        "UNAUTHENTICATED_USER": None,
        "URL_FORMAT_OVERRIDE": None,
        "UNICODE_JSON": False,
        "EXCEPTION_HANDLER": "nowhere.handler",
    },
)
django.setup()

urls = types.ModuleType("stranger_urls")
urls.urlpatterns = [
    path("", include("queue_app.urls")),
    path("api/v1/orders", lambda request: HttpResponse("the stranger's own")),
]
sys.modules["stranger_urls"] = urls

from django.contrib.auth.models import Permission, User
from django.tasks import task
from django.test import Client
from queue_app import registry

def add(a, b):
    return a + b

add = task(add)
alice = User.objects.create_user("alice", password="wonderland")
alice.user_permissions.add(Permission.objects.get(codename="add_task", content_type__app_label="queue_app"))
login = {"Authorization": "Basic " + base64.b64encode(b"alice:wonderland").decode()}
client = Client()
body = {"task_type": registry.type_of(add), "parameters": {"a": 1, "b": 2}}
answers = [
    client.get("/api/v1/tasks"),
    client.get("/readyz"),
    client.post("/api/v1/tasks", body, content_type="application/json", headers=login),
    client.get("/api/v1/tasks", headers=login),
    client.get("/api/v1/tasks?format=1", headers=login),
    client.get("/api/v1/tasks/nothing", headers=login),
    client.post("/api/v1/queues/default/pause", {}, content_type="application/json", headers=login),
]
print(json.dumps([[a.status_code, a.headers["Content-Type"], a.json()] for a in answers]))
print(client.get("/api/v1/orders").content.decode())
print(answers[0].headers["WWW-Authenticate"])
"""


@pytest.mark.parametrize("apps", [["rest_framework"], []], ids=["installed", "not installed"])
def test_works_with_queue_app_and_the_framework_alone(process_env, settings, apps):
    program = f"APPS = {apps!r}\nPREFIX = {settings.TASKQUEUE['KEY_PREFIX']!r}\n{PROGRAM}"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env=process_env | {"DJANGO_SETTINGS_MODULE": ""},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    first, own, scheme = done.stdout.splitlines()
    nobody, ready, created, listed, parameter, missing, refused = json.loads(first)
    problem = "application/problem+json"
    assert nobody[:2] == [401, problem]
    assert ready[:2] == [200, "application/json"]
    assert created[0] == 201
    assert created[2]["queue_position"] == 1  # ATOMIC_REQUESTS does not delay the push
    assert [task["task_id"] for task in listed[2]["results"]] == [created[2]["task_id"]]
    assert (parameter[0], parameter[2]["code"]) == (400, "unknown_parameter")
    assert missing[:2] == [404, problem]
    assert refused[:2] == [403, problem]
    assert own == "the stranger's own"
    assert scheme.startswith("Bearer")


SCHEMA_PROGRAM = """
import os

import dj_database_url, django
from django.conf import settings

settings.configure(
    SECRET_KEY="x" * 50,
    ALLOWED_HOSTS=["testserver"],
    ROOT_URLCONF="queue_app.urls",
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "rest_framework", "queue_app"],
    DATABASES={"default": dj_database_url.parse(os.environ["DATABASE_URL"])},
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": os.environ["REDIS_URL"]}},
    TASKS={"default": {"BACKEND": "queue_app.backend.TaskQueueBackend", "QUEUES": []}},
    USE_TZ=True,
)
django.setup()

from django.test import Client

answer = Client().get("/api/schema")
print(answer.status_code, answer.content.decode())
"""


def test_the_document_needs_no_setting_of_the_framework(process_env):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCHEMA_PROGRAM],
        env=process_env | {"DJANGO_SETTINGS_MODULE": ""},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    status, _, text = done.stdout.partition(" ")
    assert status == "200", text
    assert json.loads(text) == json.loads(json.dumps(document()))
