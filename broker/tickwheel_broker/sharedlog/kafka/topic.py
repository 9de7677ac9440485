"""What is asked of Kafka itself: the topic that holds the shared logs of a cluster, a partition each, and its group."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

import trio
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from tickwheel_broker.sharedlog.kafka.client import Options, error_of, refuse_bad_options, settings, text_of
from tickwheel_broker.sharedlog.shared_log import SharedLogUnavailable
from timerlog.replication.record import MAX_BODY_BYTES

T = TypeVar("T")

_TIMEOUT_S: Final = 30.0
_CONNECT_S: Final = 5.0
MESSAGE_BYTES: Final = MAX_BODY_BYTES + 4_096
"""What Kafka must take at a time, at least: the largest record, and what Kafka has around it."""

_STEP_S: Final = 0.1
"""So soon a cancelled call ends."""


class TopicDiffers(Exception):
    """There is a topic of this name with settings under which the log would not be safe."""


class TooFewBrokers(Exception):
    """There are not as many of Kafka's machines as copies were asked for."""


@dataclass(frozen=True)
class TopicSettings:
    """Of the topic of a cluster. What a record is, and that it stays until the owner deletes it, is not to choose."""

    partitions: int = 1
    replication_factor: int = 3
    min_insync_replicas: int = 2

    def config(self) -> dict[str, str]:
        """By Kafka's names."""
        return {
            "cleanup.policy": "delete",
            "retention.ms": "-1",
            "retention.bytes": "-1",
            "min.insync.replicas": str(self.min_insync_replicas),
            "unclean.leader.election.enable": "false",
            "message.timestamp.type": "CreateTime",
        }


class _Waiting:
    """For brokers, in a thread that ends soon when its task is cancelled."""

    def __init__(self, wait_s: float, on_wait: Callable[[str], object]) -> None:
        self._deadline_s = time.monotonic() + wait_s
        self._on_wait, self._said = on_wait, ""

    def goes_on(self, what: str) -> bool:
        """Whether there is time left; then some of it has passed."""
        trio.from_thread.check_cancelled()
        if time.monotonic() > self._deadline_s:
            return False
        if what != self._said:
            self._said = what
            self._on_wait(what)
        time.sleep(_STEP_S)
        return True


async def create_topic(
    servers: str,
    topic: str,
    wanted: TopicSettings,
    options: Options | None = None,
    *,
    wait_s: float = _CONNECT_S,
    on_wait: Callable[[str], object] = lambda what: None,
) -> bool:
    """Return whether it was made: False when it is there with these settings. `wait_s`: so long brokers that have just
    been started may take; `on_wait` hears, in another thread, what is waited for. Raises TopicDiffers, TooFewBrokers,
    SharedLogUnavailable, ConfigError."""
    waiting = _Waiting(wait_s, on_wait)
    return await _with_admin(servers, options, lambda admin: _create(admin, topic, wanted, waiting))


async def find_dangers(servers: str, topic: str, options: Options | None = None) -> list[str]:
    """See `judge_config`. Raises SharedLogUnavailable."""

    def look(admin: AdminClient) -> list[str]:
        found = _described(admin, topic)
        return judge_config(found.config, min(found.copies, default=1))

    return await _with_admin(servers, options, look)


async def delete_records(
    servers: str, topic: str, partition: int, before: int, options: Options | None = None
) -> None:
    """Make a partition begin at an offset. Raises SharedLogUnavailable."""
    place = TopicPartition(topic, partition, before)

    def delete(admin: AdminClient) -> None:
        for future in admin.delete_records([place]).values():
            _result(future)

    await _with_admin(servers, options, delete)


async def find_members(servers: str, group: str, options: Options | None = None) -> dict[str, str]:
    """The members of a consumer group: what the group calls each, and its client's name. Raises
    SharedLogUnavailable."""

    def find(admin: AdminClient) -> dict[str, str]:
        described = _result(admin.describe_consumer_groups([group], request_timeout=_TIMEOUT_S)[group])
        return {one.member_id: one.client_id for one in described.members}

    return await _with_admin(servers, options, find)


async def _with_admin(servers: str, options: Options | None, work: Callable[[AdminClient], T]) -> T:
    def do() -> T:
        with AdminClient(settings(servers, options)) as admin:
            return work(admin)

    try:
        return await trio.to_thread.run_sync(do)
    except KafkaException as error:
        refuse_bad_options(error)
        raise SharedLogUnavailable(text_of(error)) from error


def _result(future: Future[T]) -> T:
    """In a thread that ends soon when its task is cancelled."""
    deadline_s = time.monotonic() + _TIMEOUT_S
    while True:
        trio.from_thread.check_cancelled()
        try:
            return future.result(_STEP_S)
        except NotYet:
            if time.monotonic() > deadline_s:
                raise SharedLogUnavailable(f"Kafka did not answer in {_TIMEOUT_S:g} s") from None


def _create(admin: AdminClient, topic: str, wanted: TopicSettings, waiting: _Waiting) -> bool:
    _wait_for_brokers(admin, wanted.replication_factor, waiting)
    while True:
        new = NewTopic(topic, wanted.partitions, wanted.replication_factor, config=wanted.config())
        try:
            _result(admin.create_topics([new], request_timeout=_TIMEOUT_S)[topic])
        except KafkaException as exception:
            error = error_of(exception)
            if error is not None and error.code() == KafkaError.INVALID_REPLICATION_FACTOR:
                if waiting.goes_on(f"for {wanted.replication_factor} machines of Kafka that take copies"):
                    continue
                raise TooFewBrokers(error.str()) from exception
            if error is None or error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            _compare(admin, topic, wanted)
            return False
        _wait_for_leaders(admin, topic, wanted.partitions)
        return True


def _wait_for_brokers(admin: AdminClient, wanted: int, waiting: _Waiting) -> None:
    """Says sooner than what follows that there is no Kafka, or too little of it."""
    while True:
        try:
            found = len(admin.list_topics(timeout=_STEP_S * 10).brokers)
        except KafkaException:
            if not waiting.goes_on("for Kafka, which does not answer"):
                raise
        else:
            if found >= wanted or not waiting.goes_on(f"for Kafka: {found} of {wanted} machines are there"):
                return


def _wait_for_leaders(admin: AdminClient, topic: str, partitions: int) -> None:
    deadline_s = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline_s:
        trio.from_thread.check_cancelled()
        found = admin.list_topics(topic, timeout=_STEP_S * 10).topics[topic].partitions
        if len(found) == partitions and all(one.leader >= 0 for one in found.values()):
            return
        time.sleep(_STEP_S)
    raise SharedLogUnavailable(f"the partitions of {topic!r} have no leaders")


class _Topic(NamedTuple):
    """One as it is now. `copies`: how many the partitions have."""

    partitions: int
    copies: list[int]
    config: dict[str, str | None]


def _described(admin: AdminClient, topic: str) -> _Topic:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    entries = _result(admin.describe_configs([resource], request_timeout=_TIMEOUT_S)[resource])
    partitions = admin.list_topics(topic, timeout=_TIMEOUT_S).topics[topic].partitions
    copies = sorted({len(one.replicas) for one in partitions.values()})
    return _Topic(len(partitions), copies, {name: entry.value for name, entry in entries.items()})


def _compare(admin: AdminClient, topic: str, wanted: TopicSettings) -> None:
    """Raises TopicDiffers."""
    found = _described(admin, topic)
    pairs = [
        ("partitions", str(found.partitions), str(wanted.partitions)),
        ("replication factor", ", ".join(map(str, found.copies)), str(wanted.replication_factor)),
        *((name, found.config.get(name), value) for name, value in wanted.config().items()),
    ]
    differing = [f"{name} is {is_now}, not {value}" for name, is_now, value in pairs if is_now != value]
    if differing:
        raise TopicDiffers(f"there is a topic {topic!r} with other settings: {'; '.join(differing)}")


def judge_config(config: Mapping[str, str | None], copies: int) -> list[str]:
    """What of a topic's settings endangers the log in it, or keeps it from being written; in words. It may have been
    changed since the topic was made."""
    majority = copies // 2 + 1
    exact = TopicSettings(min_insync_replicas=majority).config()
    del exact["message.timestamp.type"]  # it changes nothing for a log that is kept for ever
    least = {"min.insync.replicas": int(exact.pop("min.insync.replicas")), "max.message.bytes": MESSAGE_BYTES}
    differing = [
        f"{name} is {config.get(name)}, not {value}"
        for name, value in exact.items()
        if config.get(name) != value
    ]
    for name, value in least.items():
        is_now = config.get(name) or "0"
        if int(is_now) < value:
            differing.append(f"{name} is {is_now}, below {value}")
    return differing
