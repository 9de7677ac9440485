"""One owner a directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tickwheel_broker.errors import advice_for
from timerlog.errors import DirectoryLocked, StoreError
from timerlog.files.lock import DirectoryLock


def test_the_second_owner_is_told_the_first_ones_pid(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path / "new" / "data")
    with pytest.raises(DirectoryLocked, match=str(os.getpid())) as caught:
        DirectoryLock(tmp_path / "new" / "data")
    assert "one owner" in advice_for(caught.value)
    lock.release()
    DirectoryLock(tmp_path / "new" / "data").release()


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="cannot use"):
        DirectoryLock(tmp_path / "file")
