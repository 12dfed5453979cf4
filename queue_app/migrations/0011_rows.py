"""What ``INDEX = "rows"`` needs: its tables, and the functions of a claim."""

from pathlib import Path

from django.db import migrations

#: Read as files: they belong to a room, and the tables exist without it.
_SQL = Path(__file__).resolve().parents[1] / "rows" / "sql"
_TABLES = ("state", "lane", "reservation", "gate", "turn", "lock", "counter", "call")
_INDEXES = ("ordered", "capped", "capped_limit")  # of queues and limits
_DROP = [
    *(f"DROP TABLE IF EXISTS queue_app_rows_{name}" for name in _TABLES),
    *(f"DROP INDEX queue_app_rows_{name}" for name in _INDEXES),
]


def sql_of(name):
    return (_SQL / name).read_text(encoding="utf-8")


CLAIM = sql_of("claim_1.sql") + sql_of("wake_1.sql")
# The last ones use the first ones.
FUNCTIONS = [part.partition("(")[0] for part in reversed(CLAIM.split("CREATE FUNCTION ")[1:])]


class Migration(migrations.Migration):
    dependencies = [("queue_app", "0010_one_algorithm")]

    operations = [
        migrations.RunSQL([sql_of("tables_1.sql")], _DROP),
        migrations.RunSQL([CLAIM], [f"DROP FUNCTION {name}" for name in FUNCTIONS]),
    ]
