"""Create, rotate, revoke or list the tokens of remote workers."""

from argparse import ArgumentParser
from typing import Any

from queue_app.management.verbs import OK, Call, Needs, add_by_and_json
from queue_app.management.verbs._values import duration, names
from queue_app.models import WorkerToken
from queue_app.remote import tokens
from queue_app.sql.database import atomic

EXAMPLE = "taskqueue token create renderer --queues video --capabilities gpu"
NEEDS = Needs.DATABASE
FIELDS = (
    "name",
    "hint",
    "queues",
    "capabilities",
    "max_in_flight",
    "reads_encrypted",
    "created_at",
    "expires_at",
    "last_used_at",
    "revoked_at",
)


def add_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("action", choices=("create", "rotate", "revoke", "list"))
    add("name", nargs="?", default="", help="name of the token; not for list")
    add("--queues", default="", help="create: comma-separated names; default: all queues")
    add("--capabilities", default="", help="create: capabilities that its workers may offer; default: none")
    add(
        "--max-in-flight",
        type=int,
        default=100,
        help="create: maximum number of tasks that its workers may hold at once (default 100)",
    )
    add(
        "--encrypted",
        action="store_true",
        help="create: let its workers run encrypted tasks, which the server decrypts for them",
    )
    add("--expires-in", type=duration, metavar="TIME", help="create: expire after 90s, 15m, 2h, 1d; default: never")
    add(
        "--overlap", type=duration, metavar="TIME", help="rotate: the old secret stays valid for this time (default 1h)"
    )
    add_by_and_json(parser)


def run(call: Call) -> int:
    """Run the action and record it in the audit log; a secret is printed once and not stored."""
    action, name = call["action"], call["name"]
    if action == "list":
        found = list(WorkerToken.objects.all())
        call.write_json([_as_dict(token) for token in found])
        for token in found:
            call.write(_line(token))
        return OK
    secret, stopped = "", 0
    with atomic():
        if action == "create":
            token, secret = tokens.create(
                name,
                queues=names(call["queues"]),
                capabilities=names(call["capabilities"]),
                max_in_flight=call["max_in_flight"],
                reads_encrypted=call["encrypted"],
                expires_in=call["expires_in"],
                by=call.by,
            )
        elif action == "rotate":
            token, secret = tokens.rotate(name, **({"overlap": call["overlap"]} if call["overlap"] else {}))
        else:
            tokens.known(name)  # an unknown name must leave no record
        call.record(f"token_{action}", "token", [name])
    if action == "revoke":
        stopped = tokens.revoke(name)
        return call.answer(
            f"{name} is revoked; workers stopped: {stopped}; their tasks are queued again",
            {"name": name, "revoked": True, "workers": stopped},
        )
    call.write(f"{token.name}: {secret}")
    return call.answer(
        "This secret is shown only once. Give it to the worker as TASKQUEUE_TOKEN, or with --token.",
        _as_dict(token) | {"secret": secret},
    )


def _as_dict(token: WorkerToken) -> dict[str, Any]:
    return {field: getattr(token, field) for field in FIELDS}


def _line(token: WorkerToken) -> str:
    state = "revoked" if token.revoked_at else "valid"
    queues = ", ".join(token.queues) or "all queues"
    return f"{token.name:<20} {token.hint}…  {state:<8} {queues}; {', '.join(token.capabilities) or 'no capabilities'}"
