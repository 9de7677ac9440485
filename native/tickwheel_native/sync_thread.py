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


def begin(thread: Handle, descriptors: Sequence[int]) -> object:
    """Syncs these files, up to the first that fails. What is returned must be kept until the end."""
    kept = ffi.new("int[]", descriptors)
    lib.tw_sync_thread_begin(thread, kept, len(descriptors))
    return kept


def ended(thread: Handle) -> int:
    """How many nanoseconds the sync took that has ended. Raises its ``OSError``."""
    took_ns = ffi.new("uint64_t *")
    result = lib.tw_sync_thread_ended(thread, took_ns)
    if result:
        raise OSError(-result, os.strerror(-result))
    return int(took_ns[0])


def stop(thread: Handle) -> None:
    """Ends it, after what it does: ``ended`` may still be asked for."""
    lib.tw_sync_thread_stop(thread)


def free(thread: Handle) -> None:
    """Of one that was stopped."""
    lib.tw_sync_thread_free(thread)
