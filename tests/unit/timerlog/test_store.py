"""Opening what cannot be opened says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.errors import from_store
from tests.support.driver import NOW_MS, SMALL
from timerlog.errors import BadDirectory, BadSettings, DiskFull
from timerlog.region import PAGE_BYTES
from timerlog.settings import StoreSettings
from timerlog.store import Store
from timerlog.tables import Tables

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
        Tables(tmp_path, 1, SMALL)
    assert caught.value
    assert address_space_bytes() - before < GIB
