"""Settings of the workers and schedulers that tests start: without what only web processes need, they start sooner."""

from tests.integration.settings import *  # noqa: F403

_WEB = ("django.contrib.admin", "django.contrib.messages", "django.contrib.sessions", "django.contrib.staticfiles",
        "django_prometheus", "drf_spectacular", "rest_framework", "whitenoise")  # fmt: skip
INSTALLED_APPS = [name for name in INSTALLED_APPS if not name.startswith(_WEB)]  # noqa: F405
