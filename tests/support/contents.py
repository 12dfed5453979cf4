"""All that PostgreSQL and the index hold, as text, to look for a secret in."""

from django.apps import apps
from django.db import connection
from django.db.models import Model

from tests.support.engine import redis_client


def tables() -> str:
    """Return every row of every table of the queue as text."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT tablename FROM pg_tables WHERE tablename LIKE 'queue_app_%'")
        names = [name for (name,) in cursor.fetchall()]
        parts = []
        for name in names:
            cursor.execute(f'SELECT t::text FROM "{name}" AS t')  # noqa: S608 - names of tables
            parts += [f"{name}: {row}" for (row,) in cursor.fetchall()]
    return "\n".join(parts)


def rows_without(*left_out: type[Model]) -> dict[str, list[str]]:
    """Return the rows of all models but some, as texts, in one round trip."""
    models = apps.get_app_config("queue_app").get_models()
    names = [model._meta.db_table for model in models if model not in left_out]
    with connection.cursor() as cursor:
        columns = (f"ARRAY(SELECT {name}::text FROM {name} ORDER BY 1)" for name in names)  # noqa: S608 - our tables
        cursor.execute(f"SELECT {', '.join(columns)}")
        return dict(zip(names, cursor.fetchone(), strict=True))


def index_text() -> str:
    """Return every key and value of the index as text."""
    client = redis_client()
    read = {
        b"string": client.get,
        b"hash": client.hgetall,
        b"set": client.smembers,
        b"zset": lambda key: client.zrange(key, 0, -1),
        b"list": lambda key: client.lrange(key, 0, -1),
        b"stream": client.xrange,
    }
    return "\n".join(f"{key}: {read[client.type(key)](key)}" for key in client.scan_iter(count=1000))
