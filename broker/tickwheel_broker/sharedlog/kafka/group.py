"""Who is to own the log, by a consumer group of Kafka: whom the group gives the partition. Nothing is read through it.

It may be wrong or late, and say it to two nodes: the FENCE in the log decides. So a node that loses its contact to the
group stays owner until another one fences, or the group gives the partition to another one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Self

import trio
from confluent_kafka import Consumer, KafkaException, TopicPartition

from tickwheel_broker.logs import get_logger
from tickwheel_broker.sharedlog.kafka.client import END_S, Options, settings, text_of
from tickwheel_broker.sharedlog.kafka.topic import find_members
from tickwheel_broker.sharedlog.shared_log import SharedLogUnavailable

_POLL_S = 0.05
"""So often its thread asks what the group says."""

_log = get_logger("cluster")


class KafkaGroup:
    """`Membership` of one node for one partition. An async context manager: at its end the node leaves at once."""

    def __init__(
        self,
        servers: str,
        topic: str,
        group: str,
        session_timeout_s: float,
        partition: int = 0,
        *,
        node: int = 0,
        is_healthy: Callable[[], bool] = lambda: True,
        options: Options | None = None,
    ) -> None:
        """`session_timeout_s`: so long after its last sign a member is replaced; at least what the brokers allow
        (`group.min.session.timeout.ms`). `is_healthy` is called in another thread: a node that is not healthy for as
        long is replaced as well. `node`: its number, by which the group's members are told apart."""
        self._name = f"{(options or {}).get('client.id', 'tickwheel')}-node-{node}"
        self._namesakes: set[str] = set()
        """The group's members with the number of this node, when they were looked at last."""
        self._topic, self._partition, self._is_healthy = topic, partition, is_healthy
        self._servers, self._group, self._options = servers, group, options
        self._session_timeout_s = session_timeout_s
        milliseconds = int(session_timeout_s * 1_000)
        self._settings = settings(
            servers,
            options,
            client_id=self._name,
            group_id=group,
            partition_assignment_strategy="cooperative-sticky",
            session_timeout_ms=milliseconds,
            heartbeat_interval_ms=max(100, milliseconds // 5),
            max_poll_interval_ms=milliseconds,
            enable_auto_commit=False,
            auto_offset_reset="latest",
        )
        self._changed = threading.Condition()
        # Guarded by it.
        self._is_open = True
        self._is_wanted = False
        """Whether it is to be a member."""
        self._times_left = 0
        """Who left and joined at once is another member: what the group says to the one before is not for it."""
        # The thread's: `_times_left` when its member was made.
        self._member = 0
        # These belong to the loop.
        self._is_assigned = self._has_joined = False
        self._moved = trio.Event()

    async def __aenter__(self) -> Self:
        self._token = trio.lowlevel.current_trio_token()
        self._thread = threading.Thread(target=self._run, name="tickwheel-kafka-group", daemon=True)
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        with self._changed:
            self._is_open = False
            self._changed.notify()
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._thread.join, END_S)

    # -- Membership --

    def joined(self) -> None:
        """See `Membership`."""
        self._has_joined = True
        with self._changed:
            self._is_wanted = True
            self._changed.notify()

    def left(self) -> None:
        """See `Membership`."""
        self._has_joined = False
        with self._changed:
            self._is_wanted = False
            self._times_left += 1
            self._changed.notify()
        self._assign(False)

    async def wait_chosen(self) -> None:
        """See `Membership`."""
        while not self.is_chosen:
            await self._moved.wait()

    async def wait_not_chosen(self) -> None:
        """See `Membership`."""
        while self.is_chosen:
            await self._moved.wait()

    async def has_others(self) -> bool:
        """See `Membership`."""
        with trio.move_on_after(self._session_timeout_s), suppress(SharedLogUnavailable):
            return len(await find_members(self._servers, self._group, self._options)) > 1
        return False

    async def count_twins(self) -> int:
        """How many members with the number of this node were there at the last look and are there now, beside this
        process: a process that was killed is a member until its session has ended. Raises SharedLogUnavailable."""
        members = await find_members(self._servers, self._group, self._options)
        before = self._namesakes
        self._namesakes = {one for one, name in members.items() if name == self._name}
        return max(0, len(before & self._namesakes) - 1)

    @property
    def is_chosen(self) -> bool:
        """Whether this node is to own the log now."""
        return self._is_assigned

    def _assign(self, is_assigned: bool) -> None:
        if is_assigned != self._is_assigned:
            self._is_assigned = is_assigned
            _log.info("the group has chosen this node" if is_assigned else "this node is not chosen any more")
            self._wake()

    def _assigned(self, is_assigned: bool, times_left: int) -> None:
        """What the group says. It may be late."""
        if times_left == self._times_left and self._has_joined:
            self._assign(is_assigned)

    def _wake(self) -> None:
        moved, self._moved = self._moved, trio.Event()
        moved.set()

    # -- in the thread --

    def _tell(self, is_assigned: bool) -> None:
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._assigned, is_assigned, self._member)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: not self._is_open or self._is_wanted)
                if not self._is_open:
                    return
            try:
                self._be_member()
            except KafkaException as error:
                _log.error("this node cannot be chosen", reason=text_of(error))
                with self._changed:
                    self._changed.wait_for(lambda: not self._is_open, 1.0)

    def _be_member(self) -> None:
        """Until it is not wanted any more. A member of its own each time: closing one leaves the group at once."""
        consumer = Consumer(self._settings)
        with self._changed:
            self._member = self._times_left
        try:
            consumer.subscribe(
                [self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
            )
            while self._is_member():
                # librdkafka waits by the time of day: after the clock was set back it would not come back for as long.
                message = consumer.poll(0) if self._is_healthy() else None
                error = message.error() if message is not None else None
                if error is not None:
                    _log.warning("the group of nodes", reason=error.str())
                with self._changed:
                    self._changed.wait_for(lambda: not self._is_member(), _POLL_S)
        finally:
            consumer.close()

    def _is_member(self) -> bool:
        return self._is_open and self._is_wanted and self._member == self._times_left

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        try:
            consumer.incremental_assign(partitions)
            consumer.pause(partitions)
            has = {one.partition for one in consumer.assignment()}
        except KafkaException as error:
            _log.warning("the group of nodes", reason=text_of(error))
        else:
            self._tell(self._partition in has)

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._unassign(consumer, partitions)
        if self._partition in {one.partition for one in partitions}:
            self._tell(False)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Its session has ended. The next assignment says who is chosen; until then nothing changes."""
        self._unassign(consumer, partitions)

    @staticmethod
    def _unassign(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        # It may have been done already while a consumer is being closed. What a callback raises then comes out of
        # `close` as something that is no exception, and cannot be caught.
        with suppress(KafkaException):
            consumer.incremental_unassign(partitions)
