"""Read one request of another service: flat text fields, as strictly as the API reads a body."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from queue_app import conf
from queue_app.core.events import EventName
from queue_app.core.payload import BESIDE_BYTES
from queue_app.core.priorities import parse_band
from queue_app.core.wire import decode_text, load_json, timestamp
from queue_app.exceptions import InvalidTaskData, PayloadTooLarge
from queue_app.services.submit import Submission
from queue_app.services.validate import check_request_id

#: What a request may say; the fields after ``task_type`` may be left out.
FIELDS: Final = (
    "event",
    "request_id",
    "task_type",
    "parameters",
    "queue",
    "priority",
    "user",
    "capabilities",
    "run_after",
    "delay",
    "timeout",
    "max_retries",
    "idempotency_key",
    "concurrency_key",
    "weight",
)
_JSON: Final = ("parameters", "delay", "timeout", "max_retries", "weight")

Fields = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A request that can be read; whether it can be carried out is yet to be seen."""

    values: dict[str, Any]

    @property
    def owner(self) -> str:
        """The user whom the task shall belong to; raises ``InvalidTaskData`` for one who is not allowed."""
        said, pattern = self.values.get("user", ""), conf.get().requests.user
        if "*" in pattern:
            return pattern.replace("*", said)
        if said not in ("", pattern):
            raise InvalidTaskData("user", "Requests may not name this user.", code="user_not_allowed")
        return pattern

    @property
    def has_own_key(self) -> bool:
        """Whether the request names an idempotency key beside its id."""
        return "idempotency_key" in self.values

    def to_submission(self) -> Submission:
        """Return what the request asks for; raise ``InvalidTaskData``. The services check the rest."""
        values = self.values
        for name in values:
            if name not in FIELDS:
                raise InvalidTaskData(name, "There is no such field.", code="unknown_field")
        request_id = check_request_id(_required(values, "request_id"))
        if "run_after" in values and "delay" in values:
            raise InvalidTaskData("delay", "Give run_after or delay, not both.", code="conflicting_fields")
        capabilities = values.get("capabilities")
        return Submission(
            task_type=_required(values, "task_type"),
            parameters=values.get("parameters", {}),
            user=self.owner,
            queue=values.get("queue"),
            priority=parse_band(values["priority"]) if "priority" in values else None,
            capabilities=None if capabilities is None else [name for name in capabilities.split(",") if name],
            run_after=timestamp(values["run_after"], "run_after") if "run_after" in values else None,
            delay=values.get("delay"),
            timeout=values.get("timeout"),
            max_retries=values.get("max_retries"),
            idempotency_key=values.get("idempotency_key", request_id),
            concurrency_key=values.get("concurrency_key"),
            weight=values.get("weight"),
        )


def read_request(fields: Fields) -> ReadRequest:
    """Decode the fields of a request; raise ``InvalidTaskData`` when that cannot be done."""
    values: dict[str, Any] = {}
    for raw_name, raw in fields:
        name = decode_text(raw_name, field="", subject="A field's name")
        if name in values:
            raise InvalidTaskData(name, f"{name!r:.80} occurs twice.", code="duplicate_key")
        _check_size(name, raw)
        values[name] = decode_text(raw, field=name, subject=name)
    if values.get("event") != EventName.EXECUTION_REQUESTED:
        raise InvalidTaskData("event", f"event must be {EventName.EXECUTION_REQUESTED}.", code="unknown_event")
    depth = conf.get().payload.max_depth
    return ReadRequest(
        {
            name: load_json(text, field=name, subject=name, max_depth=depth) if name in _JSON else text
            for name, text in values.items()
        }
    )


def request_id_in(fields: Fields) -> str:
    """Return the id that an answer can repeat; an empty one where there is none that may be repeated."""
    try:
        return check_request_id(decode_text(dict(fields)[b"request_id"], field="request_id", subject="request_id"))
    except (KeyError, InvalidTaskData):
        return ""


def _check_size(name: str, raw: bytes) -> None:
    limit = conf.get().payload.wire_bytes if name == "parameters" else BESIDE_BYTES
    if len(raw) > limit:
        raise PayloadTooLarge(name, f"{name:.80} has {len(raw)} bytes; the limit is {limit}.", limit=limit)


def _required(values: dict[str, Any], name: str) -> Any:
    if name not in values:
        raise InvalidTaskData(name, f"{name} is required.", code="required")
    return values[name]
