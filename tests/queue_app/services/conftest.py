"""Tests of services commit for real, many times per second."""

from collections.abc import Iterator

import pytest
from django.db import DEFAULT_DB_ALIAS, connections

from tests.support.rows import reset_rows
from tests.support.scene import Hand


@pytest.fixture
def transactional_db(django_db_setup: None, django_db_blocker) -> Iterator[None]:
    """Real commits as with pytest-django's fixture of this name, but on any alias and with less ado.

    The connection stays for the next test, as it does from task to task: a new one takes as long as many a test.
    """
    with django_db_blocker.unblock():
        yield
        reset_rows()
        for used in connections.all(initialized_only=True):
            if used.alias != DEFAULT_DB_ALIAS:
                used.close()


@pytest.fixture
def hand(engine) -> Hand:
    """A worker that has not taken anything yet."""
    return engine.worker()
