"""Tickets: what one stream reads, packed by GetFlightInfo and given back to DoGet, perhaps by another reader, perhaps
to another process that has the same log.

A ticket carries no right: who comes with it is judged as if he had asked for it just now. So it needs no signature;
its digest tells a ticket that was cut or changed on its way from a good one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from tickwheel.arrow.columns import TableName
from tickwheel.arrow.errors import DataError

_DIGEST_BYTES: Final = 16
_VERSION: Final = 1


class BadTicket(DataError):
    """The ticket is none of `tickwheel flight`, or was changed."""

    code = "bad_ticket"
    advice = "Ask for the table anew (GetFlightInfo)."


class Moment(msgspec.Struct, frozen=True, array_like=True):
    """When a log was looked at. All tickets of a reading have the same: so they show the same messages, in the states
    that they had. ``log``: its timeline, 16 hexadecimal digits. ``end``: the position up to which it is told.
    ``groups``: a digest of all groups, each of which has a row of each message."""

    log: str
    now_ms: int
    next_id: int
    end: int
    groups: int
    is_committed: bool


class ArchiveRows(msgspec.Struct, frozen=True, array_like=True):
    """See ``ArchiveCommand``."""

    are_sizes: bool
    done_before_ms: int
    states: tuple[Literal["acked", "dead"], ...]
    topics: tuple[str, ...] | None


class Ticket(msgspec.Struct, frozen=True, array_like=True):
    """``first`` and ``end``: ids of messages, or positions of events, from and up to which, but not to, it reads.
    ``archive``: which messages an archive takes, whatever the columns and filters."""

    version: int
    moment: Moment
    table: TableName
    first: int
    end: int
    columns: tuple[str, ...]
    filters: list[list[Any]]
    events: tuple[str, ...]
    archive: ArchiveRows | None = None


def make_ticket(
    moment: Moment,
    table: TableName,
    part: tuple[int, int],
    *,
    columns: tuple[str, ...] = (),
    filters: Sequence[list[Any]] = (),
    events: tuple[str, ...] = (),
    archive: ArchiveRows | None = None,
) -> bytes:
    """A packed ticket for one part of a table."""
    first, end = part
    ticket = Ticket(
        version=_VERSION,
        moment=moment,
        table=table,
        first=first,
        end=end,
        columns=columns,
        filters=[*filters],
        events=events,
        archive=archive,
    )
    packed = msgspec.msgpack.encode(ticket)
    return hashlib.sha256(packed).digest()[:_DIGEST_BYTES] + packed


def open_ticket(packed: bytes) -> Ticket:
    """Raises ``BadTicket``."""
    digest, content = packed[:_DIGEST_BYTES], packed[_DIGEST_BYTES:]
    if hashlib.sha256(content).digest()[:_DIGEST_BYTES] != digest:
        raise BadTicket
    try:
        ticket = msgspec.msgpack.decode(content, type=Ticket)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise BadTicket from None
    if ticket.version != _VERSION:
        raise BadTicket(f"The ticket has version {ticket.version}; this process makes version {_VERSION}.")
    return ticket
