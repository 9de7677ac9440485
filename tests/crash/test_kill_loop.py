"""The real daemon, killed again and again at random moments under a mixed load; the ledger is kept outside its process.

Whatever was acknowledged must be there in the end, in its topic exactly once, and an ack that was confirmed must hold.
What belongs together is there together or not at all.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import trio

from tests.support.clients.crash_load import (
    BEAT_MS,
    GROUP,
    INVOICES,
    PATIENCE_S,
    TOPIC,
    Ledger,
    MixedLoad,
    crash_again_and_again,
    now_ms,
)
from tests.support.processes.daemon_harness import Daemon
from tests.support.run.profile import amount, limit_s, seed
from timerlog.layout import DeliveryState, MessageState
from timerlog.store import Store, StoreSettings

KILLS = amount("kills")


@pytest.mark.promise(
    "V58",
    "R6",
    "R44",
    "S9",
    "when-is-a-message-safe",
    "sending-twice",
    "cancel-and-reschedule-racing-delivery",
)
@pytest.mark.timeout(limit_s(300))
async def test_nothing_acknowledged_is_lost_or_doubled(tmp_path: Path) -> None:
    ledger = Ledger()
    drawn = seed("kill loop")
    print(f"seed {drawn}")
    # Small segments, so that kills also hit while the log goes from one to the next.
    sizes = {"segment_bytes": "9MiB", "max_frame_bytes": "256KiB", "max_body_bytes": "64KiB"}
    waits = {"ack_wait": "1s", "min_backoff": "100ms", "max_backoff": "2s"}
    with Daemon(tmp_path / "data", log_level="info", **waits, **sizes) as daemon:
        load = MixedLoad(daemon.unix_url, ledger, drawn)

        async def until_enough() -> None:
            await crash_again_and_again(daemon, ledger, random.Random(drawn), KILLS)
            with trio.fail_after(PATIENCE_S):
                while (
                    len(ledger.sent) <= 1_000
                    or min(map(len, small_parts(ledger))) <= 20
                    or lacks_slots(ledger)
                ):
                    await trio.sleep(0.05)

        await load.run(until_enough)
        assert daemon.stop() == 0
    assert ledger.received_after_confirmed_ack == []
    assert ledger.earliest_ms >= 0
    assert set(ledger.given.values()) == {1}, "given out twice with one epoch"
    check_schedule(ledger)
    check_directory(tmp_path / "data", ledger)


def small_parts(ledger: Ledger) -> tuple[set[int], ...]:
    return ledger.cancelled, set(ledger.postponed), ledger.committed, ledger.nacked


def lacks_slots(ledger: Ledger) -> bool:
    """Whether one has not come, though a later one has: what was on its way when its owner was killed comes when its
    lease has ended."""
    slots = sorted(ledger.slots)
    return not slots or slots != list(range(slots[0], slots[-1] + 1, BEAT_MS))


def check_schedule(ledger: Ledger) -> None:
    """No slot is missing, and none has two messages."""
    assert not lacks_slots(ledger), sorted(ledger.slots)
    assert {len(ids) for ids in ledger.slots.values()} == {1}


def check_directory(directory: Path, ledger: Ledger) -> None:
    """Reads the daemon's files and compares them with the ledger."""
    store = Store.open(directory, StoreSettings(max_frame_bytes=256 * 1024), now_ms())
    try:
        check_store(store, ledger)
        print(f"{KILLS} kills: {told(ledger)}")
    finally:
        store.close()


def check_store(store: Store, ledger: Ledger) -> None:
    """What it holds is what its clients know."""
    check_sends(store, ledger)
    check_endings(store, ledger)
    check_transactions(store, ledger)


def told(ledger: Ledger) -> str:
    """How much there was of each."""
    return (
        f"{len(ledger.sent) + len(ledger.keyless)} sends acknowledged, "
        f"{len(ledger.cancelled)} cancelled, {len(ledger.postponed)} postponed, "
        f"{len(ledger.committed)} transactions, {len(ledger.made)} acked in transactions, "
        f"{len(ledger.nacked)} nacked, {len(ledger.slots)} slots of a schedule, "
        f"{len(ledger.acked)} acks confirmed, {sum(ledger.received.values())} deliveries"
    )


def arrivals(store: Store, topic: str) -> np.ndarray:
    """Each as it is now: one that is rescheduled once more, because a crash took the answer, may arrive again."""
    topic_id = store.tables.topic_ids[topic]
    count = int(store.tables.native.topics[topic_id].count)
    ids = store.tables.topics[topic_id].arrivals.between(0, count)["id"]
    return ids[store.tables.messages.take(ids, "topic_seq") == np.arange(count)]


def check_sends(store: Store, ledger: Ledger) -> None:
    messages, arrived = store.tables.messages, arrivals(store, TOPIC)
    assert len(np.unique(arrived)) == len(arrived), "a message reached its topic twice"
    keys = list(ledger.sent)
    assert store.select.find(TOPIC, keys) == [ledger.sent[key] for key in keys]
    assert len(set(ledger.sent.values())) == len(keys)
    acknowledged = np.array(sorted(set(ledger.sent.values())), np.uint64)
    assert set(np.unique(messages.take(acknowledged, "state"))) == {MessageState.READY}
    assert np.isin(acknowledged, arrived).all()
    # What is done with in this topic is purged at once.
    bulk = np.array(sorted(ledger.keyless), np.uint64)
    assert set(np.unique(messages.take(bulk, "state"))) <= {MessageState.READY, MessageState.NONE}
    assert ledger.keyless <= ledger.received.keys()


def check_endings(store: Store, ledger: Ledger) -> None:
    messages, arrived = store.tables.messages, arrivals(store, TOPIC)
    cancelled = np.array(sorted(ledger.cancelled), np.uint64)
    # The broker may have purged some of them already.
    assert set(np.unique(messages.take(cancelled, "state"))) <= {MessageState.CANCELLED, MessageState.NONE}
    assert not np.isin(cancelled, arrived).any()
    assert not ledger.received.keys() & ledger.cancelled

    postponed = np.array(list(ledger.postponed), np.uint64)
    assert set(np.unique(messages.take(postponed, "state"))) == {MessageState.SCHEDULED}
    assert messages.take(postponed, "deliver_at_ms").tolist() == list(ledger.postponed.values())

    group_id = store.tables.topics[store.tables.topic_ids[TOPIC]].groups[GROUP]
    deliveries = store.tables.groups[group_id].deliveries
    # Also those of which nobody could say it.
    acked = np.array(sorted(ledger.sent.values()), np.uint64)
    assert set(np.unique(deliveries.take(messages.take(acked, "topic_seq"), "state"))) == {
        DeliveryState.ACKED
    }
    assert ledger.nacked <= ledger.acked | ledger.unsure, "what was given back came again"


def check_transactions(store: Store, ledger: Ledger) -> None:
    """All of a transaction or nothing, and all of those that were confirmed."""
    numbers = list(ledger.transactions)
    keys = [f"t-{number}" for number in numbers]
    found = [[bool(found) for found in store.select.find(topic, keys)] for topic in (TOPIC, INVOICES)]
    states = store.tables.messages.take(np.array(list(ledger.transactions.values()), np.uint64), "state")
    ended = np.isin(states, [MessageState.CANCELLED, MessageState.NONE]).tolist()
    assert found[0] == found[1] == ended
    assert ledger.committed <= {number for number, is_done in zip(numbers, ended, strict=True) if is_done}
    assert all(store.select.find(INVOICES, sorted(ledger.made)))
