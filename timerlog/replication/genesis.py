"""GENESIS: which log a partition holds, and the settings that decide what its records do.

All replicas have these settings from the log itself. What an owner decides by a setting of its own would differ after
the next takeover.
"""

from __future__ import annotations

from typing import Final

import msgspec

from timerlog.errors import DECODE_ERRORS, BadSettings, DamagedSharedLog, UnsupportedFormat
from timerlog.layout import FORMAT_VERSION, SEGMENT_HEADER_BYTES
from timerlog.replication.record import Head, Kind, pack
from timerlog.settings import StoreSettings

#: The settings that all replicas have from the log.
SHARED: Final = (
    "segment_bytes",
    "max_topics",
    "max_groups",
    "ack_wait_ms",
    "min_backoff_ms",
    "max_backoff_ms",
    "purge_after_ms",
)


class Genesis(msgspec.Struct, frozen=True, kw_only=True):
    """``log_id``: 16 hexadecimal digits. Times in ms, sizes in bytes; see ``StoreSettings``. ``began_ms``: when the log
    was made, and so the first tick: what was due while no node served becomes due in the order of its times.
    ``timeline``: 0, or which one the first owner begins, because the log has forgotten what was told after
    ``since_ms``."""

    cluster: str
    shard: int
    log_id: str
    segment_bytes: int
    max_topics: int
    max_groups: int
    ack_wait_ms: int
    min_backoff_ms: int
    max_backoff_ms: int
    purge_after_ms: int
    began_ms: int = 0
    timeline: int = 0
    since_ms: int = 0
    format: int = FORMAT_VERSION

    @property
    def log_number(self) -> int:
        """The log's id as segment headers have it."""
        return int(self.log_id, 16)

    def settings_for(self, node: StoreSettings) -> StoreSettings:
        """A node's settings for this log. Raises ``BadSettings`` where it says something else than the log."""
        differing = [
            f"{name} is {getattr(node, name)} here and {getattr(self, name)} in the cluster"
            for name in SHARED
            if getattr(node, name) not in (getattr(self, name), getattr(StoreSettings(), name))
        ]
        if differing:
            raise BadSettings(
                f"{'; '.join(differing)}: take it out of this node's settings, the log says what holds"
            )
        return msgspec.structs.replace(node, **{name: getattr(self, name) for name in SHARED})


def genesis_of(
    cluster: str, shard: int, log_id: int, settings: StoreSettings, *, began_ms: int = 0
) -> Genesis:
    """The first record of a new log."""
    shared = {name: getattr(settings, name) for name in SHARED}
    return Genesis(cluster=cluster, shard=shard, log_id=f"{log_id:016x}", began_ms=began_ms, **shared)


def pack_genesis(genesis: Genesis) -> bytes:
    """The body of a GENESIS record."""
    return msgspec.json.encode(genesis)


def genesis_record(genesis: Genesis, clock_ms: int) -> bytes:
    """The record with which a shared log begins."""
    return pack(
        Head(kind=Kind.GENESIS, flags=0, term=0, node=0, seq=0, position=0, chain=0, clock_ms=clock_ms),
        pack_genesis(genesis),
    )


class Upload(msgspec.Struct, frozen=True, kw_only=True):
    """A log that was there before a cluster had it. ``first``: where its first record stands; ``end``: where it ends;
    ``chain``: the CRC-32C of all between, as the rule counts it. It is a log of nodes once all of it counts."""

    genesis: Genesis
    first: int
    end: int
    chain: int


def upload_record(upload: Upload, clock_ms: int) -> bytes:
    """The record with which the shared log of such a log begins."""
    assert upload.first % upload.genesis.segment_bytes == SEGMENT_HEADER_BYTES, (
        "a log begins where a segment does"
    )
    return pack(
        Head(kind=Kind.UPLOAD, flags=0, term=0, node=0, seq=0, position=0, chain=0, clock_ms=clock_ms),
        msgspec.json.encode(upload),
    )


def unpack_upload(body: bytes | memoryview) -> Upload:
    """Raises ``DamagedLog``, ``UnsupportedFormat``."""
    try:
        upload = msgspec.json.decode(bytes(body), type=Upload)
    except DECODE_ERRORS as error:
        raise DamagedSharedLog(f"the replicated log does not begin with what it is: {error}") from error
    return msgspec.structs.replace(upload, genesis=unpack_genesis(pack_genesis(upload.genesis)))


def start_record(genesis: Genesis, before: Head) -> bytes:
    """The record that stands before the one with which a segment begins, whose head is ``before``."""
    assert before.kind is Kind.DATA, "a START stands before bytes of the log"
    assert before.position % genesis.segment_bytes == SEGMENT_HEADER_BYTES, "a segment begins behind a START"
    return pack(before._replace(kind=Kind.START, flags=0), pack_genesis(genesis))


class Announcements:
    """Finds the DATA that have their START right before them."""

    def __init__(self) -> None:
        #: The record that was read last and its offset, if it is a START.
        self._last: tuple[Head, int] | None = None

    def read(self, head: Head, offset: int) -> bool:
        """A reader has come to a record. Whether a START stands where it belongs: right before this DATA, with which
        its segment begins."""
        assert self._last is None or self._last[1] < offset, "records are read in their order"
        last, self._last = self._last, (head, offset) if head.kind is Kind.START else None
        if last is None or head.kind is not Kind.DATA:
            return False
        start, start_offset = last
        return start_offset == offset - 1 and _place_in(start) == _place_in(head)


def _place_in(head: Head) -> tuple[int, int, int, int, int]:
    return (head.term, head.node, head.seq, head.position, head.chain)


def unpack_genesis(body: bytes | memoryview) -> Genesis:
    """Raises ``DamagedSharedLog``, ``UnsupportedFormat``."""
    try:
        genesis = msgspec.json.decode(bytes(body), type=Genesis)
        genesis.log_number  # noqa: B018 - it must be a number
    except (*DECODE_ERRORS, ValueError) as error:
        raise DamagedSharedLog(f"the replicated log does not begin with what it is: {error}") from error
    if genesis.format > FORMAT_VERSION:
        raise UnsupportedFormat(
            f"the replicated log has format {genesis.format}; this version reads up to {FORMAT_VERSION}"
        )
    return genesis
