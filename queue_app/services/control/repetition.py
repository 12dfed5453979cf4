"""Keys of requests that make or start something: a repetition gets the first answer.

The key, the work and the answer are one transaction. Crash points: before its commit nothing has happened, and the
repetition does the work; after it the answer is stored. Of requests that arrive together, PostgreSQL lets the first
insert its key; the others wait for its end.
"""

from queue_app import conf
from queue_app.core.ids import uuid7
from queue_app.exceptions import IdempotencyConflict
from queue_app.models import IdempotentRequest
from queue_app.sql.database import alias, bound_transaction, fetch_value

_TAKE = """
INSERT INTO queue_app_idempotentrequest AS kept (id, "user", key, digest, status, answer, location, created_at)
VALUES (%(id)s, %(user)s, %(key)s, %(digest)s, 0, '', '', statement_timestamp())
ON CONFLICT ("user", key) DO UPDATE SET digest = EXCLUDED.digest, created_at = EXCLUDED.created_at
WHERE kept.created_at < statement_timestamp() - make_interval(secs => %(seconds)s)
RETURNING id
"""


def first_answer(user: str, key: str, digest: str) -> IdempotentRequest | None:
    """Return the answer to the request that used the key, or take the key in the caller's transaction.

    A key is free again after ``RETENTION.IDEMPOTENCY_SECONDS``. Raises ``IdempotencyConflict`` if another request used
    the key.
    """
    seconds = conf.get().retention.idempotency_seconds
    bound_transaction()  # a frozen process would keep repetitions waiting
    values = {"id": uuid7(), "user": user, "key": key, "digest": digest, "seconds": seconds}
    if fetch_value(_TAKE, values) is not None:
        return None
    found = IdempotentRequest.objects.using(alias()).filter(user=user, key=key).first()
    if found is None:  # it was purged since
        raise IdempotencyConflict("The idempotency key is being used by another request; try again.")
    if found.digest != digest:
        raise IdempotencyConflict(f"The idempotency key {key!r} was used for another request or with another body.")
    return found


def keep_answer(user: str, key: str, status: int, answer: str, location: str) -> None:
    """Store the answer to the request that took the key in this transaction."""
    taken = IdempotentRequest.objects.using(alias()).filter(user=user, key=key)
    taken.update(status=status, answer=answer, location=location)
