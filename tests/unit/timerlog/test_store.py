"""Opening what cannot be opened says what to do."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.support.native.driver import NOW_MS, SMALL, pump
from tests.support.native.frames import send
from tickwheel_broker.errors import from_store
from timerlog.errors import BadDirectory, BadSettings, DiskFull
from timerlog.files.window import PAGE_BYTES
from timerlog.settings import StoreSettings
from timerlog.store import Store
from timerlog.tables.tables import Tables

GIB = 1 << 30


def test_a_path_that_cannot_be_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(BadDirectory) as caught:
        Store.open(tmp_path / "file" / "data", SMALL, NOW_MS)
    assert from_store(caught.value).code == "bad_directory"


def test_frames_larger_than_the_segments_of_the_directory(tmp_path: Path) -> None:
    Store.open(tmp_path, SMALL, NOW_MS).close()
    with pytest.raises(BadSettings, match="lower max_frame_bytes") as caught:
        Store.open(tmp_path, StoreSettings(), NOW_MS)
    assert from_store(caught.value).code == "bad_config"
    Store.open(tmp_path, SMALL, NOW_MS).close()


def address_space_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * PAGE_BYTES


def test_tables_that_cannot_be_opened_give_their_address_space_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that tries again and again, because the disk is full, would have none left."""

    def fail(tables: Tables, rows: int) -> None:
        raise DiskFull("the disk is full")

    monkeypatch.setattr(Tables, "ensure_rows", fail)
    before = address_space_bytes()
    with pytest.raises(DiskFull) as caught:  # which keeps the tables, as a traceback does
        Tables(directory=tmp_path, log_id=1, settings=SMALL)
    assert caught.value
    assert address_space_bytes() - before < GIB


def test_no_descriptor_for_a_segment_or_a_table_is_no_broken_disk(store: Store, tmp_path: Path) -> None:
    """Sends are refused as on a full disk, nothing is lost, and it goes on once a file can be opened."""
    topic = store.topics.open("t", NOW_MS)
    store.produce.ingest(send(topic, [b"before"], times_ms=[NOW_MS]), NOW_MS)
    segments = len(store.log.segments)
    true, kinds = os.open, set()

    def refuse(path: Any, flags: int, mode: int = 0o777, **options: Any) -> int:
        kinds.add(Path(path).suffix)
        raise OSError(errno.EMFILE, "Too many open files", str(path))

    with mock.patch("os.open", refuse):
        with pytest.raises(DiskFull, match="Too many open files"):
            store.log.roll()
        with pytest.raises(DiskFull, match="Too many open files"):
            store.tables.ensure_rows(10_000_000)
        with pytest.raises(DiskFull, match="Too many open files"):
            store.disk.replace("note", b"x", durable=True)
        store.housekeeping(NOW_MS + 1_000_000)
    with mock.patch("os.open", lambda path, *rest, **options: (
        refuse(path, 0) if Path(path).is_dir() else true(path, *rest, **options)
    )), pytest.raises(DiskFull):  # fmt: skip
        store.log.roll()
    assert kinds >= {".log", ".table", ".new"}
    assert len(store.log.segments) == segments
    store.log.roll()
    store.produce.ingest(send(topic, [b"after"], times_ms=[NOW_MS]), NOW_MS)
    assert pump(store, NOW_MS + 1) == 2
