"""Create, find and revoke keys of the API. A secret is returned once; only its digest is stored."""

import hashlib
import hmac
import secrets
import time
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from threading import Lock
from typing import Any, Final

from django.db.models.base import ModelState
from django.utils import timezone

from queue_app.exceptions import InvalidTaskData
from queue_app.models import ApiKey
from queue_app.models.fields import NAME_LENGTH, USER_LENGTH
from queue_app.sql.database import connection

MARK: Final = "tq"
SECRET_LENGTH: Final = 100
#: What a key is for -> the permissions that it then has, as far as its user has them.
PURPOSES: Final[Mapping[str, tuple[str, ...]]] = {
    "read": (
        "view_task", "view_payload", "view_deadletter", "view_worker", "view_queue", "view_prioritypolicy",
        "view_limit", "view_runtimesettings", "view_schedule", "view_operation", "view_workflow",
    ),
    "submit": ("add_task",),
    "operate": (
        "cancel_task", "reprioritise_task", "retry_task", "send_signal", "replay_deadletter", "discard_deadletter",
        "pause_queue", "pause_limit", "pause_schedule", "run_schedule", "change_operation", "steer_workflow",
        "stop_undoing_workflow",
    ),
    "administer": (
        "delete_task", "view_encrypted", "change_queue", "change_prioritypolicy", "add_limit", "change_limit",
        "delete_limit", "change_runtimesettings", "add_schedule", "change_schedule", "delete_schedule",
        "view_auditentry",
    ),
}  # fmt: skip
#: Permissions that a key can be limited to.
SCOPES: Final = tuple(scope for scopes in PURPOSES.values() for scope in scopes)
#: Stands in the row of a key for no scope at all; rows without scopes may do all that their users may.
NOTHING: Final = "nothing"
DEFAULT_LIFETIME: Final = timedelta(days=90)
#: Lifetime of a key, its user and their permissions in a process's cache: a revoked one may be accepted for this long.
CACHE_SECONDS: Final = 2.0
MAX_CACHED: Final = 1000
#: Minimum time between two updates of ``last_used_at``.
_USED_EVERY: Final = timedelta(minutes=1)

_known: dict[str, tuple[float, ApiKey]] = {}
_lock = Lock()


def create_key(
    user: Any, name: str, *, scopes: Sequence[str] | None = None, expires_at: datetime | None = None, by: str = ""
) -> tuple[ApiKey, str]:
    """Create a key; return it with its secret, which is not stored. Raises ``InvalidTaskData``.

    ``scopes`` are purposes or permissions. Without any the key may do nothing; ``None``: all that its user may.
    """
    unknown = [scope for scope in scopes or () if scope not in {*PURPOSES, *SCOPES}]
    if unknown:
        known = ", ".join((*PURPOSES, *SCOPES))
        raise InvalidTaskData("scopes", f"{unknown[0]!r:.60} is not a scope; the scopes are {known}.")
    expanded = [each for scope in scopes or () for each in PURPOSES.get(scope, (scope,))]
    if scopes is not None:
        expanded = list(dict.fromkeys(expanded)) or [NOTHING]
    prefix = secrets.token_hex(4)
    secret = f"{MARK}_{prefix}_{secrets.token_urlsafe(32)}"
    key = ApiKey.objects.create(
        user_id=str(user.pk),
        name=name[:NAME_LENGTH],
        prefix=prefix,
        digest=_digest(secret),
        scopes=expanded,
        created_at=timezone.now(),
        created_by=by[:USER_LENGTH],
        expires_at=expires_at,
    )
    return key, secret


def purposes_of(scopes: Sequence[str]) -> list[str]:
    """Return the scopes of a key as purposes, and the permissions that remain."""
    whole = [name for name, permissions in PURPOSES.items() if set(permissions) <= set(scopes)]
    covered = {permission for name in whole for permission in PURPOSES[name]}
    return whole + [scope for scope in scopes if scope not in covered]


def revoke_key(key_id: uuid.UUID) -> bool:
    """Revoke a key, here at once and in other processes within seconds; return whether it was not yet revoked."""
    _known.clear()
    return bool(ApiKey.objects.filter(pk=key_id, revoked_at=None).update(revoked_at=timezone.now()))


def delete_keys(user_id: str) -> int:
    """Delete the keys of a deleted user; return their number."""
    _known.clear()
    return ApiKey.objects.filter(user_id=user_id).delete()[0]


def find_key(secret: str) -> ApiKey | None:
    """Return the valid key of a secret, with its user; ``None`` if it is unknown, revoked, expired, or malformed."""
    mark, _, rest = secret.partition("_")
    prefix = rest.partition("_")[0]
    if mark != MARK or len(secret) > SECRET_LENGTH or not secret.isascii() or not prefix.isalnum():
        return None
    digest = _digest(secret)
    key = _look_up(prefix)
    if key is None or not hmac.compare_digest(key.digest, digest):
        return None
    if not _is_valid(key):
        return None
    now = timezone.now()
    if key.last_used_at is None or now - key.last_used_at > _USED_EVERY:
        key.last_used_at = now
        ApiKey.objects.filter(pk=key.pk).update(last_used_at=now)
    return key


def own_user(key: ApiKey) -> Any:
    """Return a copy of a key's user for one request, as the key is cached; ``copy.copy`` is several times slower."""
    user = key.user
    found: Any = object.__new__(type(user))
    found.__dict__ |= user.__dict__
    found._state = state = ModelState()  # noqa: SLF001 - Django documents it
    state.db, state.adding = user._state.db, user._state.adding  # noqa: SLF001 - as above
    return found


def is_in_force(key: ApiKey, max_age: float) -> bool:
    """Return whether an accepted key would be accepted now, as this process saw it at most ``max_age`` seconds ago."""
    found = _look_up(key.prefix, max_age)
    return found is not None and found.pk == key.pk and _is_valid(found)


def forget_keys() -> None:
    """Empty the cache; tests call it when they empty the tables."""
    _known.clear()


def _is_valid(key: ApiKey) -> bool:
    is_expired = key.expires_at is not None and key.expires_at <= timezone.now()
    return key.revoked_at is None and not is_expired and key.user is not None and bool(key.user.is_active)


def _look_up(prefix: str, max_age: float | None = None) -> ApiKey | None:
    now = time.monotonic()
    found = _known.get(prefix)
    if found is not None and now - found[0] < (CACHE_SECONDS if max_age is None else max_age):
        return found[1]
    key = ApiKey.objects.filter(prefix=prefix).first()
    if key is not None and not connection().in_atomic_block:  # an uncommitted key must not be cached
        if hasattr(key.user, "get_all_permissions") and not key.user.is_superuser:
            key.user.get_all_permissions()  # Django keeps them on the user; ``own_user`` copies them
        with _lock:
            if len(_known) >= MAX_CACHED:
                _known.clear()
            _known[prefix] = (now, key)
    return key


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
