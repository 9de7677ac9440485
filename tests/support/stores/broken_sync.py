"""A disk that takes bytes and does not sync them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence

from tickwheel_native import sync_thread

_NO_FILE = -1


def break_syncs(
    is_broken: Callable[[], bool], set_attribute: Callable[[object, str, object], None] = setattr
) -> None:
    """From now on syncs of this process fail while the disk is broken: the thread gets a file that cannot be synced, so
    it sends no reply either. ``set_attribute``: that of a monkeypatch, perhaps."""
    begin, ended = sync_thread.begin, sync_thread.ended

    def begun(thread: object, descriptors: Sequence[int], behind: sync_thread.Behind | None = None) -> object:
        return begin(thread, [_NO_FILE] if is_broken() else descriptors, behind)

    def has_ended(thread: object) -> tuple[int, int]:
        try:
            return ended(thread)
        except OSError:
            raise OSError(errno.EIO, os.strerror(errno.EIO)) from None

    set_attribute(sync_thread, "begin", begun)
    set_attribute(sync_thread, "ended", has_ended)
