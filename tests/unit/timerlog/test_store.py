"""Opening what cannot be opened says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.errors import from_store
from tests.support.driver import NOW_MS, SMALL
from timerlog.errors import BadDirectory, BadSettings
from timerlog.settings import StoreSettings
from timerlog.store import Store


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
