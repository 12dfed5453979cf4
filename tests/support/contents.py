"""All that PostgreSQL and the index hold, as text, to look for a secret in."""

from django.db import connection

from queue_app.index import get_index


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


def index_text() -> str:
    """Return every key and value of the index as text."""
    client = get_index()._client
    read = {
        b"string": client.get,
        b"hash": client.hgetall,
        b"set": client.smembers,
        b"zset": lambda key: client.zrange(key, 0, -1),
        b"list": lambda key: client.lrange(key, 0, -1),
        b"stream": client.xrange,
    }
    return "\n".join(f"{key}: {read[client.type(key)](key)}" for key in client.scan_iter(count=1000))
