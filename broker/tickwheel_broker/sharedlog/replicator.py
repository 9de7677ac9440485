"""The owner's side of the shared log: each group commit becomes a batch of records, and counts once all nodes know it.

Nothing is told to anybody before that. Whether a record of the owner's counts is decided by the rule
(`timerlog.replication.rule`): at once where the shared log put it right behind the one before, otherwise when the
owner's own reader has come to it. An append that failed ends the term: the owner fences once more, reads up to its own
FENCE, and then knows what counted. Who finds the FENCE of another node on the way is the owner no more.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator

import outcome
import trio

from tickwheel_broker.group_commit import SyncEnded
from tickwheel_broker.logs import Sparing, get_logger
from tickwheel_broker.sharedlog.known_owner import NOTHING_SAID, OwnWords
from tickwheel_broker.sharedlog.shared_log import (
    AppendFailed,
    OutOfRange,
    SharedLog,
    SharedLogUnavailable,
    Stored,
)
from timerlog.background import Stage
from timerlog.commitlog.durability import Link, Piece, SyncTicket
from timerlog.layout import TRANSACTION_ID_BYTES
from timerlog.replication.follower import place_of
from timerlog.replication.places import Places
from timerlog.replication.record import MAX_BODY_BYTES, Range, Writer, fence, unpack
from timerlog.replication.rule import Confirmations, Reader, Said

BEAT_S = 1.0

OWNER_TIMEOUT_S = 3.0
"""An owner whose last record that counts was begun longer ago may have been replaced, and answers nothing."""

RETRY_S = 0.05
"""So long after an append that failed the next one is tried."""

_STAGED_BYTES = MAX_BODY_BYTES - TRANSACTION_ID_BYTES
"""Of a job's files, at a time: what is committed waits no longer for it than for a batch of one record."""

_log = get_logger("cluster")
_retries = Sparing(_log)


def beat_s(owner_timeout_s: float) -> float:
    """So often the owner says that it is there, when it has nothing else to say; more often where it may be unsure for
    less than three times as long."""
    return min(BEAT_S, owner_timeout_s / 3)


class Deposed(Exception):
    """Another node owns the log."""


def _is_behind(piece: Piece, end: int) -> bool:
    """Whether a log that ends there does not have it."""
    return piece.position > end if isinstance(piece, Link) else piece[0] >= end


async def append_fence(shared: SharedLog, record: bytes, read_to: int) -> None:
    """`read_to`: the offset of the last record that was read. A log that ends before it is another one, or has lost
    something: nothing is appended there. Raises AppendFailed."""
    try:
        end = await shared.end()
    except SharedLogUnavailable as error:
        raise AppendFailed(str(error)) from error
    if end <= read_to:
        raise AppendFailed(f"the shared log ends at {end}, and was read to {read_to}")
    await shared.append([record])


class Tail:
    """The owner's own reader: what it accepts counts. A new one begins where the node's follower stopped."""

    def __init__(
        self,
        *,
        shared: SharedLog,
        reader: Reader,
        offset: int,
        node: int,
        places: Places,
    ) -> None:
        self._shared, self.reader, self.offset, self._node = shared, reader, offset, node
        self._places = places
        self._moved = trio.Condition()
        self._deposed_by: str | None = None
        self.has_twin = False
        """Whether another process with this node's number was read."""
        self.fence_offset = offset
        """Where this node's last FENCE stands that counts."""
        self.place = place_of(reader.state, offset)
        """Up to where this node's own log is what counts: it does not move on when another node owns the log."""
        self.on_accepted: Callable[[int, int, int], object] = lambda seq, offset, chain: None
        """Called with (seq, offset, the chain behind it) of each record that counts."""
        self._awaited: tuple[int, int | None, bytes] = node, None, b""
        """The node, the term and the words of the FENCE that this node has written, and has not read yet."""

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            try:
                records = await self._shared.read(self.offset + 1)
            except SharedLogUnavailable as error:
                _retries.warning("the shared log cannot be read", reason=str(error))
                if isinstance(error, OutOfRange) and error.is_deleted:
                    await self._give_up()
                await trio.sleep(RETRY_S)
                continue
            async with self._moved:
                for stored in records:
                    self._take(stored)
                self._moved.notify_all()

    async def _give_up(self) -> None:
        """Only an owner deletes records, and only those that it has read: there was another one."""
        async with self._moved:
            self._deposed_by = "a node that has deleted what this one has not read"
            self._moved.notify_all()

    def _take(self, stored: Stored) -> None:
        found = unpack(stored.record)
        self.offset = stored.offset
        if found is None:
            return
        head, body = found
        said, _, links = self.reader.take(head, body)
        begins_segment = self._places.read(head, body, said, stored.offset, links)
        if said is Said.FENCED and (head.node, head.term, bytes(body)) != self._awaited:
            if head.node == self._node:
                self.depose_by_twin()
            else:
                self.depose(f"node {head.node}")
        if self._deposed_by is not None:
            return  # what counts now is another node's: neither its numbers nor its bytes are this one's
        if self.reader.is_between_batches:
            self.place = place_of(self.reader.state, stored.offset)
        if begins_segment and not self._places.is_staging:
            self._places.note(self.place)
        if said is Said.FENCED:
            self.fence_offset = stored.offset
        elif said is not Said.PASSED_OVER:
            self.on_accepted(head.seq, stored.offset, self.reader.chain)

    def await_fence(self, term: int, words: bytes) -> None:
        """Know this node's own FENCE by its term and its words."""
        self._awaited = self._node, term, words

    def depose_by_twin(self) -> None:
        """It is not this process of the node."""
        self.has_twin = True
        self.depose("another process with this node's number")

    def depose(self, by: str) -> None:
        """It is not this node that owns the log."""
        if self._deposed_by is None:
            self._deposed_by = by

    async def wait(self, is_there: Callable[[], bool]) -> None:
        """Return once `is_there()`. Raises Deposed."""
        async with self._moved:
            while not is_there():
                self.check()
                await self._moved.wait()

    def check(self) -> None:
        """Raises Deposed."""
        if self._deposed_by is not None:
            raise Deposed(f"{self._deposed_by} owns the log now")


class Replicator:
    """Makes group commits durable by the shared log. `run` beside it; one `commit` at a time."""

    begins_at_once = False

    def __init__(
        self,
        *,
        shared: SharedLog,
        tail: Tail,
        node: int,
        now_ms: Callable[[], int],
        owner_timeout_s: float = OWNER_TIMEOUT_S,
        own: OwnWords = NOTHING_SAID,
    ) -> None:
        """`tail` has just accepted the FENCE of this node. `own`: what it says in each FENCE and BEAT."""
        self._own = own
        self._said = own.now()
        """What its last BEAT said."""
        self._shared, self._tail, self._node, self._now_ms = shared, tail, node, now_ms
        self._owner_timeout_s = owner_timeout_s
        self.confirmed_s = -math.inf
        """When, in trio's time, the last record was begun that counts: until then no other node owned the log."""
        self._turn = trio.Lock()
        self._unsettled: list[Piece] = []
        """What was begun and is not known to count."""
        self._staged: Stage | None = None
        """The job whose files all nodes have, until it is a part of the log."""
        self._staged_term = 0
        """In which they came: the next FENCE makes the nodes forget them."""
        self._begin_term()

    def _begin_term(self) -> None:
        state = self._tail.reader.state
        self._confirmations = Confirmations(self._tail.fence_offset)
        self._writer = Writer(self._node, state.term, state.chain, self._confirmations.wrote)
        self._tail.on_accepted = self._accepted
        self._is_unsure = False
        """Whether an append was begun whose end is not known: then only another term tells."""

    def _accepted(self, seq: int, offset: int, chain: int) -> None:
        self._confirmations.read(seq, offset, chain)
        if self._confirmations.is_foreign:
            self._tail.depose_by_twin()

    @property
    def is_current(self) -> bool:
        """See `Committer`."""
        return trio.current_time() - self.confirmed_s < self._owner_timeout_s

    @property
    def term(self) -> int:
        """The current one."""
        return self._tail.reader.state.term

    async def run(self) -> None:
        """Read back, and beat. Raises Deposed."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tail.run)
            nursery.start_soon(self._beat)
            await self._tail.wait(lambda: False)

    def begin(self, ticket: SyncTicket, ended: SyncEnded) -> Callable[[], Awaitable[None]]:
        """See `Committer`, and `commit`."""

        async def wait() -> None:
            ended(outcome.Value(await self.commit(ticket)))

        return wait

    async def commit(self, ticket: SyncTicket) -> float:
        """Return once it counts: how many seconds that took. One that was cancelled is settled by the next. Raises
        Deposed."""
        began_s = trio.current_time()
        self._unsettled.extend(ticket.pieces)
        await self.settle()
        return trio.current_time() - began_s

    async def settle(self) -> None:
        """Return once all counts that was to be committed, also by calls that were cancelled, and this node is known to
        own the log. Raises Deposed."""
        async with self._turn:
            while self._unsettled or not self.is_current:
                if self._is_unsure:
                    await self._fence_again()
                elif not self._unsettled:
                    await self._append_beat()
                else:
                    await self._ship(tuple(self._unsettled))

    async def _ship(self, pieces: tuple[Piece, ...]) -> None:
        """More may be to be committed by the time that these count."""
        is_linked = any(isinstance(piece, Link) for piece in pieces)
        if is_linked and self._staged_term != self.term:
            assert self._staged is not None, "a job is staged before it is linked"
            await self._stage_now(self._staged)
        elif await self._append(self._writer.data(pieces, self._now_ms())):
            del self._unsettled[: len(pieces)]
            if is_linked:
                self._staged = None

    async def stage(self, stage: Stage) -> None:
        """See `Committer`. Raises Deposed."""
        try:
            while not await self._stage_beside(stage):
                pass
        except OSError as error:
            stage.failed(error)

    async def _stage_beside(self, stage: Stage) -> bool:
        """Whether all of it came in one term, while others have their turns."""
        self._staged, self._staged_term = stage, 0
        term = self.term
        for records in self._stagings(stage):
            async with self._turn:
                if self._is_unsure:
                    await self._fence_again()
                if self.term != term or not await self._append(
                    self._writer.stage(stage.job, records, self._now_ms())
                ):
                    return False
        self._staged_term = term
        return True

    async def _stage_now(self, stage: Stage) -> None:
        """Once more, in a term in which it is not there, while nothing else is committed."""
        for records in self._stagings(stage):
            if not await self._append(self._writer.stage(stage.job, records, self._now_ms())):
                return
        self._staged_term = self.term

    def _stagings(self, stage: Stage) -> Iterator[list[Range]]:
        """What is appended at a time. Raises OSError."""
        if not stage.paths:
            yield [(0, b"")]
        for staged in stage.ranges(_STAGED_BYTES):
            yield [staged]

    async def _append(self, records: list[bytes]) -> bool:
        """Whether these count; otherwise that is not known, and the term must end."""
        first_seq, began_s = self._writer.seq - len(records), trio.current_time()
        self._is_unsure = True
        confirmations, last_seq = self._confirmations, first_seq + len(records) - 1
        try:
            offsets = await self._shared.append(records)
        except AppendFailed as error:
            _log.warning("an append failed", reason=str(error), term=self.term)
            return False
        for seq, offset in enumerate(offsets, first_seq):
            confirmations.placed(seq, offset)
        if confirmations.seq < last_seq:
            await self._tail.wait(lambda: confirmations.seq >= last_seq)
        self.confirmed_s = began_s
        self._is_unsure = False
        return True

    async def _fence_again(self) -> None:
        """Begin another term, in which what counts until now is known. Raises Deposed."""
        self._tail.check()  # the owner must not be disturbed by one that it has replaced
        term, node = self.term + 1, self._node
        words = self._own.now()
        self._tail.await_fence(term, words)
        while True:
            began_s = trio.current_time()
            try:
                record = fence(node, term, self._now_ms(), words)
                await append_fence(self._shared, record, self._tail.offset)
                break
            except AppendFailed as error:
                _retries.warning("a fence failed", reason=str(error), term=term)
                await trio.sleep(RETRY_S)
                self._tail.check()
        reader = self._tail.reader
        await self._tail.wait(lambda: (reader.state.term, reader.state.node) == (term, node))
        self.confirmed_s = began_s
        # Batches count whole: of what was not known to have come, each range has, or nothing of it.
        end = reader.state.end
        self._unsettled = [piece for piece in self._unsettled if _is_behind(piece, end)]
        self._begin_term()

    async def _beat(self) -> None:
        every_s = beat_s(self._owner_timeout_s)
        while True:
            await trio.sleep(every_s)
            if trio.current_time() - self.confirmed_s < every_s and self._own.now() == self._said:
                continue
            async with self._turn:
                if self._is_unsure or not await self._append_beat():
                    await self._fence_again()

    async def _append_beat(self) -> bool:
        self._said = self._own.now()
        return await self._append([self._writer.beat(self._now_ms(), self._said)])
