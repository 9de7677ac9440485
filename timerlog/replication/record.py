"""The records that carry a CommitLog from its owner to all replicas.

The order in which they stand is the same for every reader (a partition of Kafka gives it). A record is a head of
40 bytes and a body. ``docs/file-formats.md`` has the layout.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from typing import Final, NamedTuple

import msgspec

from tickwheel_native import Buffer, crc32c
from timerlog.commitlog.durability import Link, Piece, end_of
from timerlog.errors import DECODE_ERRORS, DamagedSharedLog, UnsupportedFormat
from timerlog.layout import TRANSACTION_ID_BYTES

MAGIC: Final = 0x5754
VERSION: Final = 1
#: Of a body: with its head it stays below 1,000,000 bytes, what Kafka takes without being told otherwise.
MAX_BODY_BYTES: Final = 900_000
#: Of DATA: with it a batch is whole.
LAST: Final = 1

_HEAD: Final = struct.Struct("<HBBIIQQIq")
HEAD_BYTES: Final = _HEAD.size
assert HEAD_BYTES == 40

Range = tuple[int, bytes]
"""Where in the log, and what stands there."""

_LinkBody = tuple[bytes, tuple[int, ...], tuple[tuple[int, int], ...]]


class Kind(IntEnum):
    """What a record says."""

    GENESIS = 1  #: which log this is, and the settings that all replicas need to have
    FENCE = 2  #: from here on, only what this node writes in this term counts
    DATA = 3  #: bytes of the log
    BEAT = 4  #: the owner is there
    UPLOAD = 5  #: as GENESIS, of a log that was there before: what follows is that log, up to where this says
    START = 6  #: of such a log: which log it is; the record behind it begins a segment
    STAGE = 7  #: bytes of a bulk job's files, which belong to the log if a LINK says so before the next FENCE
    LINK = 8  #: the files that were staged are the next segments


class Head(NamedTuple):
    """``chain``: the CRC-32C of all bytes that counted before this record. ``position``: of DATA, where its bytes
    belong; of LINK, where the log goes on behind the segments; of STAGE, where the bytes belong in the job's files, if
    each began at a multiple of the segment's size. ``clock_ms``: the writer's, epoch milliseconds."""

    kind: Kind
    flags: int
    term: int
    node: int
    seq: int  #: counts from 0, the FENCE, in each term
    position: int
    chain: int
    clock_ms: int

    @property
    def is_last(self) -> bool:
        return bool(self.flags & LAST)


class Staging(NamedTuple):
    """Bytes of a job's files. ``position``: see ``Head``. Without bytes: nothing comes of the job."""

    job: bytes
    position: int
    data: Buffer

    @property
    def is_start(self) -> bool:
        """Whether the files of a job begin here, perhaps once more."""
        return self.position == 0 and not self.is_end

    @property
    def is_end(self) -> bool:
        """Whether nothing comes of the job."""
        return not len(self.data)


def pack_link(link: Link) -> bytes:
    """The body of a LINK."""
    return msgspec.msgpack.encode(link[1:])


def unpack_link(position: int, body: Buffer) -> Link:
    """Raises ``DamagedSharedLog``."""
    try:
        return Link(position, *msgspec.msgpack.decode(body, type=_LinkBody))
    except DECODE_ERRORS as error:
        raise DamagedSharedLog(f"what was to be linked behind position {position} cannot be read") from error


def unpack_staging(position: int, body: Buffer) -> Staging:
    """Raises ``DamagedSharedLog``."""
    view = memoryview(body)
    if len(view) < TRANSACTION_ID_BYTES:
        raise DamagedSharedLog("a record with bytes of a bulk job does not say of which job")
    return Staging(bytes(view[:TRANSACTION_ID_BYTES]), position, view[TRANSACTION_ID_BYTES:])


def pack(head: Head, body: Buffer = b"") -> bytes:
    """A record."""
    kind, flags, term, node, seq, position, chain, clock_ms = head
    packed = _HEAD.pack(MAGIC, (VERSION << 4) | kind, flags, term, node, seq, position, chain, clock_ms)
    return packed + bytes(body)


def unpack(record: Buffer) -> tuple[Head, memoryview] | None:
    """The head and the body; None for what is no such record. Raises ``UnsupportedFormat`` for a newer one."""
    view = memoryview(record)
    if len(view) < HEAD_BYTES:
        return None
    magic, kind, *rest = _HEAD.unpack_from(view)
    if magic != MAGIC:
        return None
    if kind >> 4 != VERSION or kind & 15 not in Kind._value2member_map_:
        raise UnsupportedFormat(
            f"the replicated log has a record of kind {kind & 15}, format {kind >> 4}; this version reads format "
            f"{VERSION}: install the version of the node that wrote it"
        )
    return Head(Kind(kind & 15), *rest), view[HEAD_BYTES:]


def split(ranges: Iterable[Range], max_bytes: int) -> Iterator[Range]:
    """Pieces that fit into records. Each range begins one: so a segment's first byte is a record's first byte."""
    assert max_bytes > 0, "no byte is left out"
    for position, data in ranges:
        for start in range(0, len(data), max_bytes):
            yield position + start, data[start : start + max_bytes]


def _parts(pieces: Iterable[Piece], max_bytes: int) -> Iterator[tuple[Kind, int, bytes]]:
    behind = 0
    for piece in pieces:
        start = piece.position if isinstance(piece, Link) else piece[0]
        assert start >= behind, "pieces of a batch follow each other"
        behind = end_of(piece)
        if isinstance(piece, Link):
            yield Kind.LINK, piece.position, pack_link(piece)
        else:
            yield from ((Kind.DATA, position, data) for position, data in split([piece], max_bytes))


class Writer:
    """Makes the records of one term, in order."""

    def __init__(
        self, node: int, term: int, chain: int, wrote: Callable[[int, int], object] = lambda seq, chain: None
    ) -> None:
        """``chain``: of the log as it was when the term's FENCE was read back. ``wrote`` is told each record's number,
        and the chain behind it."""
        assert term > 0, "a term begins with a FENCE"
        self._node, self._term, self._chain, self._wrote = node, term, chain, wrote
        #: Of the next record; the FENCE was 0.
        self.seq = 1

    def data(self, pieces: Iterable[Piece], clock_ms: int, max_bytes: int | None = None) -> list[bytes]:
        """The records of one batch: all of them count, or none."""
        parts = list(_parts(pieces, max_bytes or MAX_BODY_BYTES))
        return [
            self._chained(kind, LAST if number == len(parts) else 0, position, clock_ms, body)
            for number, (kind, position, body) in enumerate(parts, 1)
        ]

    def stage(
        self, job: bytes, ranges: Iterable[Range], clock_ms: int, max_bytes: int | None = None
    ) -> list[bytes]:
        """Records that each count by themselves. The positions of ``ranges`` are those of ``Staging``."""
        assert len(job) == TRANSACTION_ID_BYTES, "a job's bytes stand behind its number"
        most = (max_bytes or MAX_BODY_BYTES) - len(job)
        pieces = [piece for each in ranges for piece in (split([each], most) if each[1] else [each])]
        return [self._chained(Kind.STAGE, 0, position, clock_ms, job + data) for position, data in pieces]

    def _chained(self, kind: Kind, flags: int, position: int, clock_ms: int, body: bytes) -> bytes:
        assert len(body) <= MAX_BODY_BYTES, "the shared log takes every record"
        head = self._head(kind, flags, position, clock_ms)
        self._chain = crc32c(body, self._chain)
        self._wrote(head.seq, self._chain)
        return pack(head, body)

    def beat(self, clock_ms: int, body: bytes = b"") -> bytes:
        """A record that says only that the owner is there. The rule does not look at the ``body``."""
        head = self._head(Kind.BEAT, 0, 0, clock_ms)
        self._wrote(head.seq, self._chain)
        return pack(head, body)

    def _head(self, kind: Kind, flags: int, position: int, clock_ms: int) -> Head:
        head = Head(
            kind=kind,
            flags=flags,
            term=self._term,
            node=self._node,
            seq=self.seq,
            position=position,
            chain=self._chain,
            clock_ms=clock_ms,
        )
        self.seq += 1
        return head


def fence(node: int, term: int, clock_ms: int, body: bytes = b"") -> bytes:
    """The record that begins a term. The rule does not look at the ``body``."""
    assert term > 0, "a term that begins is higher than that of a new log"
    return pack(
        Head(kind=Kind.FENCE, flags=0, term=term, node=node, seq=0, position=0, chain=0, clock_ms=clock_ms),
        body,
    )
