"""Whether the index in Redis belongs to this database: no other project or copy, such as staging, may change it."""

from queue_app import conf
from queue_app.exceptions import IndexOfAnotherDatabase
from queue_app.index import Index, get_index, server_url
from queue_app.sql.doctor import database_identity

ADVICE = (
    "Set another TASKQUEUE['KEY_PREFIX'] here (TASKQUEUE__KEY_PREFIX), or another Redis. Only if this database has"
    " replaced the other one, take the index over: `manage.py taskqueue rebuild --adopt`."
)


def is_foreign(owner: str) -> bool:
    """Whether an index with this owner belongs to another database than this one."""
    return owner not in {"", database_identity()}


def check_owner(index: Index | None = None) -> None:
    """Raise ``IndexOfAnotherDatabase`` if the index, by default the one in force, belongs to another database."""
    index = index or get_index()
    if index.way == conf.ROWS:  # its tables are in this database
        return
    owner, own = index.generation().owner, database_identity()
    if is_foreign(owner):
        raise IndexOfAnotherDatabase(
            f"The index {index.keys.prefix} in Redis at {server_url(index.alias)} belongs to {_text(owner)}, not to"
            f" {_text(own)}. {ADVICE}"
        )


def without_advice(error: IndexOfAnotherDatabase) -> str:
    """Return what is wrong, for messages that show the advice apart."""
    return str(error).removesuffix(ADVICE).strip()


def _text(identity: str) -> str:
    cluster, _, rest = identity.partition("/")
    name, _, schema = rest.rpartition("/")
    return f"the database {name!r} (schema {schema}) of the PostgreSQL cluster {cluster}"
