"""One link between two machines is cut, and the cluster goes on while it is: on three real brokers of Kafka."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple, TypeVar

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tests.cluster.test_serving_nodes import tickwheel, wait
from tests.support.cluster.daemons import NodeDaemon
from tests.support.cluster.kafka import needs_kafka
from tests.support.cluster.relay import NUMBERS, RelayedKafka, relayed_kafka
from tickwheel import sync
from tickwheel.errors import TickwheelError
from tickwheel_broker.sharedlog.kafka.topic import TopicSettings

pytestmark = needs_kafka

T = TypeVar("T")


class Place(NamedTuple):
    """``leader`` leads the log's partition, ``coordinator`` the group."""

    leader: int
    coordinator: int


class Cut:
    """A cluster whose links can be cut, and what was sent to it."""

    def __init__(self, kafka: RelayedKafka, nodes: list[NodeDaemon], admin: AdminClient, topic: str) -> None:
        self._kafka, self.nodes, self._admin, self._topic = kafka, nodes, admin, topic
        self.urls = ",".join(one.url for one in nodes)
        self.sent: list[str] = []
        self._keys = (f"key-{number}" for number in itertools.count())

    def place(self) -> Place:
        partition = self._admin.list_topics(self._topic, timeout=10).topics[self._topic].partitions[0]
        group = self._admin.describe_consumer_groups([self._topic])[self._topic].result()
        return Place(partition.leader, group.coordinator.id)

    def owner(self) -> NodeDaemon:
        return wait(
            lambda: next((one for one in self.nodes if one.is_ready()), None), "an owner", self.nodes[0]
        )

    @contextmanager
    def cut(self, one: str, others: list[str]) -> Iterator[None]:
        pairs = self._kafka.links.between(one, others)
        self._kafka.links.cut |= pairs
        try:
            yield
        finally:
            self._kafka.links.cut -= pairs

    def send(self) -> None:
        """Some, until all of them are confirmed."""
        for key in itertools.islice(self._keys, 20):
            wait(lambda key=key: self._has_sent(key), "a confirmed send", self.nodes[0])  # type: ignore[misc]
            self.sent.append(key)

    def _has_sent(self, key: str) -> bool:
        """What is sent twice is stored once."""
        with suppress(TickwheelError), sync.Client(self.urls, timeout=5, connect_timeout=5) as client:
            client.send("t", key.encode(), key=key)
            return True
        return False

    def wait_spare(self) -> None:
        """There is an owner, and one more that may be chosen."""
        self.owner()
        wait(lambda: sum(one.standing()["has_joined"] for one in self.nodes) > 1, "a follower", self.nodes[0])

    def check(self) -> None:
        with sync.Client(self.owner().url, timeout=30) as client:
            rows = client.query("select key from messages where topic = 't'").rows
        assert sorted(row[0] for row in rows) == sorted(self.sent)


def again(do: Callable[[], T]) -> T:
    """Until the brokers have found each other."""
    deadline_s = time.monotonic() + 60
    while True:
        try:
            return do()
        except KafkaException:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.2)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cut]:
    root = tmp_path_factory.mktemp("cut")
    topic = "tickwheel.cut"
    with ExitStack() as stack:
        kafka = stack.enter_context(relayed_kafka(root))
        admin = AdminClient({"bootstrap.servers": kafka.servers})
        found = again(lambda: admin.describe_consumer_groups([topic])[topic].result())
        coordinator = found.coordinator.id
        leader, other = (number for number in NUMBERS if number != coordinator)
        new = NewTopic(
            topic,
            1,
            replica_assignment=[[leader, other, coordinator]],
            config=TopicSettings().config(),
        )
        again(lambda: admin.create_topics([new])[topic].result())
        url = f"kafka://{kafka.servers}/cut"
        made = tickwheel("cluster", "init", url)
        assert made.returncode == 0, made.stderr
        nodes = []
        for number in NUMBERS:
            (root / f"client-{number}").write_text(f"client.id=node-{number}\n")
            nodes.append(
                NodeDaemon(number, url, root / f"node-{number}", kafka_config=str(root / f"client-{number}"))
            )
            stack.callback(nodes[-1].end)
        cluster = Cut(kafka, nodes, admin, topic)
        yield cluster


@pytest.mark.promise("in-a-cluster")
def test_between_the_owner_and_the_leader(cluster: Cut) -> None:
    """It hears the group, which is on another machine."""
    cluster.wait_spare()
    owner, place = cluster.owner(), cluster.place()
    assert place.leader != place.coordinator
    cluster.send()
    with cluster.cut(f"node {owner.number}", [f"broker {place.leader}"]):
        wait(lambda: any(one.is_ready() for one in cluster.nodes if one is not owner), "another owner", owner)
        cluster.send()
        assert not owner.is_ready()
        assert cluster.place() == place
    cluster.check()


@pytest.mark.promise("in-a-cluster")
def test_between_the_leader_and_the_other_brokers(cluster: Cut) -> None:
    """All nodes reach it, and it answers them: it has nothing new."""
    cluster.wait_spare()
    cluster.send()
    place = cluster.place()
    with cluster.cut(f"broker {place.leader}", [f"broker {one}" for one in NUMBERS if one != place.leader]):
        cluster.send()  # which enough of the brokers have
    cluster.check()
