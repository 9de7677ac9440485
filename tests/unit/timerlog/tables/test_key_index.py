"""The room that the key index gives its entries: what grows, shrinks and is left to the disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.native.driver import MIB, NOW_MS, SMALL
from tests.support.native.frames import send
from tickwheel_native import lib
from timerlog.errors import DiskFull, NoAddressSpace
from timerlog.layout import KEYS_MAGIC
from timerlog.settings import StoreSettings
from timerlog.store import Store
from timerlog.tables import key_index
from timerlog.tables.key_index import KeyIndex
from timerlog.tables.tables import Tables


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[Tables]:
    opened = Tables(directory=tmp_path, log_id=1, settings=StoreSettings())
    yield opened
    opened.close()


def test_it_begins_empty_and_says_what_it_is(tables: Tables, tmp_path: Path) -> None:
    assert (tmp_path / "keys.index").read_bytes()[:8] == KEYS_MAGIC
    assert lib.tw_keys_count(tables.native.keys) == 0
    assert tables.native.keys_allocated == tables.keys.region.allocated_bytes


def test_c_always_knows_how_much_is_allocated(tables: Tables) -> None:
    index = tables.keys
    before = index.region.allocated_bytes
    for _ in range(15):
        index.grow(7)
        assert tables.native.keys_allocated == index.region.allocated_bytes
    assert index.region.allocated_bytes > before
    assert int(lib.tw_keys_fitting(tables.native, 7)) > 0, "large, and nothing is in it"
    index.shrink(7)
    assert int(lib.tw_keys_fitting(tables.native, 7)) == 0
    index.shrink(7)  # changes nothing


def test_what_was_expected_is_there_at_once(tables: Tables) -> None:
    index = tables.keys
    left = index.expect(3, 100_000)
    index.free([left])
    assert index.expect(3, 100_000) == (0, 0), "there is room for that many already"
    assert int(lib.tw_keys_capacity_for(tables.native, 3, 100_000)) == 0


def test_cleared_it_is_as_new(tables: Tables) -> None:
    index, address = tables.keys, tables.keys.region.address
    first_bytes = index.region.allocated_bytes
    index.expect(3, 1_000_000)
    index.clear()
    assert (index.region.allocated_bytes, index.region.address) == (first_bytes, address)
    assert int(lib.tw_keys_capacity_for(tables.native, 3, 100)) > 0


def test_on_a_full_disk_it_stays_as_it_was(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(bytes_needed: int) -> None:
        raise DiskFull("the disk is full")

    monkeypatch.setattr(tables.keys.region, "ensure", refuse)
    before = tables.native.keys_allocated
    for change in (lambda: tables.keys.grow(1), lambda: tables.keys.expect(1, 1 << 20)):
        with pytest.raises(DiskFull):
            change()
    assert tables.native.keys_allocated == before
    monkeypatch.undo()
    tables.keys.grow(1)


def test_a_start_that_fails_gives_its_addresses_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = Tables(directory=tmp_path, log_id=1, settings=StoreSettings())
    closed = []
    monkeypatch.setattr("timerlog.tables.key_index.Region.ensure", _refuse)
    monkeypatch.setattr("timerlog.tables.key_index.Region.close", lambda region: closed.append(region))
    with pytest.raises(DiskFull):
        KeyIndex(None, tables.native)
    monkeypatch.undo()
    assert len(closed) == 1
    closed[0].close()
    tables.close()


def _refuse(region: object, bytes_needed: int) -> None:
    raise DiskFull("the disk is full")


def test_an_index_whose_file_is_used_up_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition that becomes larger or smaller leaves its place behind, which nothing takes again."""
    monkeypatch.setattr(key_index, "_MOST_BYTES", 2 * MIB)
    store = Store.open(tmp_path, SMALL, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    keys = [b"key-%d" % number for number in range(200)]
    store.produce.ingest(send(topic, keys, keys=keys), NOW_MS)
    for _ in range(10):
        store.tables.keys.grow(7)
    with pytest.raises(NoAddressSpace, match="cannot grow") as refused:
        store.tables.keys.expect(7, 1 << 20)
    assert "again" in (refused.value.advice or "")
    assert store.select.find("t", ["key-1", "key-199", "key-200"]) == [2, 200, 0]
    store.close()
    store = Store.open(tmp_path, SMALL, NOW_MS)
    assert not store.tables.keys.is_worn
    store.tables.keys.grow(7)
    assert store.select.find("t", ["key-1", "key-199", "key-200"]) == [2, 200, 0]
    store.close()
