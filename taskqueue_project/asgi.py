"""Entry point for ASGI servers."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "taskqueue_project.settings.production")

application = get_asgi_application()
