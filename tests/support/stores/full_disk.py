"""A disk that becomes full under a store, and has room again afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from timerlog.commitlog.log import CommitLog
from timerlog.errors import DiskFull
from timerlog.store import Store


@contextmanager
def full_disk(store: Store, *, for_messages_only: bool = False) -> Iterator[None]:
    """No record fits any more; or no message does, and the reserve for control records is still there."""
    native = store.tables.native
    store.log.flush()
    room = native.segment_end, native.message_limit
    native.message_limit = store.log.appended_position
    if not for_messages_only:
        native.segment_end = store.log.appended_position
    try:
        with mock.patch.object(CommitLog, "make_room", side_effect=DiskFull("the disk is full")):
            yield
    finally:
        native.segment_end, native.message_limit = room
