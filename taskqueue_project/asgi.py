"""Entry point for ASGI servers."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "taskqueue_project.settings.production")

django = get_asgi_application()

from django.conf import settings  # noqa: E402 - reads the variable above
from django.db import connections  # noqa: E402 - needs the settings

from queue_app.api.asgi import bounded  # noqa: E402 - needs the apps, which get_asgi_application() loads

for alias in connections:  # a request has a thread of its own, so no other request would use its connection
    connections.settings[alias]["CONN_MAX_AGE"] = 0

application = bounded(django, others=settings.DATA_UPLOAD_MAX_MEMORY_SIZE)  # no page takes files
