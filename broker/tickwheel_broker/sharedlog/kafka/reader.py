"""A consumer of librdkafka that reads one partition on from an offset, in a thread of its own, a little ahead."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import trio
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tickwheel_broker.logs import get_logger
from tickwheel_broker.sharedlog.kafka.client import END_S, LeaderSearch, Options, error_of, settings, text_of
from tickwheel_broker.sharedlog.kafka.leader import LeaderWatch
from tickwheel_broker.sharedlog.shared_log import NoSharedLog, OutOfRange, SharedLogUnavailable, Stored

_log = get_logger("cluster")

_POLL_S = 0.1
"""So long the thread waits for records at a time. They wake it; a question or the end waits so long at most."""

_SERVE_S = 1.0
"""So often the thread looks after a consumer that has nothing to read."""

_AHEAD_BYTES = 16 << 20
"""So much is kept here before it is asked for, and so much in librdkafka."""

_NOT_THERE = (KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART)
_ASK_TIMEOUT_S = 5.0
_ASK_STEP_S = 1.0
_RECORDS = 500

_GONE = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)


class _Question:
    """Something that the thread asks Kafka for the loop."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.bounds: tuple[int, int] | None = None
        self.error: SharedLogUnavailable | None = None
        self.is_cancelled = False


class KafkaReader:
    """`close` ends it, and `join` waits for that."""

    def __init__(
        self,
        *,
        servers: str,
        topic: str,
        partition: int,
        options: Options | None,
        token: trio.lowlevel.TrioToken,
        quiet_s: float,
        on_leader: Callable[[str], object],
    ) -> None:
        """`quiet_s`: after so long without a record it makes sure of the leader. `on_leader` is told in the event loop
        from which server a new client finds it, where an old one may not have."""
        self._watch = LeaderWatch(
            servers=servers, topic=topic, partition=partition, options=options, quiet_s=quiet_s
        )
        self._on_leader = on_leader
        self._search = LeaderSearch(topic)
        self._settings = settings(
            servers,
            options,
            group_id="tickwheel-reader",  # it must have one, and joins none: its partition is assigned by hand
            enable_auto_commit=False,
            auto_offset_reset="error",
            isolation_level="read_uncommitted",
            check_crcs=True,
            fetch_wait_max_ms=100,  # a change of the offset waits for the fetch before it
            fetch_error_backoff_ms=50,
            fetch_queue_backoff_ms=10,
            queued_max_messages_kbytes=_AHEAD_BYTES >> 10,
            socket_timeout_ms=5_000,
        ) | {"error_cb": self._search.lost}
        self._topic, self._partition, self._token = topic, partition, token
        self._changed = threading.Condition()
        # What follows is guarded by it.
        self._is_open = True
        self._start: int | None = None
        """Where reading began."""
        self._starts = 0
        """How often it began."""
        self._next = 0
        """The offset that the caller has not got yet."""
        self._unread: deque[Stored] = deque()
        self._unread_bytes = 0
        self._error: Exception | None = None
        self._questions: deque[_Question] = deque()
        # And this belongs to the loop.
        self._grown = trio.Event()
        self._is_reading = False
        self._thread = threading.Thread(target=self._run, name="tickwheel-kafka-read", daemon=True)
        self._thread.start()

    # -- in the event loop --

    async def read(self, offset: int) -> list[Stored]:
        """See `SharedLog`."""
        if self._is_reading:
            raise trio.BusyResourceError("another task reads the shared log")
        self._is_reading = True
        try:
            await trio.lowlevel.checkpoint()
            while True:
                if found := self._take(offset):
                    return found
                await self._grown.wait()
        finally:
            self._is_reading = False

    def _take(self, offset: int) -> list[Stored]:
        with self._changed:
            if self._start is None or offset != self._next:
                self._begin(offset)
            elif self._unread:
                found = list(self._unread)
                self._forget_unread()
                self._next = found[-1].offset + 1
                return found
            elif self._error is not None:
                error, self._error = self._error, None
                if isinstance(error, OutOfRange):
                    self._start = None
                self._changed.notify()
                raise error
            return []

    def _begin(self, offset: int) -> None:
        self._start = self._next = offset
        self._starts += 1
        self._error = None
        self._forget_unread()

    def _forget_unread(self) -> None:
        self._unread.clear()
        self._unread_bytes = 0
        self._changed.notify()

    async def bounds(self) -> tuple[int, int]:
        """The first offset, and that behind the last. Raises SharedLogUnavailable."""
        question = _Question()
        with self._changed:
            self._questions.append(question)
            self._changed.notify()
        try:
            await question.done.wait()
        finally:
            question.is_cancelled = True
        if question.bounds is None:
            raise question.error or SharedLogUnavailable("it is being closed")
        return question.bounds

    def close(self) -> None:
        with self._changed:
            self._is_open = False
            self._changed.notify()

    def join(self) -> None:
        """Blocks; not in the event loop."""
        self._thread.join(END_S)

    def _wake(self) -> None:
        grown, self._grown = self._grown, trio.Event()
        grown.set()

    # -- in the thread --

    def _soon(self, call: Callable[[], object], idempotent: bool = False) -> None:
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(call, idempotent=idempotent)

    def _run(self) -> None:
        begins_at: dict[str, str] = {}
        while True:
            try:
                consumer = Consumer(self._settings | begins_at)
            except KafkaException as error:
                self._fail(SharedLogUnavailable(text_of(error)))
                return
            try:
                server = self._work(consumer)
            finally:
                consumer.close()
            if server is None:
                return
            _log.warning("the leader of the shared log was asked for anew", found_at=server)
            self._soon(partial(self._on_leader, server))
            begins_at = {"bootstrap.servers": server}

    def _fail(self, error: SharedLogUnavailable) -> None:
        """There is no consumer: whoever asks is told so, until the end."""
        while True:
            with self._changed:
                if not self._is_open:
                    return
                self._error = error
                questions = list(self._questions)
                self._questions.clear()
                self._soon(self._wake, idempotent=True)
                for question in questions:
                    question.error = error
                    self._soon(question.done.set)
                self._changed.wait()

    def _work(self, consumer: Consumer) -> str | None:
        """Until the end, or until another consumer is to begin at the server that is returned."""
        starts = 0  # of those that the consumer knows
        while True:
            with self._changed:
                has_work = self._changed.wait_for(self._has_work, _SERVE_S)
                if not self._is_open:
                    return None
                question = self._questions.popleft() if self._questions else None
                start, wanted = self._start, self._starts
                position = self._unread[-1].offset + 1 if self._unread else self._next
            if not has_work:
                if not starts:
                    consumer.poll(0)  # takes what it has to log
                continue
            if question is not None:
                self._answer(consumer, question)
                continue
            assert start is not None
            try:
                if starts != wanted:
                    consumer.assign([TopicPartition(self._topic, self._partition, position)])
                    starts = wanted
                    self._watch.found()
                found, error = self._poll(consumer, position)
            except KafkaException as exception:
                found, error = [], SharedLogUnavailable(text_of(exception))
            if error is not None:
                starts = 0  # it goes on at the right place whatever the consumer makes of the error
            if found or error is not None:
                self._keep(found, error, wanted)
            if found:
                self._watch.found()
            elif (server := self._watch.step(consumer, lambda: not self._is_open)) is not None:
                return server

    def _has_work(self) -> bool:
        if not self._is_open or self._questions:
            return True
        return self._start is not None and self._error is None and self._unread_bytes < _AHEAD_BYTES

    def _keep(self, found: list[Stored], error: Exception | None, starts: int) -> None:
        with self._changed:
            if starts != self._starts:
                return  # reading began elsewhere meanwhile
            self._unread.extend(found)
            self._unread_bytes += sum(len(one.record) for one in found)
            self._error = error
        self._soon(self._wake, idempotent=True)

    def _poll(self, consumer: Consumer, position: int) -> tuple[list[Stored], Exception | None]:
        first = consumer.poll(_POLL_S)
        if first is None:
            self._search.step(consumer)
            return [], None
        self._search.found()
        found: list[Stored] = []
        for message in [first, *consumer.consume(_RECORDS, 0)]:
            error = message.error()
            if error is not None:
                return found, self._error_of(consumer, error, position)
            offset, value = message.offset(), message.value()
            if offset is None or offset < position:
                continue  # from before a change of the place
            # Kafka may leave places out (a transaction's marks), never change their order.
            found.append(Stored(offset, value or b""))
            position = offset + 1
        return found, None

    def _error_of(self, consumer: Consumer, error: KafkaError, position: int) -> Exception:
        if error.code() in _GONE:
            try:
                first, end = self._ask(consumer, lambda: False)
            except SharedLogUnavailable as unavailable:
                return unavailable
            if not first <= position <= end:
                return OutOfRange(position, first, end)
        return (NoSharedLog if error.code() in _NOT_THERE else SharedLogUnavailable)(error.str())

    def _answer(self, consumer: Consumer, question: _Question) -> None:
        try:
            question.bounds = self._ask(consumer, lambda: question.is_cancelled)
        except SharedLogUnavailable as error:
            question.error = error
        self._soon(question.done.set)

    def _ask(self, consumer: Consumer, is_enough: Callable[[], bool]) -> tuple[int, int]:
        place = TopicPartition(self._topic, self._partition)
        deadline_s = time.monotonic() + _ASK_TIMEOUT_S
        while self._is_open and not is_enough() and time.monotonic() < deadline_s:
            try:
                found: tuple[int, int] | None = consumer.get_watermark_offsets(place, timeout=_ASK_STEP_S)
            except KafkaException as exception:
                error = error_of(exception)
                if error is not None and error.code() in _NOT_THERE:
                    raise NoSharedLog(text_of(exception)) from exception
                if error is None or error.code() != KafkaError._TIMED_OUT:
                    raise SharedLogUnavailable(text_of(exception)) from exception
                continue
            if found is not None:
                return found
        raise SharedLogUnavailable(f"Kafka did not answer in {_ASK_TIMEOUT_S:g} s")
