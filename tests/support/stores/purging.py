"""Stores with much that is done and little that is needed, and a purge that can be stopped at any step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from tests.support.native.driver import MIB, NOW_MS, SMALL, pump
from tests.support.native.frames import ack_payload, delivered, send
from timerlog.background import WaitDurable
from timerlog.commitlog.records import MessageView
from timerlog.layout import MAX_BATCH
from timerlog.purge.drop import DropTicket, FreeTicket, Pause
from timerlog.settings import StoreSettings
from timerlog.store import Store

LATER_MS = NOW_MS + 90_000_000  # a day and an hour: what is acked may be purged
BODY_BYTES = 1_000


def fill(store: Store, topic_id: int, keys: Sequence[bytes], due_ms: int) -> list[int]:
    """Sends a message of 1,000 bytes for each key; their ids."""
    first = store.tables.next_id
    for start in range(0, len(keys), 50):
        some = keys[start : start + 50]
        bodies = [key.ljust(BODY_BYTES, b".") for key in some]
        store.produce.ingest(send(topic_id, bodies, keys=some, times_ms=[due_ms] * len(some)), NOW_MS)
    return list(range(first, store.tables.next_id))


def take(store: Store, group_id: int, count: int, now_ms: int) -> tuple[list[int], list[int]]:
    """Ids and epochs of up to ``count`` messages, leased."""
    holder = store.holders.acquire(group_id)
    ids: list[int] = []
    epochs: list[int] = []
    while len(ids) < count:
        frame = store.deliver.fetch(group_id, holder, 1, min(200, count - len(ids)), MIB, now_ms)
        if not frame:
            break
        some_ids, some_epochs = delivered(frame)
        ids += some_ids
        epochs += some_epochs
    return ids, epochs


def ack(store: Store, group_id: int, ids: Sequence[int], epochs: Sequence[int], now_ms: int) -> None:
    if ids:
        assert store.deliver.ack(ack_payload(group_id, ids, epochs), 1, now_ms).accepted == len(ids)


def mixed(directory: Path, settings: StoreSettings = SMALL) -> Store:
    """Two topics over several segments: most messages are done, some wait, some are cancelled, leased or given back."""
    store = Store.open(directory, settings, NOW_MS)
    topics = [store.topics.open(name, NOW_MS) for name in ("a", "b")]
    groups = [store.groups.open(topic, "g", NOW_MS) for topic in topics]
    later = fill(store, topics[0], [b"far-%d" % number for number in range(300)], LATER_MS * 2)
    for topic in topics:
        fill(store, topic, [b"due-%d" % number for number in range(4_500)], NOW_MS)
    pump(store, NOW_MS + 10)
    for group in groups:
        ids, epochs = take(store, group, 4_400, NOW_MS + 10)
        ack(store, group, ids[10:], epochs[10:], NOW_MS + 10)
        store.settle.nack(group, ids[:3], epochs[:3], 5_000, "not yet", NOW_MS + 10)
    store.change.cancel(later[:39], NOW_MS + 10)
    store.change.reschedule(later[39:59], LATER_MS * 3, NOW_MS + 10)
    fill(store, topics[1], [b"new-%d" % number for number in range(20)], LATER_MS * 2)
    store.change.put_document("note", b"kept", NOW_MS)
    store.sync()
    return store


def content(store: Store) -> dict[int, Any]:
    """Everything a user can see of the messages that are there."""
    found: dict[int, Any] = {}
    rows = store.tables.rows
    spans = store.tables.spans(1, store.tables.next_id, MAX_BATCH)
    for message_id in chain.from_iterable(range(*span) for span in spans):
        if not rows["state"][message_id]:
            continue
        view = MessageView.read(store.tables.native, message_id)
        groups = []
        for group_id in store.tables.topics[view.topic_id].groups.values():
            seq, table = int(rows["topic_seq"][message_id]), store.tables.groups[group_id].deliveries
            if rows["state"][message_id] == 2 and seq >= table.capacity:
                groups.append((0, 0, 0, 0))
            elif rows["state"][message_id] == 2:
                groups.append(table.items[seq][["state", "epoch", "base_epoch", "time_ms"]].tolist())
        found[message_id] = (view, int(rows["state"][message_id]), int(rows["version"][message_id]), groups)
    return found


def purge_steps(store: Store, now_ms: int) -> Iterator[Pause]:
    """A purge, step by step: stopping anywhere is what a crash does."""
    job = store.purger.start()
    while not job.is_done:
        pause = store.purger.step(now_ms)
        yield pause
        carry_out(store, pause)
    assert job.error is None, job.error


def carry_out(store: Store, pause: Pause) -> None:
    """What a step asks for before the next."""
    match pause:
        case WaitDurable():
            store.sync()
        case DropTicket() | FreeTicket():
            pause.run()
