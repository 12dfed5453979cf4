"""Requests that wait for the end of a task or for events."""

from __future__ import annotations

import asyncio
import json
import time
from types import SimpleNamespace
from urllib.parse import urlencode

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.http import QueryDict

from queue_app.api import waiting
from queue_app.api.views import events as view
from queue_app.core.events import EventFilter
from queue_app.exceptions import IndexUnavailable
from queue_app.index import get_index
from queue_app.services.lifecycle.actions import cancel
from queue_app.services.notify import events, subscribe
from tests.support.engine import Side
from tests.support.faults import failing
from tests.support.waiting import until

TASKS = "/api/v1/tasks"
GPU = "taskqueue_project.demo.tasks.needs_gpu"
EVENTS = "/api/v1/events"


@pytest.fixture
def published(transactional_db, alice, stored):
    """A task whose events are published."""
    task = stored()
    get_index().flush()
    return task


def end(task) -> None:
    cancel(task.id)
    get_index().flush()


def read(lines: bytes) -> list[dict]:
    found = []
    for block in lines.decode().split("\n\n"):
        parts = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line and not line.startswith(":"))
        if "data" in parts:
            found.append(parts | {"data": json.loads(parts["data"])})
    return found


@pytest.fixture(autouse=True)
def places(monkeypatch):
    """Count places anew: a request of an earlier test may still wait on a thread of its server."""
    for kind in ("waiters", "streams"):
        monkeypatch.setattr(waiting, kind, waiting.Places())


class TestLongPoll:
    def test_it_ends_when_the_task_does(self, alice, published):
        began = time.monotonic()
        side = Side(lambda: alice.get(f"{TASKS}/{published.id}?wait=60"))
        until(lambda: waiting.waiters.taken == 1, "the request waits")
        end(published)
        assert side.result().data["status"] == "cancelled"
        assert time.monotonic() - began < 30
        until(lambda: not subscribe.hub.busy, "nobody listens, so nobody reads")
        assert waiting.waiters.taken == 0

    def test_it_answers_in_time_and_at_once_when_the_task_has_ended(self, alice, published):
        assert alice.get(f"{TASKS}/{published.id}?wait=1").data["status"] == "queued"
        end(published)
        with failing(subscribe, "wait_for_end"):
            assert alice.get(f"{TASKS}/{published.id}?wait=60").data["status"] == "cancelled"

    def test_it_ends_when_the_workflow_does(self, transactional_db, alice):
        tasks = [{"name": "only", "task_type": GPU, "parameters": {"run_id": 1}}]
        flow = f"/api/v1/workflows/{alice.post('/api/v1/workflows', {'name': 'w', 'tasks': tasks}).data['id']}"
        assert alice.get(f"{flow}?wait=1").data["state"] == "running"
        began = time.monotonic()
        side = Side(lambda: alice.get(f"{flow}?wait=60"))
        until(lambda: waiting.waiters.taken == 1, "the request waits")
        alice.post(f"{flow}/cancel")
        get_index().flush()
        assert side.result().data["state"] == "cancelled"
        assert time.monotonic() - began < 30
        assert waiting.waiters.taken == 0

    def test_a_lost_event_only_delays_it(self, published, override, monkeypatch):
        override(subscribe, CHECK_SECONDS=0.05)
        monkeypatch.setattr(subscribe.events, "read", lambda after, **_: time.sleep(0.01) or ([], after))
        side = Side(lambda: subscribe.wait_for_end(published.id, 30))
        cancel(published.id)
        assert side.result()

    def test_the_number_of_waiting_requests_is_limited(self, alice, stored, settings):
        settings.TASKQUEUE = {**settings.TASKQUEUE, "API": {"MAX_WAITERS": 1}}
        task = stored()
        with waiting.waiters.take(1):
            response = alice.get(f"{TASKS}/{task.id}?wait=60")
        assert (response.data["code"], response.status_code) == ("too_many_waiters", 503)
        assert response.headers["Retry-After"] == "2"

    def test_so_is_that_of_one_caller(self, alice, bob, stored, settings):
        settings.TASKQUEUE = {**settings.TASKQUEUE, "API": {"MAX_OPEN_PER_CALLER": 1}}
        task, other = stored(), stored("bob", status="completed")
        with waiting.waiters.take(9, "alice"):
            response = alice.get(f"{TASKS}/{task.id}?wait=60")
            assert (response.data["code"], response.status_code) == ("too_many_of_caller", 429)
            assert response.headers["Retry-After"] == "2"
            assert bob.get(f"{TASKS}/{other.id}?wait=60").status_code == 200
        assert alice.get(f"{TASKS}/{task.id}?wait=1").status_code == 200
        assert waiting.waiters.taken == 0

    @pytest.mark.parametrize("query", ["wait=61", "wait=-1", "wait=1.5", "wait=", "wait=1&wait=2", "wiat=3"])
    def test_invalid_requests(self, alice, stored, query):
        assert alice.get(f"{TASKS}/{stored().id}?{query}").status_code == 400


class TestPlaces:
    def test_a_place_is_given_back_once(self):
        places = waiting.Places()
        place = places.take(1)
        with pytest.raises(waiting.TooManyWaiters):
            places.take(1)
        place.leave()
        place.leave()
        assert places.taken == 0

    def test_a_dropped_response_gives_its_place_back(self):
        """A client may reset the connection before the server asks the stream for its first part."""
        places = waiting.Places()
        stream = view.stream(EventFilter(), "0-0", None, places.take(1))
        assert places.taken == 1
        del stream
        assert places.taken == 0

    def test_a_request_waits_for_a_connection_until_another_leaves(self, settings):
        settings.TASKQUEUE = {**settings.TASKQUEUE, "API": {"MAX_CONNECTIONS": 1}}
        one = waiting.Database(SimpleNamespace(scope={}))
        side = Side(lambda: waiting.Database(SimpleNamespace(scope={})))
        with one.idle():
            other = side.result()
            assert waiting.databases.taken == 1
            other.leave()
        one.leave()
        one.leave()
        assert waiting.databases.taken == 0

    def test_a_request_takes_the_place_that_it_waited_for_on_the_loop(self):
        scope = {waiting.PLACE: waiting.databases.take(1)}
        request = waiting.Database(SimpleNamespace(scope=scope))
        assert (waiting.databases.taken, scope) == (1, {})
        request.leave()
        assert waiting.databases.taken == 0

    def test_requests_on_a_loop_wait_in_order_without_threads(self):
        """One is cancelled, one gives up; both pass the call on, and none is lost."""
        places, served = waiting.Places(), []

        async def request(name, within=60.0):
            with await places.take_on_loop(1, within):
                served.append(name)

        async def burst():
            first = places.take(1)
            jobs = {name: asyncio.create_task(request(name)) for name in "abcd"}
            hasty = asyncio.create_task(request("hasty", 0.0))
            assert isinstance((await asyncio.gather(hasty, return_exceptions=True))[0], waiting.TooManyWaiters)
            await asyncio.to_thread(first.leave)
            jobs["b"].cancel()
            await asyncio.gather(*jobs.values(), return_exceptions=True)

        asyncio.run(burst())
        assert (served, places.taken, len(places._awaiting)) == (["a", "c", "d"], 0, 0)

    def test_a_cancelled_request_that_was_called_calls_the_next(self):
        places = waiting.Places()

        async def burst():
            first = places.take(1)
            one, other = (asyncio.create_task(places.take_on_loop(1, 60)) for _ in range(2))
            await asyncio.wait([one, other], timeout=0)
            first.leave()  # calls the first of them, which is cancelled before it runs
            one.cancel()
            return await asyncio.wait_for(other, 30)

        asyncio.run(burst()).leave()
        assert places.taken == 0

    def test_a_request_that_waits_too_long_is_refused(self, settings, override):
        override(waiting, CONNECTION_SECONDS=0.01)
        settings.TASKQUEUE = {**settings.TASKQUEUE, "API": {"MAX_CONNECTIONS": 1}}
        with waiting.databases.take(1), pytest.raises(waiting.TooBusy):
            waiting.Database(SimpleNamespace(scope={}))


class TestStream:
    def test_it_needs_asgi(self, alice):
        assert alice.get(EVENTS).data["code"] == "asgi_required"

    def test_filters(self, alice):
        for query, code in (
            ("colour=red", "unknown_parameter"),
            ("event=Exploded", "unknown_event"),
            ("after=yesterday", "invalid_id"),
            ("task=5", "invalid_id"),
        ):
            assert alice.get(f"{EVENTS}?{query}").data["code"] == code
        assert alice.get(EVENTS, **{"Last-Event-ID": "x" * 50}).data["code"] == "invalid_id"

    def test_callers_receive_only_events_of_their_own_tasks(self, alice, staff):
        for client, query, user, names in (
            (alice, {}, "alice", None),
            (alice, {"user": "bob"}, "alice", ()),
            (staff("view_task"), {}, None, None),
            (staff("view_task"), {"user": "bob", "event": "Failed,Completed"}, "bob", ["Failed", "Completed"]),
        ):
            given = QueryDict(urlencode(query))
            request = SimpleNamespace(method="GET", query_params=given, user=client.user, headers={})
            wanted, _ = view.EventView()._wanted(request)
            assert (wanted.user, wanted.names) == (user, names)

    def test_it_sends_stored_and_new_events(self, published, override):
        override(view, HEARTBEAT_SECONDS=0.2)
        place = waiting.streams.take(1)

        async def listen() -> bytes:
            heard = b""
            stream = view.stream(EventFilter(task_id=published.id), "0-0", None, place)
            async for part in stream:
                heard += part
                if b": heartbeat" in heard and b"event: Cancelled" not in heard:
                    await sync_to_async(end, thread_sensitive=True)(published)
                if b"event: Cancelled" in heard:
                    break
            await stream.aclose()
            return heard

        async def in_time() -> bytes:
            return await asyncio.wait_for(listen(), 60)

        heard = async_to_sync(in_time)()
        assert heard.startswith(b"retry: 3000\n\n")
        found = read(heard)
        assert [event["event"] for event in found] == ["Accepted", "Cancelled"]
        assert found[1]["data"]["task_id"] == str(published.id)
        assert waiting.streams.taken == 0
        later = [event for event in events.read(found[0]["id"])[0] if event.task_id == str(published.id)]
        assert [event.name for event in later] == ["Cancelled"], "the id is where to go on"

    def test_the_last_event_of_an_entry_carries_its_id(self, published):
        [event] = [event for event in events.read("0-0")[0] if event.task_id == str(published.id)]
        found = read(view._lines([event, event]))
        assert ["id" in item for item in found] == [False, True]

    def test_a_slow_client_must_reconnect(self):
        async def full() -> object:
            queue: asyncio.Queue = asyncio.Queue(maxsize=3)
            for _ in range(3):
                queue.put_nowait([])
            view._end(queue)
            return queue.get_nowait()

        assert async_to_sync(full)() is None


def test_the_hub_survives_the_loss_of_redis(published, override, monkeypatch):
    override(subscribe, RETRY_SECONDS=0.01)
    plain, tries = events.last_id, []

    def last_id():
        tries.append(1)
        if len(tries) < 3:
            raise IndexUnavailable("gone")
        return plain()

    monkeypatch.setattr(subscribe.events, "last_id", last_id)
    reads, read_plain = [], events.read

    def read_noted(*args, **options):
        reads.append(1)
        return read_plain(*args, **options)

    monkeypatch.setattr(subscribe.events, "read", read_noted)
    heard = []
    with subscribe.hub.listening(lambda _: 1 / 0), subscribe.hub.listening(heard.extend):
        until(lambda: bool(reads), "it reads again")
        end(published)
        until(lambda: any(event.name == "Cancelled" for event in heard), "it hears again")
