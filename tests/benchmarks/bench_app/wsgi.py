"""The project for gunicorn, with its static files."""

import os

from django.core.wsgi import get_wsgi_application

os.environ["DJANGO_SETTINGS_MODULE"] = "bench_web_settings"
application = get_wsgi_application()
