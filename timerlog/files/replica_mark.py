"""The file ``replica`` in a data directory: it belongs to a node of a cluster, and to that cluster's log.

What a broker of its own, or a repair, would write there the cluster does not have: so it is refused.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from timerlog.errors import DECODE_ERRORS, DamagedMark, ReplicaDirectory
from timerlog.files.disk import Disk
from timerlog.files.small_files import seal, unseal

NAME: Final = "replica"
FORMAT: Final = 1


class ReplicaMark(msgspec.Struct, frozen=True):
    """``log_id``: 16 hexadecimal digits. ``genesis``: as the log's first record has it, in JSON; empty in directories
    of older versions."""

    cluster: str
    shard: int
    log_id: str
    genesis: str = ""


def mark_replica(disk: Disk, mark: ReplicaMark) -> None:
    """Before anything of the cluster's log is written there. Raises ``DiskFull``."""
    if disk.read(NAME) != (content := seal(FORMAT, mark)):
        disk.replace(NAME, content, durable=True)


def read_mark(directory: Path) -> ReplicaMark | None:
    """None: the directory is not a node's. Raises ``DamagedMark``, ``UnsupportedFormat``."""
    try:
        data = (directory / NAME).read_bytes()
    except FileNotFoundError:
        return None
    body = unseal(data, FORMAT, f"{directory / NAME}")
    if body is not None:
        with suppress(*DECODE_ERRORS):
            return msgspec.json.decode(body, type=ReplicaMark)
    raise DamagedMark(f"{directory / NAME}, which says to which cluster this directory belongs, is damaged")


def refuse_replica(directory: Path) -> None:
    """Raises ``ReplicaDirectory``, ``DamagedMark``, ``UnsupportedFormat``."""
    mark = read_mark(directory)
    if mark is not None:
        raise ReplicaDirectory(f"{directory} belongs to a node of cluster {mark.cluster}")
