"""Webhooks: signed HTTP calls to other services, each a task with retries.

The requests follow the specification of Standard Webhooks: headers ``webhook-id`` (the same in every retry),
``webhook-timestamp`` and ``webhook-signature``, an HMAC of id, time and body for each secret of the endpoint. Receivers
check it with ``verify`` or with any library of that specification.

A request goes only to public addresses of the endpoint's hosts, and to the address that was checked, whatever the name
resolves to a moment later. Redirects are not followed.
"""

from __future__ import annotations

import hmac
import http.client
import ipaddress
import json
import re
import socket
import ssl
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from fnmatch import fnmatchcase
from time import time
from typing import Any, Final
from urllib.parse import urlsplit

from django.utils import timezone

from queue_app import conf
from queue_app.exceptions import Discard, InvalidTaskData, Retry, suggestion
from queue_app.tasks import task

SECRET: Final = "whsec_"  # noqa: S105 - the prefix of one
#: Bytes of a secret.
LEAST, MOST = 24, 64
TIMEOUT_SECONDS: Final = 10.0
#: Maximum number of addresses of a host that a delivery tries.
MAX_ADDRESSES: Final = 3
#: Difference between the clocks of sender and receiver that ``verify`` accepts (s).
TOLERANCE: Final = 300.0
_FIXED_HEADERS: Final = {"Content-Type": "application/json", "User-Agent": "django-priority-taskqueue"}
MAX_RETRY_AFTER: Final = 86_400.0
RETRY_DELAY: Final = 10  # s, doubled with each retry
_SUCCESS, _REDIRECT = 2, 3  # first digit of an answer's status
#: What the internet uses of IPv6. Other addresses are local, or lead to an IPv4 address that they contain.
_GLOBAL_UNICAST: Final = ipaddress.ip_network("2000::/3")
#: IANA gives them a special purpose, and ``ipaddress`` of some Python takes one of their addresses for public: relays,
#: tunnels, protocols and documentation.
_SPECIAL: Final = tuple(map(ipaddress.ip_network, (
    "192.0.0.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.175.48.0/24", "2001::/23",
    "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20",
)))  # fmt: skip
_LABEL: Final = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST: Final = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*")
#: Digits of the largest timestamp that ``verify`` reads.
_DIGITS: Final = 15
_KEYS: Final = ("url", "hosts", "secrets", "private", "ports")
_EVENT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}")


class DeliveryFailed(Exception):
    """The receiver did not accept a webhook; the delivery is retried."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An entry of the setting ``WEBHOOKS``."""

    name: str
    url: str  # empty: the caller names one
    hosts: Sequence[str]  # patterns of hosts that may be called
    secrets: Sequence[bytes]  # newest first; each signs
    private: bool  # whether private addresses and http are allowed
    ports: Sequence[int]  # that may be called; empty: all


def endpoint_of(name: str) -> Endpoint:
    """Return an endpoint; raise ``InvalidTaskData`` for an unknown one, or one that cannot be used."""
    known = conf.load()[0].webhooks
    if name not in known:
        raise InvalidTaskData("endpoint", f"TASKQUEUE WEBHOOKS has no {name!r:.60}.{suggestion(name, known)}")
    given = known[name]
    if unknown := set(given) - set(_KEYS):
        hint = suggestion(min(unknown), _KEYS)
        raise _unusable(name, f"has no {min(unknown)!r:.40}.{hint}")
    url, private = given.get("url", ""), given.get("private", False)
    if not isinstance(url, str) or not isinstance(private, bool):
        raise _unusable(name, "`url` is a text, `private` is True or False.")
    if not url and not given.get("hosts"):
        raise _unusable(name, "needs a `url`, or `hosts` for addresses that your code names.")
    hosts = given.get("hosts") or [url and (urlsplit(url).hostname or "")]
    if not isinstance(hosts, list | tuple) or not all(isinstance(each, str) for each in hosts):
        raise _unusable(name, f'`hosts` is a list of texts such as ["*.example.org"], not {hosts!r:.100}.')
    ports = given.get("ports", [])
    if not isinstance(ports, list | tuple) or not all(type(port) is int for port in ports):
        raise _unusable(name, f"`ports` is a list of numbers such as [8443], not {ports!r:.100}.")
    if private and not (url or ports):
        raise _unusable(name, "is `private` and its addresses are named by code: list the `ports` that may be called.")
    secrets = list(_secrets(name, given.get("secrets")))
    found = Endpoint(name, url, hosts, secrets, private, ports)
    if url:
        _target(found, url)
    return found


def _secrets(name: str, given: Any) -> Iterator[bytes]:
    if not isinstance(given, list | tuple) or not given:
        raise _unusable(name, f"needs a list of secrets: each {SECRET} and {LEAST} to {MOST} random bytes in base64.")
    for position, each in enumerate(given, 1):
        try:
            secret = b64decode(str(each).removeprefix(SECRET), validate=True)
        except NotBase64:
            secret = b""
        if not str(each).startswith(SECRET) or not LEAST <= len(secret) <= MOST:
            raise _unusable(name, f"secret {position} is not {SECRET} and {LEAST} to {MOST} bytes in base64.")
        yield secret


def _unusable(name: str, why: str) -> InvalidTaskData:
    return InvalidTaskData("endpoint", f"TASKQUEUE WEBHOOKS {name}: {why}")


def problems() -> Iterator[str]:
    """Yield what is wrong with the setting ``WEBHOOKS``."""
    for name in conf.load()[0].webhooks:
        try:
            endpoint_of(name)
        except InvalidTaskData as error:
            yield error.message


def _target(endpoint: Endpoint, url: str) -> tuple[str, int, str, bool]:
    """Return (host, port, path, whether TLS) of an address; raise ``InvalidTaskData`` for one that is not allowed."""
    try:
        parts = urlsplit(str(url))
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise _unusable(endpoint.name, f"{url!r:.100} is no address.") from None
    if parts.scheme != "https" and not (endpoint.private and parts.scheme == "http"):
        schemes = "https:// or http://" if endpoint.private else "https://"
        raise _unusable(endpoint.name, f"the address must begin with {schemes}.")
    is_plain = parts.username is None and port != 0 and all("!" <= sign <= "~" for sign in str(url))
    if not is_plain or not (_HOST.fullmatch(host) or _is_ip(host)):
        raise _unusable(
            endpoint.name, "the address needs a valid host, and no user, password or other signs than ASCII."
        )
    if not any(fnmatchcase(host, pattern.lower()) for pattern in endpoint.hosts):
        raise _unusable(endpoint.name, f"the host {host:.100} is not among its hosts.")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    port = port or (443 if parts.scheme == "https" else 80)
    if endpoint.ports and port not in endpoint.ports:
        raise _unusable(endpoint.name, f"the port {port} is not among its ports.")
    return host, port, path, parts.scheme == "https"


def _is_ip(host: str) -> bool:
    try:
        return "%" not in host and bool(ipaddress.ip_address(host))
    except ValueError:
        return False


def _address(endpoint: Endpoint, url: str) -> str:
    """Return the address to call: that of the endpoint or, if it has none, the named one."""
    if endpoint.url and url not in ("", endpoint.url):
        raise _unusable(endpoint.name, "has a `url`, and takes no other: name an endpoint with `hosts` only.")
    if not (url or endpoint.url):
        raise _unusable(endpoint.name, "has no `url`: pass the address to `send` as url=…; a callback cannot.")
    return url or endpoint.url


def send(endpoint: str, event: str, data: Any, *, url: str = "") -> Any:
    """Enqueue a delivery in the caller's transaction; return its result. Raises ``InvalidTaskData``."""
    found = endpoint_of(endpoint)
    name: object = event  # whatever an untyped caller passed
    if not isinstance(name, str) or not _EVENT.fullmatch(name):
        raise InvalidTaskData("event", f"{event!r:.60} is no name of an event such as 'order.paid'.")
    _target(found, _address(found, url))
    return deliver.enqueue(endpoint, event, data, url) if url else deliver.enqueue(endpoint, event, data)


@task(takes_context=True, encrypted=None, max_retries=12, retry_delay=RETRY_DELAY, timeout=60)
def deliver(context: Any, endpoint: str, event: str, data: Any, url: str = "") -> dict[str, Any]:
    """Deliver a webhook; retry for up to half a day, unless the receiver says that it is gone (410)."""
    found = endpoint_of(endpoint)
    host, port, path, is_tls = _target(found, _address(found, url))
    body = json.dumps({"type": event, "timestamp": timezone.now().isoformat(), "data": data}, separators=(",", ":"))
    headers = signed(str(context.task_result.id), int(time()), body.encode(), found.secrets)
    began = time()
    connection = _Connection(host, port, is_tls=is_tls, private=found.private)
    try:
        connection.request("POST", path, body.encode(), headers | _FIXED_HEADERS)
        answer = connection.getresponse()
        status, retry_after = answer.status, answer.headers.get("Retry-After", "")
    except (OSError, http.client.HTTPException) as error:
        raise DeliveryFailed(f"{host} was not reached: {type(error).__name__}: {error}") from None
    finally:
        connection.close()
    if status // 100 == _SUCCESS:
        return {"status": status, "seconds": round(time() - began, 3)}
    if status == http.client.GONE:
        raise Discard(f"{host} answered 410: it wants no more webhooks.")
    if status // 100 == _REDIRECT:
        raise DeliveryFailed(f"{host} answered {status}; redirects are not followed: configure the final address.")
    why = f"{host} answered {status}."
    if (asked := _seconds(retry_after)) is not None:  # sooner than usual would use up the retries
        usual = RETRY_DELAY * 2.0 ** (context.attempt - 1)
        raise Retry(why, after=max(min(asked, MAX_RETRY_AFTER), usual))
    raise DeliveryFailed(why)


def _seconds(retry_after: str) -> float | None:
    """Return the value of a ``Retry-After`` header, a number of seconds or a date; ``None`` for others."""
    if retry_after.isascii() and retry_after.isdigit():
        return float(retry_after)
    try:
        return parsedate_to_datetime(retry_after).timestamp() - time()
    except (ValueError, OverflowError):
        return None


def signed(message_id: str, timestamp: int, body: bytes, secrets: Sequence[bytes]) -> dict[str, str]:
    """Return the headers of a request: one signature for each secret."""
    text = f"{message_id}.{timestamp}.".encode(errors="replace") + body
    signatures = (b64encode(hmac.digest(secret, text, "sha256")).decode() for secret in secrets)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }


def verify(headers: Mapping[str, str], body: bytes, secrets: Sequence[str], *, now: float | None = None) -> bool:
    """Return whether a received request has a valid and recent signature of one of the secrets (``whsec_…``).

    Remember ``webhook-id``: a delivery whose answer was lost comes again with the same one. Raises ``InvalidTaskData``
    for a secret that is none, such as an empty one, with which everybody could sign.
    """
    known = list(_secrets("verify()", secrets))
    message_id, moment = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if (
        not (moment.isascii() and moment.isdigit() and len(moment) <= _DIGITS)
        or abs((time() if now is None else now) - int(moment)) > TOLERANCE
    ):
        return False
    wanted = signed(message_id, int(moment), body, known)["webhook-signature"].split(" ")
    given = headers.get("webhook-signature", "").split(" ")
    return any(hmac.compare_digest(one.encode(), other.encode(errors="replace")) for one in wanted for other in given)


class _Connection(http.client.HTTPConnection):
    """A connection to an address that was checked, for a host whose name is in the request and in the certificate."""

    def __init__(self, host: str, port: int, *, is_tls: bool, private: bool) -> None:
        super().__init__(host, port, timeout=TIMEOUT_SECONDS)
        self._is_tls, self._private = is_tls, private

    def connect(self) -> None:
        """Connect to the first address that answers; raise ``Discard`` if one of them is not allowed."""
        found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
        if not self._private and not all(map(is_public, addresses)):
            raise Discard(f"{self.host} has an address that is not public; `private` of the endpoint would allow it.")
        self.sock = _connected(addresses[:MAX_ADDRESSES], self.port, self.timeout)
        if self._is_tls:
            self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=self.host)


def _connected(addresses: Sequence[str], port: int, timeout: float | None) -> socket.socket:
    """Return a connection to one of the addresses; a host may have one of IPv6 where only IPv4 works."""
    for address in addresses[:-1]:
        with suppress(OSError):
            return socket.create_connection((address, port), timeout)
    return socket.create_connection((addresses[-1], port), timeout)


def is_public(address: str) -> bool:
    """Return whether an IP address is one of the internet, and leads to no other."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return is_public(str(found.ipv4_mapped))
        if found not in _GLOBAL_UNICAST:
            return False
    if any(found in network for network in _SPECIAL):
        return False
    return found.is_global and not found.is_multicast
