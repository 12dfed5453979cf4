"""A stranger's project: Django's defaults, and what the tutorial adds to them."""

import os

SECRET_KEY = "of a test"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "shop_urls"
USE_TZ = os.environ.get("USE_TZ", "1") == "1"
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "queue_app", "shop"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ["PG_NAME"],
        "USER": os.environ["PG_USER"],
        "PASSWORD": os.environ["PG_PASSWORD"],
        "HOST": "127.0.0.1",
        "PORT": os.environ["PG_PORT"],
        "CONN_MAX_AGE": int(os.environ.get("CONN_MAX_AGE", "0")),
        "DISABLE_SERVER_SIDE_CURSORS": "POOLED" in os.environ,
    }
}
CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": os.environ["REDIS_URL"]}}
TASKS = {"default": {"BACKEND": "queue_app.backend.TaskQueueBackend", "QUEUES": []}}
