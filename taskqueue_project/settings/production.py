"""Settings for production, configured by environment variables.

Required: SECRET_KEY, ALLOWED_HOSTS, DATABASE_URL, REDIS_URL. Optional: CSRF_TRUSTED_ORIGINS (comma-separated),
SECURE_SSL_REDIRECT (default on), SECURE_HSTS_SECONDS, TRUST_PROXY_HEADER (a proxy in front sets X-Forwarded-Proto),
LOG_FORMAT (json or line), LOG_LEVEL.
"""

import os

from django.core.exceptions import ImproperlyConfigured

from .base import *


def _required(name: str) -> str:
    """Return an environment variable; raise ``ImproperlyConfigured`` if it is missing."""
    value = os.environ.get(name, "").strip()
    if not value:
        raise ImproperlyConfigured(f"Set {name} in the environment; production has no default for it.")
    return value


def _flag(name: str, *, default: bool) -> bool:
    """Read a yes/no environment variable."""
    return os.environ.get(name, str(default)).strip().lower() in {"1", "true", "yes", "on"}


def _words(value: str) -> list[str]:
    """Split a comma-separated list."""
    return [word.strip() for word in value.split(",") if word.strip()]


DEBUG = False
SECRET_KEY = _required("SECRET_KEY")
ALLOWED_HOSTS = _words(_required("ALLOWED_HOSTS"))
CSRF_TRUSTED_ORIGINS = _words(os.environ.get("CSRF_TRUSTED_ORIGINS", ""))
_required("DATABASE_URL")
_required("REDIS_URL")

# /metrics includes the queries and cache calls of the web processes; the queue's hot path does not use these backends.
DATABASES["default"]["ENGINE"] = "django_prometheus.db.backends.postgresql"
CACHES["default"]["BACKEND"] = "django_prometheus.cache.backends.redis.RedisCache"

SECURE_SSL_REDIRECT = _flag("SECURE_SSL_REDIRECT", default=True)
# Probes, scrapers and autoscalers use plain HTTP inside the cluster.
SECURE_REDIRECT_EXEMPT = [r"^(healthz|readyz|metrics)/?$", r"^api/v1/autoscale/"]
SECURE_HSTS_SECONDS = int(os.environ.get("SECURE_HSTS_SECONDS", str(365 * 24 * 3600)))
SECURE_HSTS_INCLUDE_SUBDOMAINS = _flag("SECURE_HSTS_INCLUDE_SUBDOMAINS", default=True)
SECURE_HSTS_PRELOAD = _flag("SECURE_HSTS_PRELOAD", default=True)
SESSION_COOKIE_SECURE = True
CSRF_COOKIE_SECURE = True
if _flag("TRUST_PROXY_HEADER", default=False):
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")

# Lines of JSON for a log collector, one for each transition of a task unless TASKQUEUE__EVENTS__LOG=false.
if os.environ.get("LOG_FORMAT", "json").strip().lower() == "json":
    LOGGING["formatters"]["json"] = {"()": "queue_app.logs.JSONFormatter"}
    LOGGING["handlers"]["console"]["formatter"] = "json"
# The queue logs a failure once, when it is final; Django would log each failed attempt too.
LOGGING["loggers"] = {"django.tasks": {"level": "CRITICAL"}}
TASKQUEUE["EVENTS"] = {"LOG": True}

STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"},
}
