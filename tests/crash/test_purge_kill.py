"""The crash loop once more, while the log is purged all the time: kills hit every step of it."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import trio

from tests.support.clients.crash_load import (
    CANCELLED_AT_ONCE,
    GROUP,
    PATIENCE_S,
    TOPIC,
    Ledger,
    Load,
    crash_again_and_again,
)
from tests.support.processes.daemon_harness import Daemon
from tests.support.run.profile import amount, limit_s, seed
from tickwheel import Client, TickwheelError
from timerlog.layout import DeliveryState, MessageState
from timerlog.store import Store, StoreSettings

KILLS = amount("purge_kills")
SIZES = {"segment_bytes": "9MiB", "max_frame_bytes": "256KiB", "max_body_bytes": "64KiB"}


async def purge_again_and_again(load: Load, purged: list[int]) -> None:
    async with Client(load.url, timeout=PATIENCE_S, connect_timeout=PATIENCE_S) as client:
        while not load.stopping:
            try:
                purged.append((await client.purge()).purged_messages)
            except TickwheelError:
                continue  # the broker was killed meanwhile, and knows nothing of this run any more
            await trio.sleep(0.05)


@pytest.mark.promise("what-is-purged-and-what-never")
@pytest.mark.timeout(limit_s(300))
async def test_a_purge_loses_nothing_that_is_needed(tmp_path: Path) -> None:
    ledger, drawn = Ledger(), seed("purge kill")
    purged: list[int] = []
    print(f"seed {drawn}")
    waits = {"ack_wait": "1s", "max_backoff": "2s", "purge_after": "1s"}
    with Daemon(tmp_path / "data", log_level="info", **waits, **SIZES) as daemon:
        load = Load(daemon.unix_url, ledger, is_purged=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load.produce_keyed, 1)
            nursery.start_soon(load.produce_keyless)
            nursery.start_soon(load.cancel_some)
            nursery.start_soon(load.consume)
            nursery.start_soon(purge_again_and_again, load, purged)
            await crash_again_and_again(daemon, ledger, random.Random(drawn), KILLS)
            with trio.fail_after(PATIENCE_S):
                # More than what was cancelled, and than what may have been without an answer: some that were acked.
                while len(ledger.sent) <= 500 or sum(purged) <= without_ack(ledger):
                    await trio.sleep(0.05)
            load.stopping = load.draining = True
        assert daemon.stop() == 0
    assert ledger.received_after_confirmed_ack == []
    assert not ledger.received.keys() & ledger.cancelled
    check_directory(tmp_path / "data", ledger)


def without_ack(ledger: Ledger) -> int:
    """How many messages can be purged whose ack was not confirmed, at most."""
    return len(ledger.cancelled) + CANCELLED_AT_ONCE + len(ledger.unsure - ledger.acked)


def check_directory(directory: Path, ledger: Ledger) -> None:
    """What is gone was received; what is there is as its clients know it."""
    store = Store.open(directory, StoreSettings(max_frame_bytes=256 * 1024), 0)
    try:
        messages = store.tables.messages
        group_id = store.tables.topics[store.tables.topic_ids[TOPIC]].groups[GROUP]
        deliveries = store.tables.groups[group_id].deliveries
        known = sorted(set(ledger.sent.values()) | ledger.keyless)
        states = messages.take(np.array(known, np.uint64), "state").tolist()
        for message_id, found in zip(known, states, strict=True):
            # What was sent last may have been confirmed when the consumer had gone already: then it waits.
            is_there = found in (MessageState.SCHEDULED, MessageState.READY)
            assert is_there or found == MessageState.NONE
            assert is_there or message_id in ledger.received, "it is lost"
        acked = np.array(sorted(ledger.acked), np.uint64)
        there = acked[messages.take(acked, "state") != MessageState.NONE]
        assert len(there) < len(acked), "something was purged"
        seqs = messages.take(there, "topic_seq")
        assert set(np.unique(deliveries.take(seqs, "state"))) <= {DeliveryState.ACKED}
        state = store.look.state_hash()
    finally:
        store.close()
    store = Store.open(directory, StoreSettings(max_frame_bytes=256 * 1024), 0)
    assert store.look.state_hash() == state
    store.close()
