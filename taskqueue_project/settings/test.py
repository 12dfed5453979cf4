"""The test suite. `tests/conftest.py` puts the addresses of the servers in the environment before this is read."""

import os

from .base import *

DEBUG = False
SECRET_KEY = "only-for-tests-" + "0" * 40
ALLOWED_HOSTS = ["testserver", "127.0.0.1", "localhost"]
# MD5 makes users cheap to create; nothing here is worth protecting.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

# Every run, and in it every process of pytest-xdist, has an index of its own. Processes that a test starts inherit both
# variables and so find the index of their test.
TASKQUEUE["KEY_PREFIX"] = "-".join(
    ["tq-test", os.environ.get("TASKQUEUE_TEST_RUN", "0"), os.environ.get("PYTEST_XDIST_WORKER", "main")]
)

# whitenoise warns when the folder is missing, and tests need no collected files.
MIDDLEWARE = [name for name in MIDDLEWARE if "whitenoise" not in name]
LOGGING = {"version": 1, "disable_existing_loggers": False}
