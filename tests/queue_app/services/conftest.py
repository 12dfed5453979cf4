"""Tests of services commit for real, many times a second."""

from collections.abc import Iterator

import pytest
from django.db import connection, connections

from tests.support.rows import reset_rows


@pytest.fixture
def transactional_db(django_db_setup: None, django_db_blocker) -> Iterator[None]:
    """Real commits as with pytest-django's fixture of this name, but empty only the queue's tables: much quicker."""
    with django_db_blocker.unblock():
        yield
        if connection.connection is not None and not connection.is_usable():
            connection.close()
        connection.set_autocommit(True)
        reset_rows()
        connections.close_all()
