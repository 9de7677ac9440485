"""The shared log as a partition of Apache Kafka, by librdkafka (the package `confluent-kafka`).

Only the modules of this folder know Kafka. librdkafka works in threads of its own; what it says comes
to the event loop through its token, and no call here waits in the loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Self

import trio
from confluent_kafka import KafkaException

from tickwheel_broker.sharedlog.kafka.client import Options, refuse_bad_options, text_of
from tickwheel_broker.sharedlog.kafka.producer import KafkaProducer
from tickwheel_broker.sharedlog.kafka.reader import KafkaReader
from tickwheel_broker.sharedlog.kafka.topic import delete_records
from tickwheel_broker.sharedlog.shared_log import APPEND_TIMEOUT_S, AppendFailed, Read, Stored

_AT_ONCE = 16
"""So many records of a batch are on their way at a time, 14 MB at most. What gathered while Kafka was away may take as
long as it needs, as long as it moves: were it given up as a whole, the next try would be of even more."""


QUIET_S = 2.0


class KafkaLog:
    """One partition. An async context manager: inside, it has threads and connections."""

    def __init__(
        self,
        servers: str,
        topic: str,
        partition: int = 0,
        options: Options | None = None,
        append_timeout_s: float = APPEND_TIMEOUT_S,
        quiet_s: float = QUIET_S,
    ) -> None:
        """`servers`: as in `bootstrap.servers`. `options`: more of librdkafka's settings, for TLS and the like.
        `quiet_s`: after so long without a record it is made sure of which machine leads the partition."""
        self._servers, self._options, self._quiet_s = servers, options, quiet_s
        self._begins_at = servers
        """Where the next producer asks who leads."""
        self._topic, self._partition = topic, partition
        self._append_timeout_s = append_timeout_s
        self._making = trio.Lock()
        self._producer: KafkaProducer | None = None
        self._ending: list[KafkaProducer] = []
        """Producers that were given up and whose threads may not have ended."""

    async def __aenter__(self) -> Self:
        token = trio.lowlevel.current_trio_token()
        self._reader = self._new_reader(token)
        try:
            # What cannot be appended now can be later; and the first append need not wait until it is connected.
            with suppress(AppendFailed):
                await self._ready_producer()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    async def _end(self) -> None:
        self._reader.close()
        if self._producer is not None:
            self._give_up(self._producer)
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._join)

    def _join(self) -> None:
        self._reader.join()
        for producer in self._ending:
            producer.join()

    async def append(self, records: list[bytes]) -> list[int | None]:
        """See `SharedLog`."""
        producer = await self._ready_producer()
        offsets: list[int | None] = []
        try:
            for start in range(0, len(records), _AT_ONCE):
                some = records[start : start + _AT_ONCE]
                answers = producer.send(some)
                offsets += await answers.wait(self._append_timeout_s)
            return offsets
        except BaseException:
            if self._producer is producer:
                self._begins_at = self._servers
            self._give_up(producer)  # what it has not sent yet it shall not send
            raise

    async def _ready_producer(self) -> KafkaProducer:
        async with self._making:
            if self._producer is not None and self._producer.may_sleep:
                self._give_up(self._producer)
            if self._producer is None:
                token = trio.lowlevel.current_trio_token()
                try:
                    make = partial(
                        KafkaProducer,
                        servers=self._begins_at,
                        topic=self._topic,
                        partition=self._partition,
                        options=self._options,
                        timeout_s=self._append_timeout_s,
                        token=token,
                    )
                    self._producer = await trio.to_thread.run_sync(make)
                except KafkaException as error:
                    refuse_bad_options(error)
                    raise AppendFailed(text_of(error)) from error
            return self._producer

    def _give_up(self, producer: KafkaProducer) -> None:
        if self._producer is producer:
            self._producer = None
            self._ending = [one for one in self._ending if not one.has_ended] + [producer]
            producer.give_up()

    async def read(self, offset: int) -> list[Stored]:
        """See `SharedLog`."""
        return await self._reader.read(offset)

    @asynccontextmanager
    async def apart(self) -> AsyncIterator[Read]:
        """See `SharedLog`."""
        reader = self._new_reader(trio.lowlevel.current_trio_token())
        try:
            yield reader.read
        finally:
            reader.close()
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(reader.join)

    def _new_reader(self, token: trio.lowlevel.TrioToken) -> KafkaReader:
        return KafkaReader(
            servers=self._servers,
            topic=self._topic,
            partition=self._partition,
            options=self._options,
            token=token,
            quiet_s=self._quiet_s,
            on_leader=self._found_leader,
        )

    def _found_leader(self, server: str) -> None:
        """The producer may have been left behind, too: what it sends is confirmed by nobody."""
        if self._producer is not None:
            self._give_up(self._producer)
        self._begins_at = server

    async def end(self) -> int:
        """See `SharedLog`."""
        return (await self._reader.bounds())[1]

    async def first(self) -> int:
        """See `SharedLog`."""
        return (await self._reader.bounds())[0]

    async def delete_before(self, offset: int) -> None:
        """See `SharedLog`."""
        await delete_records(self._servers, self._topic, self._partition, offset, self._options)
