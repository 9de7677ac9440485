"""The native extension: hot paths over buffers. It never allocates, never calls back, and blocks in a
thread of its own or where it is asked to wait.

``lib`` and ``ffi`` are what cffi made of the headers in the folder above, which say what each function does;
``build.py`` beside them says how. This module only adds what more than one package needs.
"""

from __future__ import annotations

from typing import TypeAlias

try:
    from tickwheel_native._native import ffi, lib
except ModuleNotFoundError as error:
    raise ImportError(
        f"{error}. This is the source of Tickwheel, which is not compiled here: run Python in another directory, where "
        "it finds the installed package, or install the source in place: pip install -e ."
    ) from None

Buffer: TypeAlias = bytes | bytearray | memoryview

__all__ = ["Buffer", "crc32c", "ffi", "lib"]


def crc32c(data: Buffer, seed: int = 0) -> int:
    """CRC-32C of ``data``; ``seed`` is the CRC of what came before it."""
    if type(data) is bytes:  # cffi takes its address as it is
        return lib.tw_crc32c(data, len(data), seed)
    view = ffi.from_buffer("uint8_t[]", data)
    return lib.tw_crc32c(view, len(view), seed)
