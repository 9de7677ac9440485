"""``sync_thread.h``: a thread that syncs files beside Python."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypeAlias

from tickwheel_native._native import ffi, lib

#: Of a thread.
Handle: TypeAlias = Any


def start(told_fd: int) -> Handle:
    """``told_fd``: an eventfd, to which 1 is added at the end of each sync. Raises ``OSError``."""
    thread = lib.tw_sync_thread_start(told_fd)
    if thread == ffi.NULL:
        raise OSError(ffi.errno, f"a thread could not be started: {os.strerror(ffi.errno)}")
    return thread


def begin(thread: Handle, descriptors: Sequence[int], reply_to: int = -1, reply: bytes = b"") -> object:
    """Syncs these files, up to the first that fails. If none does, sends the reply to the socket ``reply_to``, as far
    as that takes it at once. What is returned must be kept until the end."""
    files, data = ffi.new("int[]", descriptors), ffi.from_buffer(reply)
    lib.tw_sync_thread_begin(thread, files, len(descriptors), reply_to, data, len(reply))
    return files, data


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
