"""A table's file: whose it is, and what is left of one that was only begun."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from timerlog.errors import StoreError
from timerlog.files.mapped_file import SMALLEST_STEP_BYTES, Region
from timerlog.tables.table import Table

LOG_ID = 7
MIB = 1024 * 1024


def opened(path: Path, log_id: int = LOG_ID) -> Table:
    return Table(path=path, magic=b"TWTESTAB", dtype=np.dtype(np.uint64), log_id=log_id, room_bytes=MIB)


def test_a_table_keeps_its_items(tmp_path: Path) -> None:
    table = opened(tmp_path / "table")
    assert table.is_new
    table.ensure(10)
    table.items[9] = 99
    table.region.close()
    table = opened(tmp_path / "table")
    assert not table.is_new
    assert table.items[9] == 99
    table.region.close()
    with pytest.raises(StoreError, match="belong"):
        opened(tmp_path / "table", LOG_ID + 1)


class KilledError(Exception):
    """The process ends there."""


def test_a_table_whose_creation_was_interrupted_is_new(tmp_path: Path) -> None:
    """Between its first blocks and its header."""
    path = tmp_path / "table"
    with mock.patch.object(Region, "write", side_effect=KilledError), pytest.raises(KilledError):
        opened(path)
    assert path.stat().st_size == SMALLEST_STEP_BYTES
    table = opened(path)
    assert table.is_new
    table.ensure(10)
    table.items[9] = 99
    table.region.close()
    table = opened(path)
    assert (table.is_new, table.items[9]) == (False, 99)
    table.region.close()


def test_a_table_that_lost_its_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "table"
    table = opened(path)
    table.ensure(10)
    table.items[9] = 99
    table.region.close()
    with path.open("r+b") as file:
        file.write(bytes(64))
    with pytest.raises(StoreError, match="belong"):
        opened(path)
    os.truncate(path, 4 * SMALLEST_STEP_BYTES)
    with path.open("r+b") as file:
        file.write(bytes(SMALLEST_STEP_BYTES))
    with pytest.raises(StoreError, match="belong"):
        opened(path)
