"""Settings for all environments. Servers and secrets come from environment variables."""

import os
from pathlib import Path
from typing import Any

import dj_database_url
from django.utils.csp import CSP

BASE_DIR = Path(__file__).resolve().parent.parent.parent

# ------------------------------------------------------------------------------------------------------------- servers

DATABASE_URL = os.environ.get("DATABASE_URL", "postgresql://127.0.0.1:5432/taskqueue")
REDIS_URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0")


def databases(url: str) -> dict[str, Any]:
    """Return DATABASES for one PostgreSQL.

    Connections persist and are checked before use, so a request after a failover reconnects instead of failing. A
    psycopg pool is not needed: each worker and web thread keeps its own connection.
    """
    return {"default": dict(dj_database_url.parse(url, conn_max_age=300, conn_health_checks=True))}


def caches(url: str) -> dict[str, Any]:
    """Return CACHES for one Redis or Valkey."""
    return {
        "default": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": url,
            "OPTIONS": {"CLIENT_CLASS": "django_redis.client.DefaultClient"},
        },
    }


DATABASES = databases(DATABASE_URL)
CACHES = caches(REDIS_URL)

# ---------------------------------------------------------------------------------------------------------- task queue

TASKS: dict[str, Any] = {"default": {"BACKEND": "queue_app.backend.TaskQueueBackend", "QUEUES": []}}
TASKQUEUE: dict[str, Any] = {"REDIS_ALIAS": "default"}

# -------------------------------------------------------------------------------------------------------- applications

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "django_prometheus",
    "drf_spectacular",
    "rest_framework",
    "rest_framework.authtoken",
    "queue_app",
    "taskqueue_project",
    "taskqueue_project.demo",
]

MIDDLEWARE = [
    "django_prometheus.middleware.PrometheusBeforeMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "django.middleware.csp.ContentSecurityPolicyMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_prometheus.middleware.PrometheusAfterMiddleware",
]

ROOT_URLCONF = "taskqueue_project.urls"
WSGI_APPLICATION = "taskqueue_project.wsgi.application"

TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

# ----------------------------------------------------------------------------------------------------------- behaviour

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
# makemessages writes the texts of the app and of templates/ there.
LOCALE_PATHS = [BASE_DIR / "queue_app" / "locale"]

# No inline code and no other hosts; all pages of the admin work with this.
SECURE_CSP = {
    "default-src": [CSP.SELF],
    "script-src": [CSP.SELF],
    "style-src": [CSP.SELF],
    "img-src": [CSP.SELF, "data:"],
    "object-src": [CSP.NONE],
    "base-uri": [CSP.NONE],
    "form-action": [CSP.SELF],
    "frame-ancestors": [CSP.NONE],
}

STATIC_URL = "static/"
STATIC_ROOT = BASE_DIR / "staticfiles"

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]

REST_FRAMEWORK: dict[str, Any] = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "rest_framework.authentication.SessionAuthentication",
        "rest_framework.authentication.TokenAuthentication",
        "rest_framework.authentication.BasicAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
}

SPECTACULAR_SETTINGS = {
    # `manage.py spectacular` writes the document that /api/schema serves.
    "POSTPROCESSING_HOOKS": ["queue_app.api.schema.served_document"],
    # The schema has its own tests; a gap in it must not fail a deployment.
    "ENABLE_DJANGO_DEPLOY_CHECK": False,
}

# ------------------------------------------------------------------------------------------------------------- logging

LOG_LEVEL = os.environ.get("LOG_LEVEL", "INFO").upper()
LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "{asctime} {levelname:<7} {name}: {message}", "style": "{"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": LOG_LEVEL},
}
