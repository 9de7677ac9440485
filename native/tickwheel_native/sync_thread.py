"""``sync_thread.h``: a thread that syncs files beside Python."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from tickwheel_native._native import ffi, lib

#: Of a thread.
Handle: TypeAlias = Any


def start(told_fd: int) -> Handle:
    """``told_fd``: an eventfd, to which 1 is added at the end of each sync. Raises ``OSError``."""
    thread = lib.tw_sync_thread_start(told_fd)
    if thread == ffi.NULL:
        raise OSError(ffi.errno, f"a thread could not be started: {os.strerror(ffi.errno)}")
    return thread


class Behind(NamedTuple):
    """What is done behind a sync that has not failed."""

    reply_to: int
    """A socket, to which ``reply`` is sent then, as far as it takes that at once."""
    reply: bytes
    mark: tuple[int, int, bytes] | None
    """What is written to a file before, and at which offset."""


def begin(thread: Handle, descriptors: Sequence[int], behind: Behind | None = None) -> object:
    """Syncs these files, up to the first that fails. What is returned must be kept until the end."""
    files = ffi.new("int[]", descriptors)
    if behind is None:
        lib.tw_sync_thread_begin(thread, files, len(descriptors), ffi.NULL)
        return files
    reply_to, reply, mark = behind
    mark_fd, mark_offset, mark_data = mark or (-1, 0, b"")
    kept = ffi.from_buffer(mark_data), ffi.from_buffer(reply)
    told = (kept[0], len(mark_data), mark_offset, kept[1], len(reply), mark_fd, reply_to)
    lib.tw_sync_thread_begin(thread, files, len(descriptors), ffi.new("tw_behind_sync *", told))
    return files, kept


def withhold(thread: Handle) -> None:
    """The reply is not sent any more, if it was not yet: its socket may be closed."""
    lib.tw_sync_thread_withhold(thread)


def ended(thread: Handle) -> tuple[int, int]:
    """How many nanoseconds the sync took that has ended, and how many bytes of its reply were sent. Raises its
    ``OSError``."""
    told = ffi.new("uint64_t[2]")
    result = lib.tw_sync_thread_ended(thread, told, told + 1)
    if result:
        raise OSError(-result, os.strerror(-result))
    return int(told[0]), int(told[1])


def stop(thread: Handle) -> None:
    """Ends it, after what it does."""
    lib.tw_sync_thread_stop(thread)
