"""A connection that the network forgot breaks by itself; tests/integration/faults/machines.py cuts a real one."""

import psycopg
from django.db import connection

from queue_app.sql.connections import KEEPALIVES, add_keepalives


def test_a_connection_has_the_options_that_end_a_silence(db):
    parameters = connection.connection.info.get_parameters()
    assert parameters.items() >= {name: str(value) for name, value in KEEPALIVES.items()}.items()


def test_a_project_may_set_its_own(databases):
    own = {"ENGINE": "django.db.backends.postgresql", "OPTIONS": {"tcp_user_timeout": 9000, "sslmode": "prefer"}}
    databases["own"] = own
    add_keepalives("own")
    assert own["OPTIONS"] == KEEPALIVES | {"tcp_user_timeout": 9000, "sslmode": "prefer"}
    psycopg.conninfo.make_conninfo(**own["OPTIONS"])  # libpq knows them


def test_another_database_keeps_its_options(databases):
    databases["lite"] = {"ENGINE": "django.db.backends.sqlite3"}
    add_keepalives("lite")
    add_keepalives("missing")
    assert "OPTIONS" not in databases["lite"]
