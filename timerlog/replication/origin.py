"""Where a replicated log begins that can be read from there on: at its GENESIS, or where a segment begins.

An owner deletes what no machine needs any more up to the DATA record with which a segment begins. That record's head
says what a reader knows who has read everything before it; the BASE in it says what all of that came to, and which log
it is. Where the log was there before the cluster, its BASE records do not say that: then a START before the DATA does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from tickwheel_native import Buffer
from timerlog.errors import DECODE_ERRORS, DamagedSharedLog, LogCut
from timerlog.layout import RECORD_HEAD_BYTES, RECORD_HEAD_STRUCT, SEGMENT_HEADER_BYTES, RecordType
from timerlog.recovery.checkpoint import Place
from timerlog.replication.genesis import Genesis, Upload, unpack_genesis, unpack_upload
from timerlog.replication.record import Head, Kind, unpack


class Origin(NamedTuple):
    """``first``: the offset of the first record that is there; ``start``: where a replica is that goes on with it.
    None: what was before it is missing, and only a replica that has read that can go on. ``upload``: what must count
    before it is a log."""

    genesis: Genesis
    start: Place | None
    first: int
    upload: Upload | None = None


class _Told(msgspec.Struct, frozen=True):
    """What of BASE is needed here."""

    genesis: bytes | msgspec.UnsetType = msgspec.UNSET


def origin_of(records: Iterable[tuple[int, Buffer]]) -> Origin | None:
    """From the first records that are there, each with its offset; None: it takes more of them. Raises
    ``DamagedSharedLog``, ``UnsupportedFormat``."""
    told, expected = bytearray(), None
    start: Place | None = None
    for offset, record in records:
        found = unpack(record)
        if start is None:
            if found is None:
                raise _nothing_begins(offset)
            head, body = found
            if head.kind is Kind.GENESIS:
                return Origin(unpack_genesis(body), Place(SEGMENT_HEADER_BYTES, offset, 0, 0, 0, 0), offset)
            if head.kind is Kind.UPLOAD:
                upload = unpack_upload(body)
                return Origin(upload.genesis, Place(upload.first, offset, 0, 0, 0, 0), offset, upload)
            if head.kind is Kind.START:
                known = (head.term, head.node, head.seq, head.chain)
                return Origin(unpack_genesis(body), Place(head.position, offset, *known), offset)
            if head.kind is not Kind.DATA:
                raise _nothing_begins(offset)
            start = Place(head.position, offset - 1, head.term, head.node, head.seq, head.chain)
            expected = (head.term, head.node, head.seq, head.position)
        if found is None or _place_of(found[0]) != expected:
            continue  # it does not count
        head, body = found
        told += body
        expected = (head.term, head.node, head.seq + 1, head.position + len(body))
        genesis = _genesis_in(told, start.offset + 1)
        if genesis is not None:
            return Origin(genesis, start, start.offset + 1)
    return None


def _place_of(head: Head) -> tuple[int, int, int, int] | None:
    return (head.term, head.node, head.seq, head.position) if head.kind is Kind.DATA else None


def _genesis_in(told: bytearray, first: int) -> Genesis | None:
    """None: the BASE record is not whole yet."""
    if len(told) < RECORD_HEAD_BYTES:
        return None
    _, size_bytes, record, *_ = RECORD_HEAD_STRUCT.unpack_from(told)
    if record != RecordType.BASE:
        raise _nothing_begins(first)
    if len(told) < size_bytes:
        return None
    try:
        base = msgspec.msgpack.decode(memoryview(told)[RECORD_HEAD_BYTES:size_bytes], type=_Told)
    except DECODE_ERRORS as error:
        raise DamagedSharedLog(
            f"the BASE record at offset {first} of the replicated log is damaged"
        ) from error
    if base.genesis is msgspec.UNSET:
        raise _nothing_begins(first)
    return unpack_genesis(base.genesis)


def _nothing_begins(offset: int) -> LogCut:
    return LogCut(
        f"the replicated log cannot be read from offset {offset} on, the first that is there: neither a log nor a "
        "segment begins with that record"
    )
