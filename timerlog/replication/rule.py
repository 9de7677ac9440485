"""The rule: which records of a replicated log count.

Every reader goes through the same records in the same order and keeps (term, node, seq, chain, end):

* FENCE counts if its term is higher than the current one. It discards a batch that its predecessor did not finish.
* DATA, LINK, STAGE and BEAT count if term, node, seq and chain are exactly those expected. Anything else is passed
  over, by every reader and for good.

So a retry that doubles a record, a batch of which a part was lost, and what a former owner writes after it was replaced
are all passed over. Nothing but the order of the records is needed for that: no lock, no clock, no transaction.
``Confirmations`` is the owner's side: when it may say that a record of its own counts.

The numbering of terms and the chain are those of replicated logs in general (D. Ongaro and J. Ousterhout, "In Search of
an Understandable Consensus Algorithm", ATC 2014, 5.3; R. van Renesse and F. Schneider, "Chain Replication", OSDI 2004);
that a total order of records suffices to fence is from M. Balakrishnan et al., "Tango: Distributed Data Structures over
a Shared Log", SOSP 2013.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, NamedTuple

from tickwheel_native import crc32c
from timerlog.commitlog.durability import Link
from timerlog.errors import DamagedSharedLog
from timerlog.layout import SEGMENT_HEADER_BYTES
from timerlog.replication.record import Head, Kind, Range, unpack_link

_NUMBERED: Final = (Kind.DATA, Kind.LINK, Kind.STAGE, Kind.BEAT)


@dataclass(frozen=True, slots=True)
class State:
    """What a reader knows after all records that counted. A new log: the defaults."""

    term: int = 0
    node: int = 0
    seq: int = 0  #: expected next
    chain: int = 0
    end: int = SEGMENT_HEADER_BYTES  #: where the log ends


class Said(Enum):
    """What became of a record."""

    PASSED_OVER = "passed over"
    FENCED = "fenced"  #: a new term has begun
    PART = "part"  #: of a batch that is not whole yet
    BATCH = "batch"  #: the last part of one: all of it counts
    BEAT = "beat"
    STAGED = "staged"  #: bytes of a job, which are no part of the log yet


class Taken(NamedTuple):
    """``ranges``: of a batch that counts, in order; ``links``: the jobs that it makes a part of the log, which lie
    before ``Link.position`` and behind all ranges that begin before it."""

    said: Said
    ranges: tuple[Range, ...] = ()
    links: tuple[Link, ...] = ()


def next_start(end: int, segment_bytes: int) -> int:
    """Where the first record of the segment after ``end`` stands."""
    return -(-end // segment_bytes) * segment_bytes + SEGMENT_HEADER_BYTES


@dataclass(slots=True)
class Reader:
    """Applies the rule. ``state`` is of what counts; a batch that is not whole is kept apart."""

    segment_bytes: int
    state: State = field(default_factory=State)
    _pending: State | None = None
    _parts: list[Range] = field(default_factory=list)
    _links: list[Link] = field(default_factory=list)

    def take(self, head: Head, body: bytes | memoryview) -> Taken:
        """The next record. Raises ``DamagedSharedLog`` for one that counts and cannot be."""
        if head.kind is Kind.FENCE:
            return self._fence(head)
        if head.kind not in _NUMBERED or not self._is_expected(head):
            return Taken(Said.PASSED_OVER)
        expected = self._expected
        following = replace(expected, seq=expected.seq + 1)
        if head.kind is Kind.BEAT:
            self._go_to(following)
            return Taken(Said.BEAT)
        following = replace(following, chain=crc32c(body, expected.chain))
        if head.kind is Kind.STAGE:
            self._go_to(following)
            return Taken(Said.STAGED)
        data = bytes(body)
        if head.kind is Kind.LINK:
            self._check_link(head, expected.end)
            self._links.append(unpack_link(head.position, data))
            self._pending = replace(following, end=head.position)
        else:
            self._check_data(head, expected.end)
            self._parts.append((head.position, data))
            self._pending = replace(following, end=head.position + len(data))
        if not head.is_last:
            return Taken(Said.PART)
        assert self._pending.end >= self.state.end, "a log does not become shorter"
        taken = Taken(Said.BATCH, tuple(self._parts), tuple(self._links))
        self.state = self._pending
        self._discard()
        return taken

    def _check_data(self, head: Head, end: int) -> None:
        if head.position not in (end, next_start(end, self.segment_bytes)):
            raise DamagedSharedLog(
                f"record {head.seq} of term {head.term} belongs to position {head.position} of the log, which ends at "
                f"{end}"
            )

    def _check_link(self, head: Head, end: int) -> None:
        behind = head.position - next_start(end, self.segment_bytes)
        if behind <= 0 or behind % self.segment_bytes:
            raise DamagedSharedLog(
                f"record {head.seq} of term {head.term} links segments up to position {head.position} of the log, "
                f"which ends at {end}"
            )

    def copy(self) -> Reader:
        """As it is now, for ``go_back``."""
        return replace(self, _parts=list(self._parts), _links=list(self._links))

    def go_back(self, before: Reader) -> None:
        """What was taken since then was not taken."""
        self.state, self._pending = before.state, before._pending
        self._parts, self._links = before._parts, before._links

    @property
    def chain(self) -> int:
        """Of all that was accepted, parts of a batch included."""
        return self._expected.chain

    @property
    def is_between_batches(self) -> bool:
        """Whether a reader that knows ``state`` alone can go on behind the last record."""
        return self._pending is None

    @property
    def _expected(self) -> State:
        return self._pending or self.state

    def _is_expected(self, head: Head) -> bool:
        state = self._expected
        return (head.term, head.node, head.seq, head.chain) == (
            state.term,
            state.node,
            state.seq,
            state.chain,
        ) and state.term > 0

    def _fence(self, head: Head) -> Taken:
        if head.term <= self.state.term:
            return Taken(Said.PASSED_OVER)
        self._discard()
        self.state = replace(self.state, term=head.term, node=head.node, seq=1)
        return Taken(Said.FENCED)

    def _go_to(self, state: State) -> None:
        if self._pending is None:
            self.state = state
        else:
            self._pending = state

    def _discard(self) -> None:
        self._pending = None
        self._parts.clear()
        self._links.clear()


@dataclass(slots=True)
class Confirmations:
    """Which of the records that the owner wrote in its term are known to count.

    One counts when all before it do and nothing stands between it and the one before: that is known from the places
    that the log gives to records it takes, or from the owner's own reader. After a gap of any kind, and when no place
    is known, only the reader decides. Two processes may believe that they are the same node in the same term: one that
    was given the number of another, or the same one after it was started anew. Then the reader accepts records of the
    other one by the numbers of this one; so each is compared by the chain behind it, too.
    """

    offset: int  #: of the last record that is known to count; first, of the FENCE
    seq: int = 0  #: its number
    is_foreign: bool = (
        False  #: whether what counts is not what this owner wrote: then it must answer nothing any more
    )
    _placed: deque[tuple[int, int]] = field(default_factory=deque)
    _written: deque[tuple[int, int]] = field(default_factory=deque)  # (seq, the chain behind it)

    def wrote(self, seq: int, chain: int) -> None:
        """A record was made; the chain behind it."""
        assert not self._written or seq == self._written[-1][0] + 1, "records are numbered one by one"
        self._written.append((seq, chain))

    def placed(self, seq: int, offset: int | None) -> int:
        """The log has taken a record, and says where (None: it does not say). Returns up to which one all count."""
        if offset is not None:
            self._placed.append((seq, offset))
        return self._advance()

    def read(self, seq: int, offset: int, chain: int) -> int:
        """The owner's reader has come to a record, and it counts; the chain behind it. Returns up to which one all
        count."""
        while self._written and self._written[0][0] < seq:
            self._written.popleft()
        if not self._written or self._written[0] != (seq, chain):
            self.is_foreign = True
        if self.is_foreign:
            return self.seq
        if seq > self.seq:
            self.seq, self.offset = seq, offset
        return self._advance()

    def _advance(self) -> int:
        placed = self._placed
        if self.is_foreign:
            return self.seq
        while placed and placed[0][0] <= self.seq + 1:
            seq, offset = placed.popleft()
            if seq == self.seq + 1 and offset == self.offset + 1:
                self.seq, self.offset = seq, offset
            elif seq > self.seq:
                placed.appendleft((seq, offset))  # something stands between: the reader decides
                break
        return self.seq
