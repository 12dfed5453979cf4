"""The supported versions of Python and Django: `./dev versions`, or `./dev versions -s "tests-3.12(django='6.0')"`.

Every session has the locked packages, with another Django on top. By default the tests run that touch Django's
interfaces; arguments after `--` go to pytest instead. nox looks for interpreters on the PATH, and skips those that are
missing; in CI it fails.
"""

import nox

nox.options.default_venv_backend = "uv|virtualenv"

PYTHONS = ["3.12", "3.13", "3.14"]
DJANGOS = ["6.0", "6.1"]
#: What depends on Django's version: its interface for tasks, its checks, forms and admin.
INTERFACES = [
    "tests/queue_app/test_backend.py",
    "tests/queue_app/test_registry.py",
    "tests/queue_app/test_checks.py",
    "tests/queue_app/testing",
    "tests/queue_app/models",
    "tests/queue_app/admin",
    "tests/queue_app/api",
    "tests/workers/test_executor.py",
    "tests/workers/test_own_backoff.py",
]


@nox.session(python=PYTHONS)
@nox.parametrize("django", DJANGOS)
def tests(session: nox.Session, django: str) -> None:
    """Run tests on one version of Python and Django."""
    session.install("--requirement", "requirements/dev.txt")
    session.install(f"django~={django}.0")
    session.run("python", "-m", "pytest", "-q", *(session.posargs or INTERFACES))
