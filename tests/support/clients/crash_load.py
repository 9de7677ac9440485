"""A load of everything that a broker can do, and a ledger of what it promised, outside its process.

Its clients go on through every crash of the broker until they are told to stop.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain
from typing import ClassVar

import numpy as np
import trio

from tests.support.processes.daemon_harness import Daemon
from tickwheel import Batch, Client, Message, SendUncertain, Subscription, TickwheelError, TransactionRefused
from tickwheel.client.options import ClientOptions
from tickwheel.client.url import Urls

TOPIC, GROUP = "orders", "crash"
INVOICES, BEATS, PURGED = "invoices", "beats", "purged"
BEAT_MS = 250
CANCELLED_AT_ONCE = 10
QUIET = 20  # looks of half a second
DAY_MS = 86_400_000
PATIENCE_S = 60.0


@dataclass
class Ledger:
    """What the broker promised, as its clients remember it."""

    sent: dict[str, int] = field(default_factory=dict)  # key → id
    keyless: set[int] = field(default_factory=set)
    cancelled: set[int] = field(default_factory=set)
    acked: set[int] = field(default_factory=set)  # confirmed
    unsure: set[int] = field(
        default_factory=set
    )  # acked, and no answer came: they come again, or that counted
    received: Counter[int] = field(default_factory=Counter)
    received_after_confirmed_ack: list[int] = field(default_factory=list)
    given: Counter[tuple[int, int]] = field(default_factory=Counter)  # (id, epoch): at most once each
    earliest_ms: int = DAY_MS  # from when a message was due until it came; negative: it was early
    postponed: dict[int, int] = field(default_factory=dict)  # id → the time that it has now
    transactions: dict[int, int] = field(default_factory=dict)  # begun: number → the message that it cancels
    committed: set[int] = field(default_factory=set)  # of these: those that were confirmed
    made: set[str] = field(
        default_factory=set
    )  # keys of what was sent in the transaction that acked its origin
    nacked: set[int] = field(default_factory=set)
    slots: dict[int, set[int]] = field(default_factory=dict)  # of the schedule: slot → ids of its messages

    @property
    def promises(self) -> int:
        """How much the broker has confirmed so far."""
        return (
            len(self.sent) + len(self.keyless) + len(self.cancelled) + len(self.acked) + len(self.committed)
        )


class _Sends:
    """All that was sent so far, whenever somebody looks."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def __iter__(self) -> Iterator[int]:
        return chain(self._ledger.sent.values(), self._ledger.keyless)


class Load:
    """Producers and a consumer that go on through every crash until told to stop."""

    bulk_topic = TOPIC
    quiet = QUIET
    pause_s = 0.002
    options: ClassVar[ClientOptions] = {}
    """Of the clients."""

    def __init__(self, url: Urls, ledger: Ledger, *, is_purged: bool = False) -> None:
        """``is_purged``: a cancel that is repeated after a crash may find that its message is gone by now."""
        self.url, self.ledger = url, ledger
        self._cancel_answers = {"cancelled", "already_cancelled"} | ({"not_found"} if is_purged else set())
        self.stopping = False  # producers go home
        self.draining = False  # and consumers, as soon as they have everything

    async def produce_keyed(self, number: int) -> None:
        """Keyed batches, due now or soon; the client sends a batch again until the broker confirmed it."""
        rng, serial = random.Random(number), 0
        async with self._client() as client:
            while not self.stopping:
                keys = [f"p{number}-{serial + index}" for index in range(rng.randint(1, 60))]
                serial += len(keys)
                delays = [rng.choice([0, 0, 5, 50, 400]) for _ in keys]
                start_ms = now_ms()
                results = await client.send_many(
                    TOPIC,
                    [key.encode() for key in keys],
                    keys=keys,
                    deliver_at=np.array([start_ms + delay for delay in delays], np.int64),
                )
                results.raise_for_errors()
                self.ledger.sent.update(zip(keys, results.ids(), strict=True))
                await trio.sleep(self.pause_s)

    async def produce_keyless(self) -> None:
        """Batches without keys: those whose fate a crash left open are not in the ledger."""
        async with self._client() as client:
            while not self.stopping:
                try:
                    results = await client.send_many(self.bulk_topic, [bytes(12_000)] * 20)
                except SendUncertain:
                    continue
                results.raise_for_errors()
                self.ledger.keyless.update(results.ids())
                await trio.sleep(self.pause_s)

    async def cancel_some(self) -> None:
        """Schedules for tomorrow and cancels at once."""
        serial = 0
        async with self._client() as client:
            while not self.stopping:
                keys = [f"c-{serial + index}" for index in range(CANCELLED_AT_ONCE)]
                serial += CANCELLED_AT_ONCE
                at = _in(DAY_MS)
                ids = (
                    await client.send_many(TOPIC, [b"never"] * CANCELLED_AT_ONCE, keys=keys, deliver_at=at)
                ).ids()
                answers = await client.cancel(ids=list(ids))
                assert set(answers) <= self._cancel_answers
                self.ledger.cancelled.update(ids)
                await trio.sleep(0.01)

    async def consume(self) -> None:
        async with self._client() as client, client.subscribe(TOPIC, group=GROUP, credit=500) as subscription:
            await self._take(subscription, _Sends(self.ledger))

    async def _take(self, subscription: Subscription[Message, Batch], wanted: Iterable[int]) -> None:
        """Takes and acks until all of ``wanted`` has come."""
        while not (self.draining and set(wanted) <= self.ledger.received.keys()):
            batch = await subscription.receive_batch(timeout=0.5)
            if batch is not None:
                self._note_received(batch)
                await self._ack(subscription, batch)

    def _note_received(self, batch: Batch) -> None:
        ledger = self.ledger
        ledger.given.update(zip(batch.ids, batch.epochs, strict=True))
        ledger.earliest_ms = min(ledger.earliest_ms, now_ms() - max(batch.deliver_at_ms))
        for message_id in batch.ids:
            ledger.received[message_id] += 1
            if message_id in ledger.acked:
                ledger.received_after_confirmed_ack.append(message_id)

    async def _ack(self, subscription: Subscription[Message, Batch], batch: Batch) -> None:
        ids = list(batch.ids)
        await batch.ack()
        self.ledger.unsure.update(ids)
        with suppress(TickwheelError):  # the lease ended meanwhile: the message comes again
            await subscription.flush()
            self.ledger.acked.update(ids)

    def _client(self) -> Client:
        # One that always comes when the broker is gone waits long, in a thousand crashes.
        return Client(self.url, timeout=10 * PATIENCE_S, connect_timeout=10 * PATIENCE_S, **self.options)


class MixedLoad(Load):
    """Besides: reschedules, transactions, nacks, acks in transactions, a schedule, and a topic that is purged all the
    time."""

    bulk_topic = PURGED

    def __init__(self, url: Urls, ledger: Ledger, seed: int) -> None:
        super().__init__(url, ledger, is_purged=True)
        self._rng = random.Random(seed)

    async def run(self, until: Callable[[], Awaitable[None]]) -> None:
        """Everything at once until ``until`` returns; then the consumers take what is left."""
        async with self._client() as client:
            await client.create_topic(PURGED, purge_after=0)
            await client.create_topic(BEATS)
            await client.create_schedule("beat", BEATS, every=timedelta(milliseconds=BEAT_MS), catch_up="all")
        async with trio.open_nursery() as consumers:
            for consume in (self.consume, self.consume_bulk, self.beat, self.purge):
                consumers.start_soon(consume)
            async with trio.open_nursery() as producers:
                for number in (1, 2):
                    producers.start_soon(self.produce_keyed, number)
                for produce in (
                    self.produce_keyless,
                    self.cancel_some,
                    self.reschedule_some,
                    self.commit_some,
                ):
                    producers.start_soon(produce)
                await until()
                self.stopping = True
            self.draining = True

    async def reschedule_some(self) -> None:
        """Schedules for tomorrow; then half of it is to come now, and half of it the day after."""
        ledger, serial = self.ledger, 0
        async with self._client() as client:
            while not self.stopping:
                keys = [f"r-{serial + index}" for index in range(10)]
                serial += 10
                ids = list(
                    (await client.send_many(TOPIC, [b"then"] * 10, keys=keys, deliver_at=_in(DAY_MS))).ids()
                )
                soon = await client.reschedule(ids=ids[:5], delay_ms=self._rng.choice([0, 30, 300]))
                # The broker may have done it and crashed before it could say so: then it is asked once more.
                assert set(soon) <= {"rescheduled", "already_delivered", "already_acked"}
                ledger.sent.update(zip(keys[:5], ids[:5], strict=True))
                then_ms = _in(2 * DAY_MS)
                assert set(await client.reschedule(ids=ids[5:], deliver_at=then_ms)) == {"rescheduled"}
                ledger.postponed.update(dict.fromkeys(ids[5:], then_ms))
                await trio.sleep(0.01)

    async def commit_some(self) -> None:
        """Two sends and a cancel that hold together or not at all."""
        ledger, number = self.ledger, 0
        async with self._client() as client:
            while not self.stopping:
                number += 1
                far = await client.send(TOPIC, b"never", key=f"far-{number}", deliver_at=_in(DAY_MS))
                ledger.transactions[number] = far.id
                async with client.transaction() as transaction:
                    for topic in (TOPIC, INVOICES):
                        transaction.send(topic, b"both", key=f"t-{number}", deliver_at=_in(2 * DAY_MS))
                    transaction.cancel(id=far.id)
                ledger.committed.add(number)
                await trio.sleep(0.01)

    async def beat(self) -> None:
        """Takes the messages of a schedule that must miss no slot and send none twice."""
        async with self._client() as client, client.subscribe(BEATS, group=GROUP) as subscription:
            while not self.draining:
                message = await subscription.receive(timeout=0.5)
                if message is not None:
                    slot_ms = message.headers["tickwheel-schedule"]["slot_ms"]
                    self.ledger.slots.setdefault(slot_ms, set()).add(message.id)
                    await message.ack()

    async def purge(self) -> None:
        async with self._client() as client:
            while not self.draining:
                try:
                    await client.purge()
                except TickwheelError:
                    continue  # the broker was killed meanwhile, and knows nothing of this run any more
                await trio.sleep(0.2)

    async def consume_bulk(self) -> None:
        async with (
            self._client() as client,
            client.subscribe(PURGED, group=GROUP, credit=500) as subscription,
        ):
            await self._take(subscription, self.ledger.keyless)

    async def consume(self) -> None:
        """Acks most batches, gives some back once, and acks some together with sending what follows from them."""
        async with self._client() as client, client.subscribe(TOPIC, group=GROUP, credit=500) as subscription:
            ledger, quiet = self.ledger, 0
            while not (self.draining and self._is_done(quiet)):
                batch = await subscription.receive_batch(timeout=0.5)
                if batch is None:
                    quiet += 1
                    continue
                quiet = 0
                self._note_received(batch)
                match self._rng.randrange(8):
                    case 0 if max(batch.epochs) == 1:
                        with suppress(TickwheelError):
                            results = await batch.nack(delay_ms=self._rng.choice([0, 20]), error="not yet")
                            given_back = [i for i, r in zip(batch.ids, results, strict=True) if r == "nacked"]
                            ledger.nacked.update(given_back)
                    case 1:
                        await self._ack_in_transaction(client, batch)
                    case _:
                        await self._ack(subscription, batch)

    def _is_done(self, quiet: int) -> bool:
        """All is acked; what nobody knows that of has not come again for longer than any lease and backoff."""
        ledger, sent = self.ledger, set(self.ledger.sent.values())
        return sent <= ledger.acked or (quiet > self.quiet and sent <= ledger.acked | ledger.unsure)

    async def _ack_in_transaction(self, client: Client, batch: Batch) -> None:
        keys = [f"made-{message_id}" for message_id in batch.ids]
        self.ledger.unsure.update(batch.ids)
        try:
            async with client.transaction() as transaction:
                transaction.ack(batch)
                transaction.send_many(INVOICES, [b"made"] * len(keys), keys=keys, deliver_at=_in(DAY_MS))
        except TransactionRefused:
            return  # the lease ended meanwhile: the message comes again
        self.ledger.acked.update(batch.ids)
        self.ledger.made.update(keys)


def now_ms() -> int:
    return int(time.time() * 1000)


def _in(delay_ms: int) -> int:
    return now_ms() + delay_ms


async def crash_again_and_again(daemon: Daemon, ledger: Ledger, rng: random.Random, kills: int) -> None:
    for number in range(kills):
        # Clients that found the broker gone wait longer each time before they try again: let some of them in, and now
        # and then nearly all.
        seen, wanted = ledger.promises, 1_000 if number % 10 == 9 else 1
        with trio.move_on_after(2.0 if wanted > 1 else 0.5):
            while ledger.promises < seen + wanted:
                await trio.sleep(0.005)
        await trio.sleep(rng.choice([0.0, 0.02, 0.1, 0.3, 0.6]) * rng.random())
        daemon.kill()
        await trio.to_thread.run_sync(daemon.start)
