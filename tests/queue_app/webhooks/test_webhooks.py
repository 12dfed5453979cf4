"""Webhooks: signed, delivered as tasks, and never to an address that the endpoint does not allow."""

import ipaddress
import json
import socket
import threading
from base64 import b64decode, b64encode
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import time

import pytest
from django.tasks import task_backends

from queue_app import conf, registry, task, webhooks
from queue_app.checks import check_callbacks
from queue_app.core.records import NewTask
from queue_app.core.states import Status
from queue_app.exceptions import InvalidTaskData
from queue_app.services.enqueue.store import submit
from queue_app.testing import drain, freeze
from queue_app.webhooks import deliver, endpoint_of, is_public, send, signed, verify
from queue_app.webhooks.checks import check_endpoints

OLD, NEW = ("whsec_" + b64encode(letter * 32).decode() for letter in (b"a", b"b"))


class Receiver(BaseHTTPRequestHandler):
    """Answers as the test says, and keeps what it received."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append((dict(self.headers.items()), body, self.path))
        status, headers = self.server.answers.pop(0) if self.server.answers else (204, {})
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_args):
        """Stay silent."""


@pytest.fixture
def receiver():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    server.received, server.answers = [], []
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def project(settings, testing_backend, receiver):
    use(settings, url=f"http://localhost:{receiver.server_port}/hook?a=1", secrets=[NEW, OLD], private=True)
    yield
    task_backends["default"].clear()


def use(settings, **endpoint) -> None:
    settings.TASKQUEUE = {**settings.TASKQUEUE, "WEBHOOKS": {"crm": endpoint}}


def pay(fails: bool = False) -> None:
    if fails:
        raise ValueError


@pytest.fixture
def paying(known_tasks):
    """``pay`` as a task, for one test: the checks of other tests would find that the endpoint is not theirs."""
    return task(on_success="webhook:crm", on_failure="webhook:crm", max_retries=0)(pay)


def status_of(result) -> Status:
    return Status(result.row.status)


# -- what is sent ------------------------------------------------------------------------------------


def test_a_delivery_is_signed_with_each_secret(receiver):
    result = send("crm", "order.paid", {"order": 7})
    drain()
    ((headers, body, path),) = receiver.received
    assert path == "/hook?a=1"
    assert json.loads(body)["type"] == "order.paid"
    assert json.loads(body)["data"] == {"order": 7}
    assert headers["webhook-id"] == result.id
    assert headers["Host"].startswith("localhost:")
    for secret in (OLD, NEW):
        assert verify(headers, body, [secret])


@pytest.mark.parametrize("change", ["body", "id", "time", "long time", "secret", "late", "none"])
def test_a_changed_or_old_delivery_is_not_verified(receiver, change):
    send("crm", "order.paid", 7)
    drain()
    ((headers, body, _path),) = receiver.received
    moment, secret = float(headers["webhook-timestamp"]), NEW
    match change:
        case "body":
            body += b" "
        case "id":
            headers["webhook-id"] += "1"
        case "time":
            headers["webhook-timestamp"] = str(int(moment) + 1)
        case "long time":  # longer than the integers that Python reads
            headers["webhook-timestamp"] = "1" * 5000
        case "secret":
            secret = "whsec_" + b64encode(b"c" * 32).decode()
        case "late":
            moment += 301
        case "none":
            headers = {}
    assert not verify(headers, body, [secret], now=moment)
    assert not verify(headers, body, [secret], now=0.0), "the epoch is a time like others"


@pytest.mark.parametrize(
    "odd", [{"id": "1\udcff"}, {"signature": "v1,\ud800 v1,"}, {"timestamp": "-1"}, {"timestamp": "\u0661"}]
)
def test_headers_that_are_no_text_verify_nothing(odd):
    """Some servers keep the bytes of a header that is not UTF-8 as surrogates."""
    headers = signed("1", int(time()), b"{}", [b64decode(NEW.removeprefix("whsec_"))])
    assert verify(headers, b"{}", [NEW])
    assert not verify(headers | {f"webhook-{name}": text for name, text in odd.items()}, b"{}", [NEW])


@pytest.mark.parametrize("secrets", [[""], ["whsec_"], [], NEW, ["whsec_YQ=="]])
def test_nothing_is_verified_by_a_secret_that_is_none(secrets):
    """For example because the variable of the environment that should have it is empty."""
    forged = signed("id", int(time()), b"{}", [b""])
    with pytest.raises(InvalidTaskData, match="secret"):
        verify(forged, b"{}", secrets)


def test_a_webhook_as_callback_tells_the_end(receiver, paying):
    done, failed = paying.enqueue(), paying.enqueue(fails=True)
    drain()
    told = [json.loads(body) for _, body, _ in receiver.received]
    assert {(each["type"], each["data"]["task_id"]) for each in told} == {
        ("task.completed", done.id),
        ("task.dead_letter", failed.id),
    }


def test_a_retry_has_the_same_id(receiver):
    receiver.answers = [(500, {}), (503, {"Retry-After": "70"}), (204, {})]
    with freeze() as clock:
        result = send("crm", "order.paid", 7)
        began = clock.now
        drain(to_the_end=True)
        assert (clock.now - began).total_seconds() == 10 + 70
    assert {headers["webhook-id"] for headers, _, _ in receiver.received} == {result.id}
    assert status_of(result) is Status.COMPLETED


def test_a_receiver_that_asks_for_a_retry_at_once_does_not_use_up_the_retries(receiver):
    receiver.answers = [(429, {"Retry-After": "0"})] * 13
    with freeze() as clock:
        result = send("crm", "order.paid", 7)
        began = clock.now
        drain(to_the_end=True)
        assert (clock.now - began).total_seconds() > 10 * 3600
    assert status_of(result) is Status.DEAD_LETTER


@pytest.mark.parametrize("event", ["", "a b", "a\nb", "x" * 101, 5, None])
def test_an_event_has_a_name(event):
    with pytest.raises(InvalidTaskData, match="no name of an event"):
        send("crm", event, 7)


def test_gone_ends_the_delivery(receiver):
    receiver.answers = [(410, {})]
    result = send("crm", "order.paid", 7)
    drain(to_the_end=True)
    assert (status_of(result), len(receiver.received)) == (Status.FAILED, 1)


def test_a_redirect_is_not_followed(receiver):
    receiver.answers = [(302, {"Location": f"http://localhost:{receiver.server_port}/elsewhere"})]
    result = send("crm", "order.paid", 7)
    drain()
    assert len(receiver.received) == 1
    result.refresh()
    assert "redirects are not followed" in result.errors[0].traceback


# -- where it may go ---------------------------------------------------------------------------------


def resolve(monkeypatch, *answers: list[str]) -> None:
    """Let the names resolve to these addresses, one list a look-up."""
    left = list(answers)

    def getaddrinfo(_host, port, *_args, **_options):
        addresses = left.pop(0) if len(left) > 1 else left[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["10.0.0.8"], ["169.254.169.254"], ["93.184.216.34", "10.0.0.8"]])
def test_a_private_address_is_refused_and_not_retried(settings, monkeypatch, receiver, addresses):
    use(settings, url="https://crm.example.com/hook", secrets=[NEW])
    resolve(monkeypatch, addresses)
    result = send("crm", "order.paid", 7)
    drain(to_the_end=True)
    assert status_of(result) is Status.FAILED
    assert not receiver.received


@pytest.mark.parametrize(
    ("found", "called"),
    [
        ([["93.184.216.34"], ["127.0.0.1"]], ["93.184.216.34"]),  # the name changes after the check
        ([["2606:2800:220:1::1", "93.184.216.34"]], ["2606:2800:220:1::1", "93.184.216.34"]),
    ],
)
def test_the_checked_addresses_are_called_until_one_answers(settings, monkeypatch, found, called):
    use(settings, url="https://crm.example.com/hook", secrets=[NEW])
    resolve(monkeypatch, *found)
    tried = []

    def connect(address, *_args, **_options):
        tried.append(address)
        raise OSError("nobody there")

    monkeypatch.setattr(socket, "create_connection", connect)
    send("crm", "order.paid", 7)
    drain()
    assert tried == [(each, 443) for each in called]


def test_a_receiver_may_name_the_time_of_the_next_try_as_a_date():
    soon = format_datetime(datetime.now(UTC) + timedelta(minutes=5), usegmt=True)
    expected = {"70": 70, "": None, "soon": None, "1.5": None, "-3": None}
    in_300, past, *others = map(webhooks._seconds, (soon, "Mon, 01 Jan 2001 00:00:00 GMT", *expected))
    assert 290 < in_300 <= 300
    assert past < 0
    assert others == [*expected.values()]


#: IANA's registries of special-purpose addresses, IPv4 and IPv6, and multicast.
SPECIAL = """
    0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.0.0/29 192.0.0.8/32
    192.0.0.9/32 192.0.0.10/32 192.0.0.170/32 192.0.0.171/32 192.0.2.0/24 192.31.196.0/24 192.52.193.0/24 192.88.99.0/24
    192.168.0.0/16 192.175.48.0/24 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4
    255.255.255.255/32
    ::1/128 ::/128 ::ffff:0:0/96 64:ff9b::/96 64:ff9b:1::/48 100::/64 100:0:0:1::/64 2001::/23 2001::/32 2001:1::1/128
    2001:1::2/128 2001:1::3/128 2001:2::/48 2001:3::/32 2001:4:112::/48 2001:10::/28 2001:20::/28 2001:30::/28
    2001:db8::/32 2002::/16 2620:4f:8000::/48 3fff::/20 5f00::/16 fc00::/7 fe80::/10 ff00::/8
"""
#: Obsolete, and addresses that lead to one of IPv4 by what they contain.
DISGUISED = ["::127.0.0.1", "::ffff:10.0.0.1", "::ffff:0:127.0.0.1", "64:ff9b::a00:1", "fec0::1", "fe80::1%eth0"]


def test_no_special_address_is_public():
    ends = [str(end) for block in map(ipaddress.ip_network, SPECIAL.split()) for end in (block[0], block[-1])]
    # The first registry maps public addresses of IPv4 to addresses of IPv6 that are as public.
    mapped = ["::ffff:255.255.255.255"]
    assert [each for each in (*ends, *DISGUISED, *mapped) if is_public(each)] == []
    assert all(map(is_public, ["93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946", "::ffff:93.184.216.34"]))


@pytest.mark.parametrize(
    "url",
    [
        "http://crm.example.com/", "https://other.example.org/", "https://user:secret@crm.example.com/", "file:///etc",
        "https://a b.example.com/", "https://x\\.example.com/", "https://.example.com/", "https://crm.example.com:0/",
        "https://a..example.com/", 5, "https:///x", "https://crm.example.com:x/",
        "https://./", "https://:/", f"https://{'a' * 64}.example.com/", f"https://{'a.' * 130}example.com/",
        "https://crm.example.com/\r\nX: y", "https://[::1", "gopher://x",
    ],
)  # fmt: skip
def test_an_address_of_the_caller_must_be_one_of_the_endpoints_hosts(settings, url):
    use(settings, hosts=["*.example.com"], secrets=[NEW])
    with pytest.raises(InvalidTaskData) as refused:
        send("crm", "order.paid", 7, url=url)
    assert "secret@" not in str(refused.value)
    assert send("crm", "order.paid", 7, url="https://crm.example.com/hook")


@pytest.mark.parametrize(
    "endpoint",
    [
        {"url": "https://a.example/"}, {"url": "https://a.example/", "secrets": ["plain"]},
        {"url": "https://a.example/", "secrets": ["whsec_c2hvcnQ="]}, {"url": "http://a.example/", "secrets": [NEW]},
        {"url": "https://a.example/", "secrets": [NEW], "host": ["x"]}, {"url": "https://a.example/", "secrets": NEW},
        {"hosts": "*.example.com", "secrets": [NEW]}, {"hosts": [5], "secrets": [NEW]}, {"url": 5, "secrets": [NEW]},
        {"url": "https://a.example/", "secrets": [NEW], "private": "no"}, {"secrets": [NEW]},
        {"hosts": ["*"], "secrets": [NEW], "private": True}, {"hosts": ["*"], "secrets": [NEW], "ports": [True]},
        {"url": "https://a.example/", "secrets": [NEW], "ports": [8443]}, {"url": "https://./", "secrets": [NEW]},
    ],
)  # fmt: skip
def test_an_unusable_endpoint_is_reported_without_its_secrets(settings, endpoint):
    use(settings, **endpoint)
    found = [problem.msg for problem in check_endpoints()]
    assert found
    assert not any(str(secret) in text for secret in endpoint.get("secrets", ()) for text in found if len(secret) > 1)


def test_an_endpoint_with_an_address_takes_no_other(settings):
    use(settings, url="https://crm.example.com/hook", hosts=["*.example.com"], secrets=[NEW])
    with pytest.raises(InvalidTaskData, match="takes no other"):
        send("crm", "order.paid", 7, url="https://other.example.com/")
    assert send("crm", "order.paid", 7, url="https://crm.example.com/hook")


def test_private_addresses_that_code_names_are_of_the_named_ports(settings):
    use(settings, hosts=["10.0.0.8"], secrets=[NEW], private=True, ports=[8443])
    with pytest.raises(InvalidTaskData, match="port 6379 is not among its ports"):
        send("crm", "order.paid", 7, url="http://10.0.0.8:6379/")
    assert send("crm", "order.paid", 7, url="http://10.0.0.8:8443/")


def test_hosts_as_a_text_allow_no_address(settings):
    """Each of its letters would be a pattern, and ``*`` is among them."""
    use(settings, hosts="*.example.com", secrets=[NEW])
    with pytest.raises(InvalidTaskData, match="list of texts"):
        send("crm", "order.paid", 7, url="https://other.example.org/")


def test_an_endpoint_without_an_address_asks_for_one(settings):
    use(settings, hosts=["*.example.com"], secrets=[NEW])
    with pytest.raises(InvalidTaskData, match="pass the address"):
        send("crm", "order.paid", 7)


def test_a_callback_needs_an_endpoint_with_an_address(settings, paying):
    use(settings, hosts=["*.example.com"], secrets=[NEW])
    found = [problem.msg for problem in check_callbacks()]
    why = "TASKQUEUE WEBHOOKS crm has no `url`, which a callback needs."
    assert found == [f"{option} of {registry.type_of(paying)}: {why}" for option in ("on_failure", "on_success")]


def test_callers_of_the_api_cannot_send_webhooks(settings):
    use(settings, url="https://crm.example.com/hook", secrets=[NEW])
    parameters = {"endpoint": "crm", "event": "order.paid", "data": 7}
    with pytest.raises(InvalidTaskData, match="which only code enqueues"):
        submit(NewTask(task_type="queue_app.webhooks.deliver", parameters=parameters))


def test_an_unknown_endpoint_is_answered_with_the_one_that_was_meant():
    with pytest.raises(InvalidTaskData, match="Did you mean 'crm'"):
        send("crn", "order.paid", 7)
    assert endpoint_of("crm").private
    assert deliver.max_retries == 12
    assert webhooks.TOLERANCE == 300
    assert conf.get().webhooks
