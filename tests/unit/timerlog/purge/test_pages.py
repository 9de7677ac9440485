"""Pages of the tables: those on which nothing is left go, and no other; none that went is written again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.native.driver import NOW_MS, SMALL, pump
from tests.support.native.frames import send
from tests.support.stores.purging import LATER_MS, ack, content, take
from timerlog.files.window import PAGE_BYTES
from timerlog.layout import HEADER_BYTES
from timerlog.purge.pages import Reclaim
from timerlog.store import Store
from timerlog.tables.table import Table

COUNT = 6_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Messages in a topic, all acked but each thousandth."""
    opened = Store.open(tmp_path / "data", SMALL, NOW_MS)
    topic = opened.topics.open("t", NOW_MS)
    group = opened.groups.open(topic, "g", NOW_MS)
    for _ in range(COUNT // 1_000):
        opened.produce.ingest(send(topic, [b""] * 1_000, times_ms=[NOW_MS] * 1_000), NOW_MS)
    pump(opened, NOW_MS + 10)
    ids, epochs = take(opened, group, COUNT, NOW_MS + 10)
    done = [index for index, message_id in enumerate(ids) if message_id % 1_000]
    ack(opened, group, [ids[index] for index in done], [epochs[index] for index in done], NOW_MS + 10)
    opened.sync()
    yield opened
    opened.close(clean=False)


def empty_pages(table: Table) -> set[int]:
    """Pages of the table's file that take no disk space. The last one is left out: an item may go on behind it, so it
    is never given back; and on tmpfs a page counts as a hole until it is written first."""
    assert table.region.path is not None
    fd = os.open(table.region.path, os.O_RDONLY)
    try:
        return {
            page
            for page in range(table.region.allocated_bytes // PAGE_BYTES - 1)
            if _data_from(fd, page * PAGE_BYTES) >= (page + 1) * PAGE_BYTES
        }
    finally:
        os.close(fd)


def _data_from(fd: int, offset: int) -> int:
    try:
        return os.lseek(fd, offset, os.SEEK_DATA)
    except OSError:
        return 1 << 62


def pages_of_items(table: Table, numbers: list[int]) -> set[int]:
    places = np.array(numbers) * table.dtype.itemsize + HEADER_BYTES
    return set((places // PAGE_BYTES).tolist()) | set(
        ((places + table.dtype.itemsize - 1) // PAGE_BYTES).tolist()
    )


def test_only_pages_without_anything_go(store: Store) -> None:
    before = content(store)
    store.purge(LATER_MS)
    kept = content(store)
    assert list(kept) == list(range(1_000, COUNT + 1, 1_000))
    assert kept == {message_id: before[message_id] for message_id in kept}
    seqs = [int(store.tables.rows["topic_seq"][message_id]) for message_id in kept]
    rows, deliveries = store.tables.messages, store.tables.groups[1].deliveries
    for table, numbers in ((rows, list(kept)), (deliveries, seqs)):
        gone, living = empty_pages(table), pages_of_items(table, numbers)
        assert not gone & (living | {0})
        last = (HEADER_BYTES + COUNT * table.dtype.itemsize) // PAGE_BYTES
        assert gone >= set(range(1, last)) - living


def test_pages_that_messages_will_still_use_stay(store: Store) -> None:
    store.purge(LATER_MS)
    rows = store.tables.messages
    page = (HEADER_BYTES + store.tables.next_id * rows.dtype.itemsize) // PAGE_BYTES
    assert page not in empty_pages(rows)


def test_a_free_page_is_never_written_again(store: Store) -> None:
    """On a full disk that write would end the process. Everything is tried that touches purged messages."""
    store.purge(LATER_MS)
    tables = [store.tables.messages, store.tables.groups[1].deliveries, store.tables.topics[1].arrivals]
    gone = [empty_pages(table) for table in tables]
    assert all(gone)
    ids = list(range(1, 900))
    assert set(store.change.cancel(ids, LATER_MS)) == {"not_found"}
    assert set(store.change.reschedule(ids, LATER_MS * 2, LATER_MS)) == {"not_found"}
    store.produce.ingest(send(1, [b"new"] * 10), LATER_MS)
    pump(store, LATER_MS + 1)
    group = store.groups.open(1, "late", LATER_MS)
    assert len(take(store, group, 100, LATER_MS)[0]) == 10 + COUNT // 1_000
    pump(store, LATER_MS + 100_000)
    store.purge(LATER_MS * 2)
    for table, before in zip(tables, gone, strict=True):
        assert before <= empty_pages(table)


def test_the_first_one_after_an_interrupted_run_looks_everywhere(store: Store) -> None:
    assert not Reclaim(store.tables).is_needed, "nothing was purged ever"
    store.purge(LATER_MS)
    reclaim = Reclaim(store.tables)
    assert reclaim.is_needed
    found = {
        (region.path.name, page)
        for pieces in reclaim.steps()
        for region, start, end in pieces
        if region.path
        for page in range(start // PAGE_BYTES, end // PAGE_BYTES)
    }
    for table in (store.tables.messages, store.tables.groups[1].deliveries):
        assert table.region.path is not None
        name = table.region.path.name
        assert {page for file, page in found if file == name} >= empty_pages(table) - {0}
    assert not reclaim.is_needed


def test_a_topic_that_is_deleted_meanwhile_is_passed_over(store: Store) -> None:
    store.purge(LATER_MS)
    steps = Reclaim(store.tables).steps()
    assert next(steps)
    store.topics.delete("t")
    names = {region.path.name for pieces in steps for region, _, _ in pieces if region.path}
    assert names == {"messages.table"}


def test_a_group_that_is_deleted_while_its_pages_are_freed(store: Store) -> None:
    (topic_id,) = store.tables.topics
    group_id = store.tables.topics[topic_id].groups["g"]
    table = store.tables.groups[group_id].deliveries
    pieces = Reclaim(store.tables)._free(table, np.arange(1, 200), topic_id)
    next(pieces)
    store.groups.delete("t", "g")
    assert list(pieces) == [], "it has no addresses any more"
