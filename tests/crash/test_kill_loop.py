"""The real daemon, killed again and again at random moments under load; the ledger is kept outside its process.

Whatever was acknowledged must be there in the end, in its topic exactly once, and an ack that was confirmed must hold.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import trio

from tests.integration.daemon_harness import Daemon
from tickwheel import Batch, Client, Message, SendUncertain, Subscription, TickwheelError
from timerlog.layout import DeliveryState, MessageState
from timerlog.store import Store, StoreSettings

KILLS = 1_000 if os.environ.get("TICKWHEEL_SOAK") == "1" else 50
TOPIC, GROUP = "orders", "crash"
DAY_MS = 86_400_000
PATIENCE_S = 60.0


@dataclass
class Ledger:
    """What the broker promised, as its clients remember it."""

    sent: dict[str, int] = field(default_factory=dict)  # key → id
    keyless: set[int] = field(default_factory=set)
    cancelled: set[int] = field(default_factory=set)
    acked: set[int] = field(default_factory=set)  # confirmed
    received: Counter[int] = field(default_factory=Counter)
    received_after_confirmed_ack: list[int] = field(default_factory=list)

    @property
    def promises(self) -> int:
        """How much the broker has confirmed so far."""
        return len(self.sent) + len(self.keyless) + len(self.cancelled) + len(self.acked)


class Load:
    """Producers and a consumer that go on through every crash until told to stop."""

    def __init__(self, url: str, ledger: Ledger, *, is_purged: bool = False) -> None:
        """``is_purged``: a cancel that is repeated after a crash may find that its message is gone by now."""
        self.url, self.ledger = url, ledger
        self._cancel_answers = {"cancelled", "already_cancelled"} | ({"not_found"} if is_purged else set())
        self.stopping = False

    async def produce_keyed(self, number: int) -> None:
        """Keyed batches, due now or soon; the client sends a batch again until the broker confirmed it."""
        rng, serial = random.Random(number), 0
        async with self._client() as client:
            while not self.stopping:
                keys = [f"p{number}-{serial + index}" for index in range(rng.randint(1, 60))]
                serial += len(keys)
                delays = [rng.choice([0, 0, 5, 50, 400]) for _ in keys]
                now_ms = int(_now_ms())
                results = await client.send_many(
                    TOPIC,
                    [key.encode() for key in keys],
                    keys=keys,
                    deliver_at=np.array([now_ms + delay for delay in delays], np.int64),
                )
                results.raise_for_errors()
                self.ledger.sent.update(zip(keys, results.ids(), strict=True))

    async def produce_keyless(self) -> None:
        """Batches without keys: those whose fate a crash left open are not in the ledger."""
        async with self._client() as client:
            while not self.stopping:
                try:
                    results = await client.send_many(TOPIC, [bytes(12_000)] * 20)
                except SendUncertain:
                    continue
                results.raise_for_errors()
                self.ledger.keyless.update(results.ids())
                await trio.sleep(0.002)

    async def cancel_some(self) -> None:
        """Schedules for tomorrow and cancels at once."""
        serial = 0
        async with self._client() as client:
            while not self.stopping:
                keys = [f"c-{serial + index}" for index in range(10)]
                serial += 10
                at = int(_now_ms()) + DAY_MS
                ids = (await client.send_many(TOPIC, [b"never"] * 10, keys=keys, deliver_at=at)).ids()
                answers = await client.cancel(ids=list(ids))
                assert set(answers) <= self._cancel_answers
                self.ledger.cancelled.update(ids)
                await trio.sleep(0.01)

    async def consume(self) -> None:
        async with self._client() as client, client.subscribe(TOPIC, group=GROUP, credit=500) as subscription:
            await self._take(subscription)

    async def _take(self, subscription: Subscription[Message, Batch]) -> None:
        ledger = self.ledger
        while not (self.stopping and self._is_drained()):
            batch = await subscription.receive_batch(timeout=0.5)
            if batch is None:
                continue
            for message_id in batch.ids:
                ledger.received[message_id] += 1
                if message_id in ledger.acked:
                    ledger.received_after_confirmed_ack.append(message_id)
            ids = list(batch.ids)
            await batch.ack()
            try:
                await subscription.flush()
            except TickwheelError:
                continue  # the lease ended meanwhile: the message comes again
            ledger.acked.update(ids)

    def _is_drained(self) -> bool:
        wanted = set(self.ledger.sent.values()) | self.ledger.keyless
        return wanted <= self.ledger.received.keys()

    def _client(self) -> Client:
        return Client(self.url, timeout=PATIENCE_S, connect_timeout=PATIENCE_S)


def _now_ms() -> float:
    return time.time() * 1000


async def crash_again_and_again(
    daemon: Daemon, ledger: Ledger, rng: random.Random, kills: int = KILLS
) -> None:
    for _ in range(kills):
        # Clients that found the broker gone wait longer each time before they try again: let some of them in.
        seen = ledger.promises
        with trio.move_on_after(0.5):
            while ledger.promises == seen:
                await trio.sleep(0.005)
        await trio.sleep(rng.choice([0.0, 0.02, 0.1, 0.3, 0.6]) * rng.random())
        daemon.kill()
        await trio.to_thread.run_sync(daemon.start)


@pytest.mark.timeout(0 if KILLS > 50 else 240)
async def test_nothing_acknowledged_is_lost_or_doubled(tmp_path: Path) -> None:
    ledger = Ledger()
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    # Small segments, so that kills also hit while the log goes from one to the next.
    sizes = {"segment_bytes": "9MiB", "max_frame_bytes": "256KiB", "max_body_bytes": "64KiB"}
    daemon = Daemon(tmp_path / "data", ack_wait="1s", max_backoff="2s", log_level="info", **sizes)
    with daemon:
        load = Load(daemon.unix_url, ledger)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load.produce_keyed, 1)
            nursery.start_soon(load.produce_keyed, 2)
            nursery.start_soon(load.produce_keyless)
            nursery.start_soon(load.cancel_some)
            nursery.start_soon(load.consume)
            await crash_again_and_again(daemon, ledger, random.Random(seed))
            with trio.fail_after(PATIENCE_S):
                while len(ledger.sent) <= 1_000 or len(ledger.cancelled) <= 50:
                    await trio.sleep(0.05)
            load.stopping = True
        assert daemon.stop() == 0
    assert ledger.received_after_confirmed_ack == []
    check_directory(tmp_path / "data", ledger)


def check_directory(directory: Path, ledger: Ledger) -> None:
    """Reads the daemon's files and compares them with the ledger."""
    store = Store.open(directory, StoreSettings(max_frame_bytes=256 * 1024), int(_now_ms()))
    try:
        rows = store.tables.rows
        topic_id = store.tables.topic_ids[TOPIC]
        count = int(store.tables.native.topics[topic_id].count)
        arrived = store.tables.topics[topic_id].arrivals.items["id"][:count]
        assert len(np.unique(arrived)) == count, "a message reached its topic twice"

        keys = list(ledger.sent)
        assert store.find(TOPIC, keys) == [ledger.sent[key] for key in keys]
        assert len(set(ledger.sent.values())) == len(keys)
        acknowledged = np.array(sorted(set(ledger.sent.values()) | ledger.keyless), np.uint64)
        assert set(np.unique(rows["state"][acknowledged])) == {MessageState.READY}
        assert np.isin(acknowledged, arrived).all()

        cancelled = np.array(sorted(ledger.cancelled), np.uint64)
        # The broker may have purged some of them already.
        assert set(np.unique(rows["state"][cancelled])) <= {MessageState.CANCELLED, MessageState.NONE}
        assert not np.isin(cancelled, arrived).any()
        assert not ledger.received.keys() & ledger.cancelled

        group_id = store.tables.topics[topic_id].groups[GROUP]
        deliveries = store.tables.groups[group_id].deliveries.items
        acked = np.array(sorted(ledger.acked), np.uint64)
        assert set(np.unique(deliveries["state"][rows["topic_seq"][acked]])) == {DeliveryState.ACKED}
        print(
            f"{KILLS} kills: {len(acknowledged)} sends acknowledged, {len(cancelled)} cancelled, "
            f"{len(acked)} acks confirmed, {sum(ledger.received.values())} deliveries"
        )
    finally:
        store.close()
