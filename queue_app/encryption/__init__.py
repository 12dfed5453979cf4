"""Encryption at rest: the arguments, results, errors, log lines, steps and signals of chosen tasks.

A value is stored as ``{"$encrypted": "<key id>:<base64>"}``: AES-256-GCM with a random nonce. The task type is
authenticated with it, so a value that was moved to a task of another type is refused. Rows hold nothing else; who
displays a row without ``opened`` displays ``HIDDEN``.
"""

from __future__ import annotations

import binascii
import hmac
import json
import os
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Final

from queue_app import conf, registry
from queue_app.core.records import ClaimedTask, TaskFailure, TaskRow
from queue_app.core.redaction import HIDDEN, SEALED, is_sealed
from queue_app.exceptions import ArgumentUndecryptable, EncryptionUnavailable, InvalidTaskData, Undecryptable

#: Context of values whose task type is unknown: steps, signals, compensations and calls of schedules.
SHARED: Final = ""
#: Class of the failure whose text names a key and no value, so that it stays readable.
UNDECRYPTABLE: Final = f"{ArgumentUndecryptable.__module__}.{ArgumentUndecryptable.__qualname__}"
KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
NO_KEY: Final = "TASKQUEUE ENCRYPTION.KEYS has no key."
MAKE_ONE: Final = "`taskqueue encrypt --new-key ID` makes one."
_ENTRY: Final = re.compile(r"(?P<id>[A-Za-z0-9_.-]{1,40}):(?P<key>[A-Za-z0-9_-]{43}=?)", re.ASCII)


def is_on() -> bool:
    """Return whether the project has a key."""
    return bool(conf.get().encryption.keys)


def applies_to(task_type: str) -> bool:
    """Return whether the data of a task type are encrypted; a type that no code here knows may have asked for it.

    Raises ``EncryptionUnavailable`` if they should be, and there is no key.
    """
    settings = conf.get().encryption
    if settings.keys and registry.find(task_type) is None:
        return True
    asked = _asks(task_type, settings)
    if asked and not settings.keys:
        raise EncryptionUnavailable(f"{task_type} is encrypted, and {NO_KEY} {MAKE_ONE}")
    return asked


def hides(task_type: str) -> bool:
    """Return whether texts of a task must not be shown or logged; never raises."""
    try:
        return applies_to(task_type)
    except EncryptionUnavailable:
        return True


def _asks(task_type: str, settings: conf.EncryptionSettings) -> bool:
    own = getattr(registry.known(task_type), "encrypted", False)
    if settings.keys if own is None else own:
        return True
    return bool(settings.tasks) and any(fnmatchcase(task_type, each) for each in settings.tasks)


def new_key(key_id: str) -> str:
    """Return an entry for ``KEYS``: a key id and a random key; raise ``InvalidTaskData`` for the id."""
    entry = f"{key_id}:{urlsafe_b64encode(os.urandom(KEY_BYTES)).decode().rstrip('=')}"
    if not _ENTRY.fullmatch(entry):
        raise InvalidTaskData("key", f"{key_id!r:.60} is no key id: use up to 40 letters, digits, dots and dashes.")
    return entry


@lru_cache(maxsize=8)
def _ciphers(keys: tuple[str, ...]) -> dict[str, Any]:
    """Return the ciphers by key id, the one that encrypts first."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - an optional package
    except ImportError:
        why = "Encryption needs the package cryptography: install the extra encryption."
        raise EncryptionUnavailable(why) from None
    found: dict[str, Any] = {}
    for position, entry in enumerate(keys, 1):
        parts = _ENTRY.fullmatch(entry)
        if parts is None or parts["id"] in found:  # the message must not repeat the key
            raise EncryptionUnavailable(
                f"TASKQUEUE ENCRYPTION.KEYS: entry {position} must be ID:KEY, with an id of its own and a key of"
                f" 32 bytes in URL-safe Base64. {MAKE_ONE}"
            )
        found[parts["id"]] = AESGCM(urlsafe_b64decode(parts["key"].rstrip("=") + "="))
    if not found:
        raise EncryptionUnavailable(NO_KEY)
    return found


def problems() -> Iterator[str]:
    """Yield what is wrong with the keys, and which tasks lack them."""
    settings = conf.load()[0].encryption
    try:
        if settings.keys or (asking := [each for each in registry.known_types() if _asks(each, settings)]):
            _ciphers(tuple(settings.keys))
    except EncryptionUnavailable as error:
        yield str(error) if settings.keys else f"{asking[0]} is encrypted, and {error}"


def check_search(field: str, task_types: Collection[str]) -> None:
    """Raise ``InvalidTaskData`` for a search in values of tasks that are encrypted."""
    if not is_on():
        return
    hidden = ["Every task"] if "*" in conf.get().encryption.tasks else [each for each in task_types if applies_to(each)]
    if hidden:
        raise InvalidTaskData(field, f"{hidden[0]} is encrypted, so its values cannot be searched.", code="encrypted")


def seal(text: str, context: str) -> str:
    """Return JSON text in encrypted form, as JSON text; raise ``EncryptionUnavailable``."""
    key_id, cipher = next(iter(_ciphers(tuple(conf.get().encryption.keys)).items()))
    nonce = os.urandom(NONCE_BYTES)
    sealed = nonce + cipher.encrypt(nonce, text.encode(), context.encode())
    return f'{{"{SEALED}":"{key_id}:{urlsafe_b64encode(sealed).decode()}"}}'


def opened(value: Any, context: str) -> str:
    """Return the text that ``seal`` was given; ``value`` is JSON or JSON text. Raises ``Undecryptable``."""
    found = json.loads(value) if isinstance(value, str) else value
    key_id, _, data = found[SEALED].partition(":")
    ciphers = _ciphers(tuple(conf.get().encryption.keys))
    if key_id not in ciphers:
        raise Undecryptable(
            f"The key {key_id!r:.60} is not in TASKQUEUE ENCRYPTION.KEYS: add it below the newest.", is_key_missing=True
        )
    try:
        sealed = urlsafe_b64decode(data)
        plain: bytes = ciphers[key_id].decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], context.encode())
    except (binascii.Error, ValueError, _invalid_tag()):
        raise Undecryptable(
            f"The key {key_id!r} of this process does not decrypt the stored value. Another key had this id, or the"
            " value was changed or belongs to a task of another type."
        ) from None
    return plain.decode()


def _invalid_tag() -> type[Exception]:
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - an optional package

    return InvalidTag


def resealed(value: Any, context: str, *, applies: bool) -> str | None:
    """Return a value under the newest key, or text encrypted for the first time; ``None`` if it should stay."""
    if not is_sealed(value):
        return seal(value, context) if applies else None
    found = json.loads(value) if isinstance(value, str) else value
    newest = next(iter(_ciphers(tuple(conf.get().encryption.keys))))
    return None if found[SEALED].startswith(f"{newest}:") else seal(opened(found, context), context)


def sealed_if[T: (str, str | None)](text: T, task_type: str, context: str | None = None) -> T:
    """Return JSON text, encrypted if the task type is; ``None`` stays."""
    if not text or not applies_to(task_type):
        return text
    return seal(text, task_type if context is None else context)


def opened_if(value: Any, context: str) -> Any:
    """Return JSON that may be encrypted as it was before, text as text; raise ``Undecryptable``."""
    if not is_sealed(value):
        return value
    return opened(value, context) if isinstance(value, str) else json.loads(opened(value, context))


def sealed_call(row: TaskRow) -> tuple[str, str]:
    """Return (args, parameters) of a new task as they are stored: encrypted, both are in the first."""
    return seal_call(row.spec.task_type, row.args, row.parameters)


def seal_call(task_type: str, args: str, parameters: str) -> tuple[str, str]:
    """Do the same for JSON texts."""
    if not applies_to(task_type):
        return args, parameters
    return seal(f"[{args},{parameters}]", task_type), "{}"


def sealed_calls(task_type: str, calls: Iterable[tuple[str, str]]) -> Iterable[tuple[str, str]]:
    """Do the same for many calls of a task type."""
    return (seal_call(task_type, *call) for call in calls) if applies_to(task_type) else calls


def call_of(task_type: str, args: Any, parameters: Any) -> tuple[Any, Any]:
    """Return stored (args, parameters) as the caller gave them; raise ``Undecryptable``."""
    if not is_sealed(args):
        return args, parameters
    found = json.loads(opened(args, task_type))
    return found[0], found[1]


def opened_task(task: ClaimedTask) -> ClaimedTask:
    """Return a claimed task with its arguments; one that cannot be decrypted here keeps them as they are."""
    if not task.args.startswith("{"):
        return task
    try:
        args, parameters = call_of(task.task_type, task.args, "{}")
    except (Undecryptable, EncryptionUnavailable):
        return task  # the executor says why
    return replace(task, args=json.dumps(args), parameters=json.dumps(parameters))


def sealed_failure(failure: TaskFailure, task_type: str) -> TaskFailure:
    """Return a failure as it is stored: encrypted, message and traceback are both in the traceback."""
    if not applies_to(task_type) or failure.exception_class == UNDECRYPTABLE:
        return failure
    text = json.dumps([failure.message, failure.traceback])
    return replace(failure, message=HIDDEN, traceback=seal(text, task_type))


def failure_texts(task_type: str, message: str, traceback: str) -> tuple[str, str]:
    """Return (message, traceback) of a stored failure as they were; raise ``Undecryptable``."""
    if not is_sealed(traceback):
        return message, traceback
    found = json.loads(opened(traceback, task_type))
    return found[0], found[1]


def keyed_hash(text: str) -> str:
    """Return a hash of 32 hex digits that reveals nothing without ``SECRET_KEY``; it survives a rotation of keys."""
    from django.conf import settings  # noqa: PLC0415 - needed by encrypted unique tasks only

    return hmac.digest(settings.SECRET_KEY.encode(), b"queue_app.unique" + text.encode(), "sha256").hex()[:32]
