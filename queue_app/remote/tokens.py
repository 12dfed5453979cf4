"""Manage the tokens of remote workers; only a digest of each secret is stored."""

import hashlib
import secrets
import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from django.db.models import F, Q, QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from queue_app.exceptions import InvalidTaskData, TokenRefused
from queue_app.models import Worker, WorkerToken
from queue_app.models.worker import LIVING
from queue_app.services.enqueue.validate import check_capabilities, check_queue_name
from queue_app.services.repair.reap import mark_dead

PREFIX: Final = "tqw_"
SECRET_BYTES: Final = 32
MAX_TEXT: Final = 200
#: Minimum time between two updates of ``last_used_at``.
USED_SECONDS: Final = 60


def create(  # noqa: PLR0913 - the scope of a token, by keyword
    name: str,
    *,
    queues: Sequence[str] = (),
    capabilities: Sequence[str] = (),
    max_in_flight: int = 100,
    reads_encrypted: bool = False,
    expires_in: timedelta | None = None,
    by: str = "",
) -> tuple[WorkerToken, str]:
    """Create a token; return it with its secret, which cannot be read again.

    Without ``queues`` it allows all queues; without ``capabilities`` it allows none. Only with ``reads_encrypted``
    its workers get encrypted tasks, decrypted; the caller checks the permission ``view_encrypted``. Raises
    ``InvalidTaskData`` for a name that is taken and for invalid values.
    """
    check_queue_name(name)
    if max_in_flight < 1:
        raise InvalidTaskData("max_in_flight", "max_in_flight must be at least 1.")
    if WorkerToken.objects.filter(name=name).exists():
        raise InvalidTaskData("name", f"There is a token {name!r}; rotate or revoke that one, or choose another name.")
    secret = _new_secret()
    token = WorkerToken.objects.create(
        name=name,
        digest=_digest(secret),
        hint=secret[: len(PREFIX) + 6],
        queues=sorted({check_queue_name(queue) for queue in queues}),
        capabilities=list(check_capabilities(capabilities)),
        max_in_flight=max_in_flight,
        reads_encrypted=reads_encrypted,
        created_at=Now(),
        created_by=by,
        expires_at=None if expires_in is None else timezone.now() + expires_in,
    )
    token.refresh_from_db()
    return token, secret


def rotate(name: str, *, overlap: timedelta = timedelta(hours=1)) -> tuple[WorkerToken, str]:
    """Give a token a new secret; the old one stays valid for ``overlap``. Raises ``InvalidTaskData``."""
    secret = _new_secret()
    changed = WorkerToken.objects.filter(name=name, revoked_at=None).update(
        old_digest=F("digest"), old_until=Now() + overlap, digest=_digest(secret), hint=secret[: len(PREFIX) + 6]
    )
    if not changed:
        raise InvalidTaskData("name", f"There is no token {name!r} in force.")
    return WorkerToken.objects.get(name=name), secret


def revoke(name: str) -> int:
    """Revoke a token, declare its workers dead and queue their tasks again; return the number of workers.

    Raises ``InvalidTaskData`` for an unknown name; revoking again changes nothing.
    """
    token = forbid(name)
    living = Worker.objects.filter(token_id=token.id, status__in=LIVING)
    workers = list(living.values_list("id", flat=True))
    for worker_id in workers:
        mark_dead(worker_id)
    return len(workers)


def forbid(name: str) -> WorkerToken:
    """Revoke a token, without stopping its workers: ``revoke`` does both."""
    token = known(name)
    WorkerToken.objects.filter(name=name, revoked_at=None).update(revoked_at=Now())
    return token


def known(name: str) -> WorkerToken:
    """Return a token by its name; raise ``InvalidTaskData`` for an unknown one."""
    token = WorkerToken.objects.filter(name=name).first()
    if token is None:
        raise InvalidTaskData("name", f"There is no token {name!r}.")
    return token


def authenticate(secret: str) -> WorkerToken:
    """Return the token in force with this secret; raise ``TokenRefused``.

    The search is by digest, so its duration reveals nothing about the secret.
    """
    if not secret.startswith(PREFIX) or len(secret) > MAX_TEXT:
        raise TokenRefused("The worker token is not valid.")
    digest = _digest(secret)
    current = Q(digest=digest) | Q(old_digest=digest, old_until__gt=Now())
    token: WorkerToken | None = _in_force().filter(current).first()
    if token is None:
        raise TokenRefused("The worker token is not valid.")
    _in_force().filter(id=token.id).filter(
        Q(last_used_at=None) | Q(last_used_at__lt=Now() - timedelta(seconds=USED_SECONDS))
    ).update(last_used_at=Now())
    return token


def is_in_force(token_id: uuid.UUID) -> bool:
    """Whether a token is neither revoked nor expired."""
    return bool(_in_force().filter(id=token_id).exists())


def _in_force() -> QuerySet[WorkerToken]:
    return WorkerToken.objects.filter(Q(expires_at=None) | Q(expires_at__gt=Now()), revoked_at=None)


def _new_secret() -> str:
    return PREFIX + secrets.token_urlsafe(SECRET_BYTES)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()
