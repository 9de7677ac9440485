"""What a run writes down, and how its files are called."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Final, TypeVar
from urllib.parse import quote

import msgspec

from tickwheel.spark.errors import ArchiveDamaged, ArchiveError

FORMAT: Final = 1
OURS: Final = "_tickwheel"
RUNS: Final = f"{OURS}/runs"
MANIFEST: Final = ".json"
OUTCOME: Final = ".done"
SUFFIX: Final = ".zstd.parquet"
_EPOCH: Final = date(1970, 1, 1)

S = TypeVar("S", bound=msgspec.Struct)


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a run. ``name``: relative to the archive. ``checksum``: of all its rows, ``ids_checksum``: of their
    ids, as 16 hexadecimal digits. Times in epoch ms; bounds are inclusive."""

    name: str
    topic: str
    rows: int
    bytes: int
    checksum: str
    ids_checksum: str
    first_deliver_ms: int
    last_deliver_ms: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has archived: messages of one log that were done before ``done_before_ms``."""

    format: int
    run: str
    log_id: str
    created_ms: int
    done_before_ms: int
    states: list[str]
    files: list[FileEntry]

    @property
    def rows(self) -> int:
        return sum(entry.rows for entry in self.files)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the broker has said: how many messages it dropped, how many were gone, and first id and count of those that
    stay because some group is not done with them any more."""

    dropped: int
    gone: int
    kept: list[tuple[int, int]]


def escaped(name: str) -> str:
    """A topic as the name of a directory, in the way of Hive and Spark: what is not plain becomes %XX of its UTF-8."""
    return quote(name, safe="")


def partition(topic: str, day: int) -> str:
    """The directory for messages of a topic that were due on a UTC day, which is numbered from 1970 on."""
    return f"topic={escaped(topic)}/date={(_EPOCH + timedelta(days=day)).isoformat()}"


def new_run(now_ms: int, random_bytes: bytes) -> str:
    """A name for a run; names are in the order of time."""
    return f"{datetime.fromtimestamp(now_ms // 1000, UTC):%Y%m%dT%H%M%SZ}-{random_bytes.hex()}"


def parse(content: bytes, kind: type[S], shown: str) -> S:
    """What a file holds. Raises ``ArchiveDamaged``, ``ArchiveError``."""
    try:
        found = msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ArchiveDamaged(f"{shown} cannot be read: {error}.") from None
    if isinstance(found, Manifest) and found.format != FORMAT:
        raise ArchiveError(
            f"{shown} has the format {found.format}, and this version knows {FORMAT}.",
            advice="Use the version that wrote it, or a newer one.",
        )
    return found
