"""Callers that show an API key: ``Authorization: Bearer tq_…``."""

from __future__ import annotations

from typing import Any

from django.db.models.base import ModelState
from rest_framework import exceptions
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.request import Request

from queue_app.models import ApiKey
from queue_app.services.control.api_keys import find_key

APP = "queue_app."


class KeyAuthentication(BaseAuthentication):
    """Let the holder of a good key act as its user, within its scopes."""

    def authenticate(self, request: Request) -> tuple[Any, ApiKey] | None:
        """Return (user, key); ``None`` without a bearer token; raise ``AuthenticationFailed`` for a bad one."""
        kind, _, secret = get_authorization_header(request).partition(b" ")
        if kind.lower() != b"bearer":
            return None
        key = find_key(secret.strip().decode("latin-1"))
        if key is None:
            raise exceptions.AuthenticationFailed
        user = _own_copy(key.user)
        if key.scopes:
            _limit(user, frozenset(f"{APP}{scope}" for scope in key.scopes))
        return user, key

    def authenticate_header(self, request: Request) -> str:
        """Return the scheme to name in a 401."""
        return 'Bearer realm="task queue"'


def _own_copy(user: Any) -> Any:
    """Return the user without what others asked of him meanwhile; ``copy.copy`` takes several times as long."""
    found: Any = object.__new__(type(user))
    found.__dict__ |= user.__dict__
    found._state = state = ModelState()  # noqa: SLF001 - Django documents it
    state.db, state.adding = user._state.db, user._state.adding  # noqa: SLF001 - as above
    return found


def _limit(user: Any, scopes: frozenset[str]) -> None:
    """Let this copy of the user have no permission of the queue beyond the scopes."""
    has_perm = user.has_perm

    def has(permission: str, obj: Any = None) -> bool:
        return permission in scopes and bool(has_perm(permission, obj))

    user.has_perm = has
    user.has_perms = lambda permissions, obj=None: all(has(permission, obj) for permission in permissions)


def check_scope(request: Request, scope: str) -> None:
    """Raise ``PermissionDenied`` where the caller's key is limited, and not to this."""
    key = request.auth
    if isinstance(key, ApiKey) and key.scopes and scope not in key.scopes:
        raise exceptions.PermissionDenied(f"This key lacks the scope {scope}.")
