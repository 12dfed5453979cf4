"""Authentication by API key (``Authorization: Bearer tq_…``) and by password.

Wrong passwords are counted by the address of the connection and the name: a header such as X-Forwarded-For could be
made up by the caller.
"""

from typing import Any

from rest_framework import exceptions
from rest_framework.authentication import BaseAuthentication, BasicAuthentication
from rest_framework.request import Request

from queue_app import conf
from queue_app.core.counters import failed_logins
from queue_app.models import ApiKey
from queue_app.models.fields import USER_LENGTH
from queue_app.services.control.api_keys import find_key, own_user


class PasswordAuthentication(BasicAuthentication):
    """HTTP Basic that refuses names which a database cannot hold."""

    www_authenticate_realm = "task queue"

    def authenticate_credentials(self, userid: str, password: str, request: Any = None) -> Any:
        """Return (user, None); raise ``AuthenticationFailed``, or ``Throttled`` before a password is hashed."""
        if "\x00" in userid or "\x00" in password:
            raise exceptions.AuthenticationFailed
        name = (request.META.get("REMOTE_ADDR") or "", userid[:USER_LENGTH])
        wait = failed_logins.wait(*name, limit=conf.get().api.failed_logins_per_minute)
        if wait is not None:
            raise exceptions.Throttled(wait)
        try:
            return super().authenticate_credentials(userid, password, request)
        except exceptions.AuthenticationFailed:
            failed_logins.add(*name)
            raise


class KeyAuthentication(BaseAuthentication):
    """Let the holder of a valid key act as its user, within the scopes of the key."""

    def authenticate(self, request: Request) -> tuple[Any, ApiKey] | None:
        """Return (user, key), or ``None`` without a bearer token; raise ``AuthenticationFailed`` for a bad one."""
        kind, _, secret = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
        if kind.lower() != "bearer":
            return None
        key = find_key(secret.strip())
        if key is None:
            raise exceptions.AuthenticationFailed
        user = own_user(key)
        if key.scopes:
            _restrict(user, frozenset(f"queue_app.{scope}" for scope in key.scopes))
        return user, key

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="task queue"'


def _restrict(user: Any, scopes: frozenset[str]) -> None:
    """Remove every permission of the queue outside the scopes from this copy of the user."""
    has_perm = user.has_perm

    def has(permission: str, obj: Any = None) -> bool:
        return permission in scopes and bool(has_perm(permission, obj))

    user.has_perm = has
    user.has_perms = lambda permissions, obj=None: all(has(permission, obj) for permission in permissions)
