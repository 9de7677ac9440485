"""Which machine leads a partition, where a client may be left with one that does no more.

A machine that is cut off from the others, and not from its clients, goes on to answer them: it has nothing new, which
is no error, and it says of itself that it leads. A client of librdkafka that knows no other one stays there. So who has
heard nothing for long asks new clients, one that begins at each machine: who leads now has a higher epoch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from contextlib import ExitStack, suppress
from typing import Final

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec

from tickwheel_broker.sharedlog.kafka.client import Options, settings

_ASK_S: Final = 1.0
"""So long it takes at most: what is cut off does not answer."""

_STEP_S: Final = 0.1

Epochs = dict[str, int]
"""Of the leader, as each server says it that answers."""


class LeaderWatch:
    """Of one reader. Used in its thread."""

    def __init__(
        self, *, servers: str, topic: str, partition: int, options: Options | None, quiet_s: float
    ) -> None:
        """`quiet_s`: so long after the last record it is asked; and again, as long as none comes."""
        self._servers = servers.split(",")
        self._place, self._options, self._quiet_s = TopicPartition(topic, partition), options, quiet_s
        self._heard_s = time.monotonic()
        self._epoch: int | None = None
        """The highest that was heard of."""

    def found(self) -> None:
        """Something came, or reading begins."""
        self._heard_s = time.monotonic()

    def step(self, consumer: Consumer, is_enough: Callable[[], bool]) -> str | None:
        """To be called as long as nothing comes. Returns a server from which a new client finds the leader, where this
        consumer may not have found it."""
        if time.monotonic() - self._heard_s < self._quiet_s:
            return None
        epochs = self._ask({*self._servers, *_brokers(consumer, self._place.topic)}, is_enough)
        self.found()
        return self.judge(epochs)

    def judge(self, epochs: Epochs) -> str | None:
        """See `step`. Where all servers agree the first time, so does the consumer."""
        if not epochs:
            return None
        known = min(epochs.values()) if self._epoch is None else self._epoch
        server, newest = max(epochs.items(), key=lambda found: found[1])
        self._epoch = max(known, newest)
        return server if newest > known else None

    def _ask(self, servers: Iterable[str], is_enough: Callable[[], bool]) -> Epochs:
        deadline_s = time.monotonic() + _ASK_S
        with ExitStack() as opened:
            asked: dict[Future[ListOffsetsResultInfo], str] = {}
            for server in servers:
                with suppress(KafkaException):
                    admin = opened.enter_context(AdminClient(settings(server, self._options)))
                    wanted = {self._place: OffsetSpec.latest()}  # type: ignore[no-untyped-call]
                    asked[admin.list_offsets(wanted, request_timeout=_ASK_S)[self._place]] = server
            left = set(asked)
            while left and time.monotonic() < deadline_s and not is_enough():
                left = wait(left, _STEP_S).not_done
            epochs: Epochs = {}
            for future in asked.keys() - left:
                with suppress(KafkaException):
                    epoch = future.result().leader_epoch
                    if epoch is not None:
                        epochs[asked[future]] = epoch
            return epochs


def _brokers(consumer: Consumer, topic: str) -> list[str]:
    """All that a client knows of: the servers that a cluster's URL names need not be all."""
    with suppress(KafkaException):
        return [f"{one.host}:{one.port}" for one in consumer.list_topics(topic, _STEP_S).brokers.values()]
    return []
