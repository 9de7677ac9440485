"""The checkpoint: up to which position the derived tables hold everything, so that a start need not read the whole log.

The tables change in place, and the operating system writes their pages whenever it likes. So they can be trusted

* after a clean shutdown, which syncs them and says so here, with their checksums, or
* within the same boot of the machine: a killed process loses nothing that it had written, and because every change
  is handed to the log *before* it is made in a table, replaying from here makes the tables right again.

After a power loss neither holds, and the tables are rebuilt from the log.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

import msgspec

from tickwheel_native import crc32c
from timerlog.errors import DECODE_ERRORS, UnsupportedFormat
from timerlog.files.disk import Disk
from timerlog.layout import FORMAT_VERSION
from timerlog.tables.base_record import Base

NAME: Final = "checkpoint"
MAGIC: Final = b"TWCHECK1"
#: Of the checkpoint alone: one that an older version wrote is not used, and the log is read instead.
VERSION: Final = 3


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT_VERSION
    version: int = VERSION
    log_id: int
    position: int  #: the tables hold every record before it
    durable_position: int
    clean: bool
    boot_id: str
    base: Base
    segments: dict[int, int] = {}  #: base → size in bytes; files only grow, so a shorter one was damaged
    tables: dict[str, int] = {}  #: file name → size in bytes, of the derived files
    sums: dict[str, int] = {}  #: of a clean one: file name → checksum, of the derived files


def boot_id() -> str:
    """Names this boot of the machine; empty where the system does not tell (then only clean checkpoints count)."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def pack(checkpoint: Checkpoint) -> bytes:
    """The file's content."""
    body = msgspec.msgpack.encode(checkpoint)
    return MAGIC + struct.pack("<I", crc32c(body)) + body


class _Versions(msgspec.Struct, frozen=True):
    """What can be understood of any version's checkpoint."""

    format: int
    version: int


def load(disk: Disk) -> Checkpoint | None:
    """The last checkpoint; None when there is none or it is damaged (it is never needed, only useful). Raises
    ``UnsupportedFormat`` for one that a newer version wrote."""
    data = disk.read(NAME)
    if data is None or data[:8] != MAGIC or len(data) < 12:
        return None
    body = data[12:]
    if crc32c(body) != struct.unpack("<I", data[8:12])[0]:
        return None
    try:
        found = msgspec.msgpack.decode(body, type=_Versions)
        if found.format > FORMAT_VERSION or found.version > VERSION:
            raise UnsupportedFormat(
                f"the checkpoint has format {found.format}.{found.version}; this version reads up to "
                f"{FORMAT_VERSION}.{VERSION}"
            )
        if (found.format, found.version) != (FORMAT_VERSION, VERSION):
            return None
        return msgspec.msgpack.decode(body, type=Checkpoint)
    except DECODE_ERRORS:
        return None


def is_trustworthy(checkpoint: Checkpoint) -> bool:
    return checkpoint.clean or (checkpoint.boot_id != "" and checkpoint.boot_id == boot_id())
