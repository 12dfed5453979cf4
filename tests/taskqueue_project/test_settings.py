"""The production settings: nothing is left to chance or to a default that is only good for development."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
COMPLETE = {
    "DJANGO_SETTINGS_MODULE": "taskqueue_project.settings.production",
    "SECRET_KEY": "k7c!x2mq0z-w9v3n8b5l1p6r4t_y+u=s@d#f%g^h&j*abcdefghijk",
    "ALLOWED_HOSTS": "queue.example.org",
    "DATABASE_URL": "postgresql://127.0.0.1/none",
    "REDIS_URL": "redis://127.0.0.1/0",
}


def check(environment):
    kept = {name: value for name, value in os.environ.items() if name in {"PATH", "HOME", "LANG"}}
    return subprocess.run(
        [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"],
        cwd=ROOT,
        env=kept | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_complete_environment_passes_the_deployment_checks():
    result = check(COMPLETE)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("name", ["SECRET_KEY", "ALLOWED_HOSTS", "DATABASE_URL", "REDIS_URL"])
def test_a_missing_variable_is_named(name):
    result = check({key: value for key, value in COMPLETE.items() if key != name})
    assert result.returncode != 0
    assert f"Set {name} in the environment" in result.stderr
