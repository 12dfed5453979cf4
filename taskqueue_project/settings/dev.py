"""Settings for a developer's machine and for `manage.py quickstart`."""

import os
import secrets

from taskqueue_project.quickstart.running import read_addresses

from .base import *

# Use the servers of a running quickstart, unless the environment names others.
_running = read_addresses(BASE_DIR)
if "DATABASE_URL" not in os.environ and "DATABASE_URL" in _running:
    DATABASE_URL = _running["DATABASE_URL"]
    DATABASES = databases(DATABASE_URL)
if "REDIS_URL" not in os.environ and "REDIS_URL" in _running:
    REDIS_URL = _running["REDIS_URL"]
    CACHES = caches(REDIS_URL)

DEBUG = True
SECRET_KEY = os.environ.get("SECRET_KEY") or _running.get("SECRET_KEY") or secrets.token_urlsafe(50)
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "[::1]"]
