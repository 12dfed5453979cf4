"""Find tasks by the end of their id, and failed attempts by words of their errors, or any part of them."""

import re
import uuid
from typing import Final, NamedTuple

from django.db.models import BooleanField
from django.db.models.expressions import RawSQL

from queue_app.models.task import INDEXED_CHARACTERS
from queue_app.sql.database import fetch_all, fetch_column

#: Number of newest tasks among which the end of an id is looked for.
IDS_READ: Final = 1_000_000
#: Number of newest failed attempts in whose errors a part of a text is looked for.
ERRORS_READ: Final = 50_000
MAX_WORDS: Final = 8
#: The expression of the index ``taskqueue_error_words``.
_WORDS: Final = (
    "to_tsvector('simple', regexp_replace((exception_class || ' ' || left(message, "
    f"{INDEXED_CHARACTERS})), '[^[:alnum:]]+', ' ', 'g'))"
)
_WORD: Final = re.compile(r"[^\W_]+")


class Failed(NamedTuple):
    """A failed attempt whose error has the words."""

    task_id: uuid.UUID
    task_type: str
    exception_class: str
    message: str


#: The task types of ended tasks, one probe of the index ``taskqueue_by_type`` each.
_TYPES: Final = """
WITH RECURSIVE types AS (
    SELECT min(task_type) AS name FROM queue_app_task WHERE finished_at IS NOT NULL
    UNION ALL
    SELECT (SELECT min(task_type) FROM queue_app_task WHERE finished_at IS NOT NULL AND task_type > types.name)
    FROM types WHERE types.name IS NOT NULL
) SELECT name FROM types WHERE name IS NOT NULL LIMIT 1000
"""


def types_of_ended() -> list[str]:
    """Return the types of ended tasks, including those whose code is gone."""
    return fetch_column(_TYPES)


def split(text: str) -> list[str]:
    """Return the words of a text as the index has them."""
    return _WORD.findall(text)


def words_of(text: str) -> list[str]:
    """Return the words to look for, at most ``MAX_WORDS``."""
    return [word.lower() for word in split(text)[:MAX_WORDS]]


def failed_with(words: list[str], limit: int) -> list[Failed]:
    """Return the newest failed attempts in whose class or message some word begins with each of ``words``."""
    query = " & ".join(f"'{word}':*" for word in words)
    found = fetch_all(
        f"SELECT a.task_id, t.task_type, a.exception_class, left(a.message, {INDEXED_CHARACTERS})"
        " FROM (SELECT task_id, exception_class, message FROM queue_app_taskattempt"
        f" WHERE {_WORDS} @@ to_tsquery('simple', %s) ORDER BY task_id DESC LIMIT %s) AS a"
        " JOIN queue_app_task AS t ON t.id = a.task_id",
        [query, limit],
    )
    return [Failed(*row) for row in found]


#: Django's ``icontains`` compares ``UPPER(message)``. Of ``message`` alone PostgreSQL knows how common a part of it is.
_HAS: Final = "message ILIKE %s OR exception_class ILIKE %s"
# The array is made once; each of its ids is one probe of the primary key, in order. A join would read all tasks.
_PARTS: Final = f"""
queue_app_task.id = ANY(ARRAY(
    SELECT task_id FROM (
        SELECT task_id, exception_class, message FROM queue_app_taskattempt ORDER BY task_id DESC LIMIT %s
    ) AS newest WHERE {_HAS}
))
"""


def newest_with_error(part: str) -> RawSQL:
    """Return the condition that a text is a part of a task's errors, among the newest ``ERRORS_READ`` failed attempts.

    Case does not matter.
    """
    return RawSQL(_PARTS, [ERRORS_READ, *_patterns(part)], BooleanField())  # nosec B611  # noqa: S611 - no value is in the text


def has_error(part: str) -> RawSQL:
    """Return the condition on failed attempts that a text is a part of the error; case does not matter."""
    return RawSQL(_HAS, _patterns(part), BooleanField())  # nosec B611  # noqa: S611 - no value is in the text


def _patterns(part: str) -> list[str]:
    return ["%{}%".format(re.sub(r"([%_\\])", r"\\\1", part))] * 2


def has_older_errors() -> bool:
    """Return whether there are more failed attempts than ``newest_with_error`` reads."""
    return bool(fetch_all("SELECT 1 FROM queue_app_taskattempt OFFSET %s LIMIT 1", [ERRORS_READ]))


def ids_that_end_in(digits: str, limit: int) -> list[uuid.UUID]:
    """Return the tasks, among the newest ``IDS_READ``, whose id ends in these hexadecimal digits."""
    for read in (IDS_READ // 20, IDS_READ):  # most are young
        found = fetch_all(
            "SELECT id FROM (SELECT id FROM queue_app_task ORDER BY id DESC LIMIT %s) AS newest"
            " WHERE substring(uuid_send(id) FROM %s) = %s AND encode(uuid_send(id), 'hex') LIKE %s LIMIT %s",
            [read, 17 - len(digits) // 2, bytes.fromhex(digits[len(digits) % 2 :]), f"%{digits}", limit],
        )
        if found:
            break
    return [task_id for (task_id,) in found]
