"""One batch of a relay: rows are locked, stored in the broker, marked as sent and committed, in this order.

If anything fails before the commit, the rows are as they were, but the broker may have stored them. The batch's marker
says it (``tickwheel.outbox.relay.markers``): a second batch of the same number is refused, and the first one is taken
over into the database as it was sent.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import anyio

from tickwheel.client.results import CancelResult, RescheduleResult
from tickwheel.client.times import EpochMs
from tickwheel.outbox.relay.aside import SetAside
from tickwheel.outbox.relay.ledger import Ledger, Turn
from tickwheel.outbox.relay.log import log
from tickwheel.outbox.relay.markers import Marker, Markers
from tickwheel.outbox.relay.rows import Marked, Outgoing
from tickwheel.outbox.relay.store import HeldTransaction, RelayStore
from tickwheel.protocol.errors import (
    BadArgument,
    BadTime,
    BadTopicName,
    BodyTooLarge,
    HeadersTooLarge,
    KeyTooLong,
    OrderKeyTooLong,
    TickwheelError,
    TransactionRefused,
    TransactionTooLarge,
)

if TYPE_CHECKING:
    from tickwheel.client.client import Client

BATCH_BYTES: Final = 4 * 1024 * 1024
_FIRST_LIMIT: Final = 64
_EARLIER: Final = re.compile(r"duplicate \(it is message (\d+)\)")
_BAD_ROWS: Final = (
    BodyTooLarge,
    HeadersTooLarge,
    OrderKeyTooLong,
    KeyTooLong,
    BadTime,
    BadTopicName,
    BadArgument,
    ValueError,
    TypeError,
    ArithmeticError,  # an infinity in place of a time
)
_REFUSALS: Final = (TransactionRefused, TransactionTooLarge, BodyTooLarge)


@dataclass(slots=True)
class RelayStats:
    """What a relay did since it was made."""

    moved: int = 0
    """Messages that are in the broker, and marked as sent."""
    batches: int = 0
    resumed: int = 0
    """Batches that the broker had when a relay was interrupted before its commit."""
    rescheduled: int = 0
    """Messages whose row got another time or priority after such an interruption, and that followed it."""
    cancelled: int = 0
    """Messages whose row was deleted, or got another content, after such an interruption."""
    too_late: int = 0
    """Those that could not follow, because they were delivered already."""
    renamed: int = 0
    """Messages whose key another message has; they got another one."""
    duplicates: int = 0
    """Rows that the broker had, although the database has forgotten that they were sent."""
    refused: int = 0
    """How often the broker, or the relay, refused a row."""
    set_aside: int = 0
    """Rows that wait to be tried again after a refusal."""


@dataclass(slots=True)
class Outcome:
    """What came of one batch. ``is_standby``: another relay has the table. ``more``: there may be more rows."""

    moved: int = 0
    more: bool = False
    is_standby: bool = False


class BatchMover:
    """Moves one batch after the other."""

    def __init__(
        self, *, client: Client, store: RelayStore, ledger: Ledger, topic: str, batch: int, timeout_s: float
    ) -> None:
        self.stats = RelayStats()
        self.aside = SetAside(store.reader.table.name)
        self._client = client
        self._store = store
        self._ledger = ledger
        self._topic = topic
        self._batch = batch
        self._limit = min(batch, _FIRST_LIMIT)
        self._timeout_s = timeout_s
        self._known: Turn | None = None
        """The turn for which the broker's markers are known."""
        self._live: dict[int, int] = {}

    async def at(self, step: str) -> None:
        """Called between the steps, for tests."""

    async def move(self) -> Outcome:
        """Moves one batch. Raises what the database or the broker raises; then nothing is lost, and nothing doubled."""
        await self._reach_broker()
        try:
            async with HeldTransaction(self._store.database) as held:
                outcome, turn = await self._move(held)
                await self.at("changed")
        except BaseException:
            self._known = None
            raise
        await self.at("committed")
        if turn is not None:
            self._known = turn
            self.stats.moved += outcome.moved
            self.stats.batches += outcome.moved > 0
        self.stats.set_aside = len(self.aside)
        return outcome

    async def _reach_broker(self) -> None:
        """Waits for the broker before anything is locked."""
        if not self._client.is_connected:
            await self._client.ping()

    async def _move(self, held: HeldTransaction) -> tuple[Outcome, Turn | None]:
        """What was moved, and the turn that begins with the commit; None: nothing changed."""
        turn = await held.call(self._ledger.take_turn)
        if turn is None:
            return Outcome(is_standby=True), None
        await self.at("begun")
        markers = Markers(self._client, turn.relay_id)
        if self._known != turn:
            self._live = await self._asked(markers.live())
            self._known = turn
        if turn.batch + 1 in self._live:
            return await self._resume(held, turn, markers)
        newest = max(self._live, default=0)
        if newest > turn.batch:
            log.warning("The database has forgotten commits.", known_batch=turn.batch, newest_batch=newest)
            return await self._turn_to(held, turn._replace(batch=newest, has_gaps=True))
        return await self._send_rows(held, turn, markers)

    async def _turn_to(self, held: HeldTransaction, turn: Turn) -> tuple[Outcome, Turn]:
        await held.call(self._ledger.set_turn, turn)
        return Outcome(more=True), turn

    async def _send_rows(
        self, held: HeldTransaction, turn: Turn, markers: Markers
    ) -> tuple[Outcome, Turn | None]:
        rows = await held.call(self._store.unsent, self._limit, self.aside.hidden())
        await self.at("selected")
        if turn.has_gaps and not rows and not self.aside:
            return await self._turn_to(held, turn._replace(has_gaps=False))
        refused = self.stats.refused
        sendable = self._sendable(rows)
        # A batch goes to one topic, that of its first row; rows of others come next.
        topic = sendable[0].topic or self._topic if sendable else self._topic
        messages = [one for one in sendable if (one.topic or self._topic) == topic]
        others = len(sendable) - len(messages)
        sent, done = await self._send(markers, turn, topic, messages)
        if done is None:
            return await self._resume(held, turn, markers)
        if not sent:
            return Outcome(more=bool(rows)), None
        await self.at("sent")
        await held.call(self._finish, done, [message.id for message in sent])
        is_full = len(rows) >= self._limit
        if len(sent) < len(messages) or len(messages) + others + self.stats.refused - refused < len(rows):
            self._limit = 2 * len(sent)  # a part was too large, or had one that was refused
        elif is_full:
            self._limit *= 2
        self._limit = min(self._batch, self._limit)
        return Outcome(len(sent), more=is_full or len(sent) < len(rows)), done

    def _finish(self, connection: Any, done: Turn, ids: Sequence[Any]) -> None:
        self._store.mark_sent(connection, ids)
        self._ledger.set_turn(connection, done)

    async def _asked(self, question: Any) -> Any:
        """Bounds what may take as long as a transaction is open."""
        with anyio.fail_after(self._timeout_s):
            return await question

    # -- sending --

    def _sendable(self, rows: Sequence[Any]) -> list[Outgoing]:
        """The messages of the rows, as many as fit into a batch; the others are set aside."""
        limits = self._client._session.limits
        room_bytes = min(BATCH_BYTES, limits.max_frame_bytes // 2)
        messages: list[Outgoing] = []
        for row in rows:
            try:
                message = self._store.reader.outgoing(row)
                message.check(limits)
            except _BAD_ROWS as error:
                self._refuse(row[0], error)
                continue
            room_bytes -= message.size_bytes
            if room_bytes < 0 and messages:
                break
            messages.append(message)
        return messages

    async def _send(
        self, markers: Markers, turn: Turn, topic: str, messages: list[Outgoing]
    ) -> tuple[list[Outgoing], Turn | None]:
        """What of the messages is stored, which may be a part of them, and the turn after that. None instead of a turn:
        the broker has a batch of this number."""
        number, shape = turn.batch + 1, self._store.reader.shape
        while messages:
            outdated = [one for one in self._live if one <= turn.batch]
            try:
                await self._asked(markers.send(number, topic, shape, messages, outdated))
            except _REFUSALS as refusal:
                live = await self._asked(markers.live())
                if number in live:
                    self._live = live
                    return [], None
                if live.keys() != self._live.keys():
                    self._live = live  # a marker was cancelled by hand: try again without it
                elif len(messages) > 1:
                    messages = messages[: len(messages) // 2]  # half by half to the one that is refused
                elif await self._is_there(topic, messages[0], turn, refusal):
                    self.stats.duplicates += 1
                    return messages, turn  # nothing was sent, so no batch has the number
                elif messages[0].is_renamed or not isinstance(refusal, TransactionRefused):
                    self._refuse(messages[0].id, refusal)
                    return [], turn
                else:
                    self._rename(messages[0], turn)
                continue
            self._live = {number: 0}
            for message in messages:
                self.aside.forget(message.id)
                self.stats.renamed += message.is_renamed
            return messages, turn._replace(batch=number)
        return [], turn

    def _refuse(self, row_id: Any, error: Exception) -> None:
        self.stats.refused += 1
        self.aside.add(row_id, error)

    async def _is_there(self, topic: str, message: Outgoing, turn: Turn, refusal: TickwheelError) -> bool:
        """Whether this very message is in the broker, although the database does not know it as sent.

        That is possible only when the database has forgotten commits: it was restored, or a replica took over.
        Otherwise the key belongs to another message.
        """
        if not turn.has_gaps:
            return False
        found = _EARLIER.search(refusal.message)
        if found is None:
            return False
        page = await self._asked(
            self._client.browse(
                topic, after_id=int(found[1]) - 1, limit=1, max_body_bytes=len(message.body) + 1
            )
        )
        return any(
            (one.key, one.body, one.headers, one.priority, one.deliver_at_ms)
            == (message.key, message.body, message.headers or {}, message.priority, message.deliver_at_ms)
            for one in page
        )

    def _rename(self, message: Outgoing, turn: Turn) -> None:
        """Gives a message another key: its own belongs to an older message, whose id the database has used again."""
        message.key = f"{message.key}~{turn.relay_id[:8]}.{turn.batch + 1}"
        message.is_renamed = True
        log.warning(
            "The key of a row belongs to another message; it is sent as another one.", key=message.key
        )

    # -- after an interruption --

    async def _resume(self, held: HeldTransaction, turn: Turn, markers: Markers) -> tuple[Outcome, Turn]:
        """Takes over into the database what the broker has of a batch whose commit never happened."""
        marker: Marker = await self._asked(markers.read(self._live[turn.batch + 1]))
        sent = marker.sent()
        rows = await held.call(self._store.by_id, [one.id for one in sent])
        await self.at("found")
        done: list[Any] = []
        gone: list[Marked] = []
        moved: dict[tuple[int, int], list[Marked]] = defaultdict(list)
        for one in sent:
            row = rows.get(one.id)
            if row is not None and (row.time_acked is not None or row.time_next is None):
                continue  # it was acked by hand
            now = None if row is None else self._as_sent(row, one, marker)
            if now is None:
                gone.append(one)
                continue
            done.append(one.id)
            if now != (one.deliver_at_ms, one.priority):
                moved[now].append(one)
        for (time_ms, priority), which in moved.items():
            await self._reschedule(marker.topic, which, time_ms, priority)
        await self._cancel(marker.topic, gone)
        await self.at("reconciled")
        after = turn._replace(batch=turn.batch + 1)
        await held.call(self._finish, after, done)
        self.stats.resumed += 1
        log.info("A batch was in the broker already.", messages=len(sent), changed=len(gone) + len(moved))
        return Outcome(len(done), more=True), after

    def _as_sent(self, row: Any, sent: Marked, marker: Marker) -> tuple[int, int] | None:
        """The row's time and priority; None if it has become another message, which is to be sent anew."""
        try:
            message = self._store.reader.outgoing(row)
        except _BAD_ROWS:
            return None  # it will be set aside
        if marker.shape == self._store.reader.shape and message.fingerprint != sent.fingerprint:
            return None
        return message.deliver_at_ms, message.priority

    async def _reschedule(self, topic: str, which: list[Marked], time_ms: int, priority: int) -> None:
        keys = [one.key for one in which]
        results = await self._asked(
            self._client.reschedule(topic, keys=keys, deliver_at=EpochMs(time_ms), priority=priority)
        )
        late = sum(result is not RescheduleResult.RESCHEDULED for result in results)
        self.stats.rescheduled += len(which) - late
        self.stats.too_late += late

    async def _cancel(self, topic: str, which: list[Marked]) -> None:
        if not which:
            return
        results = await self._asked(self._client.cancel(topic, keys=[one.key for one in which]))
        cancelled = sum(result is CancelResult.CANCELLED for result in results)
        self.stats.cancelled += cancelled
        self.stats.too_late += len(which) - cancelled
