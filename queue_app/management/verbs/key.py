"""Create, list or revoke API keys, with which a program acts as a user."""

from argparse import ArgumentParser
from datetime import timedelta

from django.contrib.auth import get_user_model
from django.core.management.base import CommandError
from django.utils import timezone

from queue_app.management.verbs import OK, REFUSED, Call, Needs, add_by_and_json
from queue_app.management.verbs._values import duration
from queue_app.models import ApiKey
from queue_app.services.control.api_keys import DEFAULT_LIFETIME, PURPOSES, SCOPES, create_key, purposes_of, revoke_key
from queue_app.sql.database import atomic

EXAMPLE = "taskqueue key create ann --name reports --scope submit --scope read --for 90d"
NEEDS = Needs.DATABASE
LISTED_FIELDS = ("prefix", "name", "scopes", "expires_at", "revoked_at", "last_used_at")


def add_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("action", choices=("create", "list", "revoke"))
    add("target", nargs="?", default="", metavar="USER|PREFIX", help="create: the user; revoke: the key")
    add("--name", default="", help="purpose of the key")
    add(
        "--scope",
        action="append",
        default=[],
        choices=(*PURPOSES, *SCOPES),
        metavar="SCOPE",
        help=f"create: {', '.join(PURPOSES)}, or a permission; repeatable; without any: nothing",
    )
    add(
        "--for", dest="length", type=_lifetime, default=DEFAULT_LIFETIME, metavar="TIME",
        help="create: expire after 2h, 52w, or never; default: 90d",
    )  # fmt: skip
    add_by_and_json(parser)


def _lifetime(text: str) -> timedelta | None:
    return None if text == "never" else duration(text)


def run(call: Call) -> int:
    """Run the action and record it in the audit log."""
    return {"create": _create, "list": _list, "revoke": _revoke}[call["action"]](call)


def _create(call: Call) -> int:
    users = get_user_model()
    name = call["target"]
    user = users._default_manager.filter(**{users.USERNAME_FIELD: name}).first()  # noqa: SLF001 - documented by Django
    if user is None:
        raise CommandError(f"There is no user {name!r:.80}.")
    until = None if call["length"] is None else timezone.now() + call["length"]
    with atomic():
        key, secret = create_key(user, call["name"] or "key", scopes=call["scope"], expires_at=until, by=call.by)
        call.record("create_key", "user", [name], after={"prefix": key.prefix})
    if not call["scope"]:
        call.note("This key may do nothing: it has no --scope.")
    call.note(f"This key is shown only once. Send it as: Authorization: Bearer {secret[:12]}…")
    return call.answer(
        secret,
        {"key": secret, "prefix": key.prefix, "scopes": key.scopes, "expires_at": key.expires_at},
    )


def _list(call: Call) -> int:
    found = list(ApiKey.objects.order_by("prefix")[:1000])
    users = get_user_model()._base_manager.filter(pk__in={key.user_id for key in found})  # noqa: SLF001 - as above
    names = {str(user.pk): user.get_username() for user in users}
    for key in found:
        state = "revoked" if key.revoked_at else f"until {key.expires_at:%Y-%m-%d}" if key.expires_at else "valid"
        call.write(
            f"{key.prefix}  {names.get(key.user_id)}  {key.name}  {' '.join(purposes_of(key.scopes)) or 'all'}  {state}"
        )
    call.write_json(
        [{"user": names.get(key.user_id)} | {field: getattr(key, field) for field in LISTED_FIELDS} for key in found]
    )
    return OK


def _revoke(call: Call) -> int:
    key = ApiKey.objects.filter(prefix=call["target"]).first()
    if key is None or not revoke_key(key.id):
        call.write(f"There is no valid key with the prefix {call['target']!r:.40}.")
        call.write_json({"revoked": False})
        return REFUSED
    call.record("revoke_key", "key", [key.prefix])
    return call.answer(f"{key.prefix} is revoked", {"revoked": True})
