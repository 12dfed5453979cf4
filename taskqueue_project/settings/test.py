"""Settings for the tests. `tests/conftest.py` first sets the addresses of the servers in the environment."""

import os

from .base import *

DEBUG = False
SECRET_KEY = "only-for-tests-" + "0" * 40
ALLOWED_HOSTS = ["testserver", "127.0.0.1", "localhost"]
# MD5 makes it fast to create users.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

# Each process of each run has its own index. Processes that a test starts inherit both variables and use its index.
TASKQUEUE["KEY_PREFIX"] = "-".join(
    ["tq-test", os.environ.get("TASKQUEUE_TEST_RUN", "0"), os.environ.get("PYTEST_XDIST_WORKER", "main")]
)

# Tests need no collected files, and whitenoise warns without their folder.
MIDDLEWARE = [name for name in MIDDLEWARE if "whitenoise" not in name]
LOGGING = {"version": 1, "disable_existing_loggers": False}
