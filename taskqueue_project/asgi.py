"""Entry point for ASGI servers."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "taskqueue_project.settings.production")

django = get_asgi_application()

from queue_app.api.asgi import bounded  # noqa: E402 - needs the apps, which the line above loads

application = bounded(django)
