"""A producer of librdkafka: it is used until its first failure, or until it may sleep. What it had not sent then is
given up."""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import partial

import trio
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tickwheel_broker.sharedlog.kafka.client import END_S, LeaderSearch, Options, SetBack, settings, text_of
from tickwheel_broker.sharedlog.shared_log import AppendFailed

_POLL_S = 0.1
"""So long the thread waits for answers at a time, which wake it: so it ends soon, also when there is none."""


class _Answers:
    """What becomes of the records of one append: told in the producer's thread, and to the loop when all is known."""

    def __init__(self, count: int, token: trio.lowlevel.TrioToken) -> None:
        self._offsets: list[int | None] = [None] * count
        self._missing = count
        self._error: str | None = None
        self._done = trio.Event()
        self._token = token

    def delivered(self, number: int, error: KafkaError | None, message: Message) -> None:
        """In the producer's thread."""
        self._missing -= 1
        if error is None:
            offset = message.offset()  # not known where Kafka had the record already, from a try before
            self._offsets[number] = offset if offset is not None and offset >= 0 else None
        elif self._error is None:
            self._error = error.str()
        if not self._missing or error is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._done.set)

    async def wait(self, timeout_s: float) -> list[int | None]:
        """Where each stands. Raises AppendFailed."""
        with trio.move_on_after(timeout_s):
            await self._done.wait()
        if self._error is not None:
            raise AppendFailed(self._error)
        if not self._done.is_set():
            raise AppendFailed(f"Kafka did not answer in {timeout_s:g} s")
        return self._offsets


class KafkaProducer:
    """One, and the thread that takes its answers and ends it. Making one takes a moment: not in the event loop."""

    def __init__(
        self,
        *,
        servers: str,
        topic: str,
        partition: int,
        options: Options | None,
        timeout_s: float,
        token: trio.lowlevel.TrioToken,
    ) -> None:
        self._topic, self._partition, self._token = topic, partition, token
        self._search = LeaderSearch(topic)
        self._producer = Producer(
            settings(
                servers,
                options,
                acks="all",
                # Records stay in order while several are on their way; it starts to get its number from Kafka now.
                enable_idempotence=True,
                message_timeout_ms=int(timeout_s * 1_000),
                request_timeout_ms=int(timeout_s * 1_000),
                linger_ms=0,
                compression_type="none",
            )
            | {"error_cb": self._search.lost}
        )
        self._set_back = SetBack()
        self._is_open = True
        self._thread = threading.Thread(target=self._poll, name="tickwheel-kafka-append", daemon=True)
        self._thread.start()

    def send(self, records: list[bytes]) -> _Answers:
        """Hands records over, in order. Raises AppendFailed: then some of them may be on their way."""
        answers = _Answers(len(records), self._token)
        for number, record in enumerate(records):
            try:
                self._producer.produce(
                    self._topic,
                    record,
                    partition=self._partition,
                    on_delivery=partial(answers.delivered, number),
                )
            except BufferError as error:
                raise AppendFailed(str(error)) from error
            except KafkaException as error:
                raise AppendFailed(text_of(error)) from error
        return answers

    def give_up(self) -> None:
        """What was not sent is dropped, now. The thread ends soon: `join` waits for that."""
        self._is_open = False
        with suppress(KafkaException, RuntimeError):  # the thread may have closed it
            self._producer.purge(blocking=False)

    @property
    def may_sleep(self) -> bool:
        """Whether what it is given may lie there for long, because the clock was set back."""
        return self._set_back.was

    @property
    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    def join(self) -> None:
        """Blocks; not in the event loop."""
        self._thread.join(END_S)

    def _poll(self) -> None:
        producer = self._producer
        while self._is_open:
            producer.poll(_POLL_S)
            self._set_back.look()
            if len(producer):
                self._search.step(producer)
            else:
                self._search.found()
        producer.purge()
        producer.close()
