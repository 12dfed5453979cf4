"""The index behind Sentinel and in a Cluster: real servers, and the primary killed while work is under way."""

import threading
import uuid
from collections import Counter
from contextlib import suppress

import pytest
from django.db import connections
from django_redis.pool import ConnectionFactory, SentinelConnectionFactory

from queue_app.core.states import Status
from queue_app.exceptions import IndexNotReady, IndexUnavailable, UnknownProfile
from queue_app.index import Profile, get_index
from queue_app.models import Task
from queue_app.services.enqueue.store import enqueue
from queue_app.services.lifecycle.claim import claim
from queue_app.services.lifecycle.finish import finish
from queue_app.services.repair.rebuild import rebuild
from queue_app.workers.scheduler import Scheduler
from tests.integration.processes import index_comes_to_agree
from tests.servers.conftest import client
from tests.support.engine import done, new
from tests.support.waiting import until

pytestmark = [pytest.mark.servers, pytest.mark.usefixtures("transactional_db"), pytest.mark.timeout(300)]
ENDS = 400  # tasks that are worked off before, and again after, the primary is killed


@pytest.fixture
def use(settings):
    """Let the queue use this cache, under an alias of its own so that no other connection is met."""

    def use(options, location, **more):
        alias = f"servers-{uuid.uuid4().hex[:8]}"
        common = {"SOCKET_TIMEOUT": 3, "SOCKET_CONNECT_TIMEOUT": 3}
        cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location, "OPTIONS": common | options, **more}
        settings.CACHES = {**settings.CACHES, alias: cache}
        settings.TASKQUEUE = {**settings.TASKQUEUE, "REDIS_ALIAS": alias}

    yield use
    ConnectionFactory._pools.clear()
    SentinelConnectionFactory._pools.clear()


class Load:
    """One thread enqueues, one works, one is the scheduler."""

    def __init__(self):
        self.stored, self.ended = [], Counter()
        self.errors = []
        self.over, self.enough = threading.Event(), threading.Event()
        self.threads = [
            threading.Thread(target=self._guarded, args=(run,)) for run in (self._put, self._work, self._lead)
        ]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.enough.set()
        self.over.set()
        self._join()

    def _join(self):
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()

    def _guarded(self, run):
        try:
            run()
        except BaseException as error:
            self.errors.append(error)
            raise
        finally:
            connections.close_all()

    def _put(self):
        while not self.enough.wait(0.002):
            self.stored.append(enqueue(new()).id)

    def _work(self):
        worker, profile = uuid.uuid4(), Profile.of([], ["a"], [])
        while not self.over.is_set():
            try:
                tasks = claim(profile, worker, 20)
            except UnknownProfile:
                with suppress(IndexUnavailable):
                    get_index().register(profile, worker)
                continue
            except (IndexNotReady, IndexUnavailable):
                tasks = []
            self.ended.update(task.id for task in tasks if task.id in finish([done(task)]))
            if not tasks:
                self.over.wait(0.01)

    def _lead(self):
        scheduler = Scheduler()
        while not self.over.wait(0.05):
            scheduler.run_once()

    def survives(self, disaster):
        """Work, let the disaster happen, work on, and come to an end with every task done once."""
        until(lambda: len(self.ended) >= ENDS, "tasks end")
        disaster()
        before = len(self.ended)
        until(lambda: len(self.ended) >= before + ENDS, "tasks end again", 120)
        self.enough.set()
        self.threads[0].join(60)
        pending = Task.objects.filter(status__in=[Status.QUEUED, Status.EXECUTING, Status.SCHEDULED])
        until(lambda: not pending.exists(), "everything ends", 120)
        self.over.set()
        self._join()  # the last rows end before the worker thread counts them
        assert self.errors == []
        assert set(self.stored) == set(self.ended)
        assert set(self.ended.values()) == {1}
        assert Task.objects.filter(status=Status.COMPLETED).count() == len(self.stored)


def test_a_failover_by_sentinel_loses_nothing(servers, use):
    primary = servers.start()
    replica = servers.start(config=f"replicaof 127.0.0.1 {primary}")
    watch = (
        f"sentinel monitor queue 127.0.0.1 {primary} 2\nsentinel down-after-milliseconds queue 1000\n"
        "sentinel failover-timeout queue 5000"
    )
    sentinels = [servers.start("--sentinel", config=watch) for _ in range(3)]
    until(
        lambda: all(
            (seen := client(port).sentinel_master("queue"))["num-other-sentinels"] == 2 and seen["num-slaves"] == 1
            for port in sentinels
        ),
        "the sentinels know each other and the replica",
    )
    use(
        {
            "CLIENT_CLASS": "django_redis.client.SentinelClient",
            "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
            "CONNECTION_POOL_CLASS": "redis.sentinel.SentinelConnectionPool",
            "SENTINELS": [("127.0.0.1", port) for port in sentinels],
            "SENTINEL_KWARGS": {"socket_timeout": 3},
        },
        "redis://queue/0",
    )
    rebuild()

    def disaster():
        servers.kill(primary)
        until(lambda: client(replica).info("replication")["role"] == "master", "the replica takes over")

    with Load() as load:
        load.survives(disaster)
    index_comes_to_agree()


def test_a_cluster_keeps_the_index_on_one_node_and_moves_it(servers, use):
    nodes = [servers.start(config="cluster-enabled yes\ncluster-node-timeout 2000") for _ in range(4)]
    for other in nodes[1:]:
        client(nodes[0]).cluster("meet", "127.0.0.1", str(other))
    for number, node in enumerate(nodes[:3]):
        first, last = number * 16_384 // 3, (number + 1) * 16_384 // 3 - 1
        client(node).execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
    use(
        {
            "CONNECTION_POOL_CLASS": "queue_app.index.cluster.SlotConnectionPool",
            "CONNECTION_POOL_KWARGS": {"nodes": [("127.0.0.1", node) for node in nodes[:3]]},
        },
        f"redis://127.0.0.1:{nodes[0]}",
    )
    for node in nodes:
        until(lambda node=node: _state(node) == "ok", "a cluster")
        until(lambda node=node: len(client(node).cluster("nodes")) == len(nodes), "all nodes know each other")
    rebuild()
    holders = [node for node in nodes[:3] if client(node).dbsize()]
    assert len(holders) == 1
    holder = holders[0]
    spare = nodes[3]
    name = client(holder).execute_command("CLUSTER", "MYID")
    until(lambda: _replicate(spare, name), "the spare node follows")
    until(lambda: client(spare).info("replication").get("master_link_status") == "up", "it has caught up")

    def disaster():
        servers.kill(holder)
        until(lambda: client(spare).info("replication")["role"] == "master", "the replica takes over")

    with Load() as load:
        load.survives(disaster)
    assert client(spare).dbsize()
    index_comes_to_agree()


def _state(node):
    found = client(node).cluster("info")
    return found["cluster_state"] if isinstance(found, dict) else found.partition("cluster_state:")[2][:2]


def _replicate(spare, name):
    with suppress(Exception):
        return client(spare).execute_command("CLUSTER", "REPLICATE", name)
    return False
