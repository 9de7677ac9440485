"""Acks on their way. They coalesce, survive reconnects, and are remembered only until they are answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from tickwheel.client.calls import Call, Link
from tickwheel.client.consumer.giving_back import GiveBack
from tickwheel.client.consumer.untold import Untold
from tickwheel.client.conversation import Conversation
from tickwheel.client.requests import typed
from tickwheel.client.results import ReceiptResult
from tickwheel.client.times import Delay, duration_ms
from tickwheel.protocol.bodies.base import Request
from tickwheel.protocol.bodies.settling import Extend, ExtendOk, NackOk, Return, ReturnOk
from tickwheel.protocol.errors import (
    AckRefused,
    ClientClosed,
    ClientForked,
    MessageCancelled,
    MessageNotFound,
    NeverDelivered,
    NotConnected,
    StaleReceipt,
    TickwheelError,
)
from tickwheel.protocol.frames import FrameType
from tickwheel.protocol.machine import AnswerBody
from tickwheel.protocol.messages import AckCode, AckOk, encode_ack, pack_column, unpack_column

FLIGHT_ACKS_MAX: Final = 512
"""As many single acks share one frame; then their sender lets the writer run."""
FLIGHTS_MAX: Final = 64
"""As many ACK frames may be unanswered; then an ack waits."""

_ERROR_OF_CODE: Final[dict[int, type[AckRefused]]] = {
    AckCode.STALE_RECEIPT: StaleReceipt,
    AckCode.NOT_FOUND: MessageNotFound,
    AckCode.NEVER_DELIVERED: NeverDelivered,
    AckCode.CANCELLED: MessageCancelled,
}


class Held(Protocol):
    """What a subscription holds, as far as acks change it."""

    def settle(self, ids: Sequence[int], epochs: Sequence[int]) -> None:
        """These are held no longer."""

    def is_settled(self, receipt: tuple[int, int]) -> bool:
        """Whether it is known that this one is held no longer."""


class AckFlight(Call):
    """One ACK frame: open to more acks until it is written, sent again as it is after a reconnect."""

    __slots__ = ("_packed", "_queue", "awaited", "epochs", "ids", "open", "refused")

    frame_type = FrameType.ACK

    def __init__(self, queue: AckQueue, packed: tuple[bytes, bytes] | None = None) -> None:
        """``packed``: the columns of a whole batch, as they stand in its frame."""
        super().__init__(cost_bytes=0)
        self.ids: list[int] = []
        self.epochs: list[int] = []
        self.open = packed is None
        self.refused: dict[int, tuple[int, type[AckRefused]]] = {}
        """By place in the frame, which may have acks of several deliveries of one message: its id, and why."""
        self.awaited: set[int | None] = set()
        """The places whose acks are waited for; None: all of them."""
        self._queue = queue
        self._packed = packed

    @property
    def count(self) -> int:
        """How many acks are in it."""
        return len(self.ids) if self._packed is None or self.ids else len(self._packed[1]) // 4

    def payload(self, link: Link) -> bytes | None:
        group_id = self._queue.group_id
        if group_id is None:
            self._queue.park(self)
            return None
        self.open = False
        if self._packed is None:
            self._packed = pack_column("Q", self.ids), pack_column("I", self.epochs)
        return encode_ack(group_id, *self._packed)

    def answered(self, body: AnswerBody) -> None:
        assert isinstance(body, AckOk)
        for exception in body.exceptions:
            # To ack twice is harmless, and the answer to the second copy of a frame that went twice, because
            # a connection broke. Anything else means that no copy counted: had the first one, the message
            # would be acked, and never stale.
            if exception.code != AckCode.ALREADY_ACKED:
                error_class = _ERROR_OF_CODE.get(exception.code, AckRefused)
                self.refused[exception.position] = exception.id, error_class

    @property
    def unawaited(self) -> int:
        """How many of its acks nobody waits for."""
        return 0 if None in self.awaited else self.count - len(self.awaited)

    def failed(self, error: TickwheelError) -> None:
        self._queue.lost(self, error)

    def forked(self) -> None:
        self.open = False

    def refuse_receipts(self) -> bool:
        ids = self.ids if self._packed is None or self.ids else unpack_column("Q", self._packed[0])
        self.refused = {place: (message_id, StaleReceipt) for place, message_id in enumerate(ids)}
        return True

    def ended(self) -> None:
        self.open = False
        self._queue.landed(self)


class AckQueue:
    """The acks of one subscription."""

    def __init__(
        self, session: Conversation, group_name: str = "default", topic: str = "", timeline: str = ""
    ) -> None:
        """``timeline``: of the log that gave the messages, if it is not that of now."""
        self.group_name = group_name
        self._topic = topic
        self._untold = Untold(session, topic, group_name)
        self.group_id: int | None = None
        """Under which number acks are written; None while there is no connection: they are parked."""
        self._last_group_id: int | None = None
        self.holding: Held | None = None
        """What hears that messages were given back."""
        self.carrier: Any = None
        """What brings acks of other threads here, if there are any."""
        self._session = session
        self._waits = session.waits
        self._open: AckFlight | None = None
        self._unanswered: dict[AckFlight, None] = {}
        self._parked: list[AckFlight] = []
        self._landed = 0
        self._resumed = self._waits.event()
        self._timeline = timeline or session.timeline
        self._over: TickwheelError | None = None

    def add(self, message_id: int, epoch: int) -> AckFlight:
        """Adds an ack to the flight of this loop turn."""
        flight = self._open
        if flight is None or not flight.open:
            if self.is_stale:
                return self._refuse(AckFlight(self), message_id, epoch)
            flight = self._open = self._launch(AckFlight(self))
        flight.ids.append(message_id)
        flight.epochs.append(epoch)
        return flight

    @property
    def last_group_id(self) -> int | None:
        """Under which number acks are written, or were when there was a connection."""
        return self._last_group_id

    @property
    def topic(self) -> str:
        """Of the messages."""
        return self._topic

    @property
    def count(self) -> int:
        """How many acks there were so far."""
        return self._landed + sum(flight.count for flight in self._unanswered)

    def add_batch(self, columns: tuple[bytes, bytes]) -> AckFlight:
        """Adds the acks of a whole batch (packed ids and epochs), as a flight of its own."""
        if self.is_stale:
            return self._refuse(AckFlight(self, columns))
        return self._launch(AckFlight(self, columns))

    @property
    def is_stale(self) -> bool:
        """Whether the messages came in another timeline of the broker's log: nothing counts that becomes of them."""
        return self._timeline != self._session.timeline and self._timeline != ""

    def take_over(self, before: AckQueue) -> None:
        """What comes from now on is acked here, and what was not told of the queue before is told here."""
        self._untold, self.holding = before._untold, before.holding
        if before.carrier is not None:
            self.carrier = before.carrier.of(self)

    def start_anew(self) -> None:
        """Nothing is held of what came until now."""
        self._timeline, self._open = self._session.timeline, None

    def _refuse(self, flight: AckFlight, *receipt: int) -> AckFlight:
        self.check_open()
        flight.ids, flight.epochs, flight.open = list(receipt[:1]), list(receipt[1:]), False
        flight.refuse_receipts()
        flight.done = self._waits.event()
        flight.ended()
        flight.done.set()
        return flight

    async def nack(self, ids: Sequence[int], epochs: Sequence[int], how: GiveBack) -> list[ReceiptResult]:
        """Gives messages back, and waits for the answer."""
        self.check_open()
        self.let_go(ids, epochs)
        group_id = await self.group()
        if self.is_stale:
            return _stale(ids)
        body = await self._session.request(how.request(group_id, ids, epochs))
        assert isinstance(body, NackOk)
        return typed(ReceiptResult, body.results, len(ids))

    def let_go(self, ids: Sequence[int], epochs: Sequence[int]) -> None:
        """These messages are not held any longer."""
        if self.holding is not None:
            self.holding.settle(ids, epochs)

    async def extend(self, ids: Sequence[int], epochs: Sequence[int], duration: Delay) -> list[ReceiptResult]:
        """Moves the end of leases, and waits for the answer."""
        self.check_open()
        for_ms = duration_ms(duration, "duration")
        group_id = await self.group()
        if self.is_stale:
            return _stale(ids)
        request = Extend(group_id=group_id, ids=list(ids), epochs=list(epochs), for_ms=for_ms)
        body = await self._session.request(request)
        assert isinstance(body, ExtendOk)
        return typed(ReceiptResult, body.results, len(ids))

    async def give_back(self, ids: Sequence[int], epochs: Sequence[int]) -> list[ReceiptResult]:
        """Gives messages back as not looked at, by their receipts."""
        if not ids:
            return []
        group_id = await self.group()
        if self.is_stale:
            return _stale(ids)
        request = Return(group_id=group_id, ids=list(ids), epochs=list(epochs))
        body = await self._session.request(request)
        assert isinstance(body, ReturnOk)
        return typed(ReceiptResult, body.results, len(ids))

    @property
    def link(self) -> object | None:
        """The connection that stands now."""
        return self._session.link

    async def request(self, request: Request) -> AnswerBody:
        """Makes a request on the same session."""
        return await self._session.request(request)

    async def group(self) -> int:
        """The group's number; waits for the next connection if there is none."""
        with self._waits.within(self._session.timeout_s):
            while self.group_id is None and not self.is_stale:
                await self._resumed.wait()
                self.check_open()
            return self.group_id or 0
        raise NotConnected("There is no connection over which to give messages back.")

    def check_open(self) -> None:
        """Raises ClientClosed once the subscription was left, and other reasons why nothing can be acked any more."""
        if self._over is not None:
            raise self._over.copy()

    def close(self) -> None:
        """The subscription was left: what was not acked by then went to others."""
        if self._over is None:
            self.fail(
                ClientClosed(
                    "The subscription that this message came from was left.",
                    advice="Settle messages within its block; what was not acked there comes again.",
                )
            )

    def fail(self, error: TickwheelError) -> None:
        """Nothing can be acked any more, and what waits for the subscription to be renewed waits in vain."""
        self._over, self._open = error, None
        parked, self._parked = self._parked, []
        for flight in parked:
            self._session.fail(flight, error)
        if not isinstance(error, ClientForked):  # the parent's log tells of them
            self._untold.tell()
        self._resumed.set()

    def _launch(self, flight: AckFlight) -> AckFlight:
        self.check_open()
        self._session.submit(flight)
        self._session.see_off(flight)
        self._unanswered[flight] = None
        return flight

    @property
    def crowded(self) -> bool:
        """Whether too many acks are unanswered for another one to be taken without waiting."""
        return len(self._unanswered) >= FLIGHTS_MAX

    async def make_room(self) -> None:
        """Lets the writer run, and waits until fewer than FLIGHTS_MAX frames are unanswered."""
        await self._waits.turn()
        if self._open is not None:
            self._open.open = False
        while self.crowded:
            await next(iter(self._unanswered)).done.wait()

    async def confirm(self, flight: AckFlight, place: int | None = None) -> None:
        """Waits until the flight is answered.

        Raises AckRefused if its ack at ``place`` did not count; None: if any of them did not.
        """
        flight.awaited.add(place)
        try:
            await flight.done.wait()
        except BaseException:
            flight.awaited.discard(place)  # the ack goes its way, and the log tells what became of it
            raise
        if flight.error is not None:
            raise flight.error.copy()
        refused = dict(one for at, one in flight.refused.items() if place is None or at == place)
        for message_id in refused:
            self._untold.refused.pop(message_id, None)
        _raise_refused(refused)

    async def flush(self) -> None:
        """Waits until every ack so far is answered.

        Raises AckRefused if an ack did not count, and the error of the broker that kept a frame of acks from being
        looked at. What was raised once is not raised again.
        """
        waited = list(self._unanswered)
        for flight in waited:
            await flight.done.wait()
        lost = self._untold.take_lost()
        lost = next((flight.error for flight in waited if flight.error and flight.unawaited), lost)
        if lost is not None:
            raise lost.copy()
        refused = dict(self._untold.refused)
        self._untold.refused.clear()
        _raise_refused(refused)

    def park(self, flight: AckFlight) -> None:
        """Keeps a flight until the subscription is back."""
        if self._over is not None:  # it will not be
            self._session.fail(flight, self._over)
            return
        self._parked.append(flight)

    def resume(self, group_id: int) -> None:
        """The subscription is back: what was parked goes."""
        self.group_id = self._last_group_id = group_id
        self._timeline = self._timeline or self._session.timeline
        self._resumed.set()
        parked, self._parked = self._parked, []
        self._session.requeue(parked)

    def release(self) -> None:
        """The subscription is not renewed any more: what was acked under it goes all the same."""
        if self.group_id is None and self._last_group_id is not None:
            self.resume(self._last_group_id)

    def suspend(self) -> None:
        """The connection is lost."""
        self.group_id = None
        self._resumed = self._waits.event()

    def landed(self, flight: AckFlight) -> None:
        """The flight was answered, or failed."""
        if flight in self._unanswered:
            del self._unanswered[flight]
            self._landed += flight.count - self._settled_before(flight)
        if flight.refused:
            self._untold.remember(flight.refused.values())
            if None not in flight.awaited:
                untold = [one for place, one in flight.refused.items() if place not in flight.awaited]
                self._untold.refuse(untold)

    def lost(self, flight: AckFlight, error: TickwheelError) -> None:
        """The flight failed as a whole: no ack in it is known to count, and the messages may come again."""
        self._untold.lose(flight.unawaited, error)

    def _settled_before(self, flight: AckFlight) -> int:
        """How many acks were refused of messages that were known to be lost: they count among those."""
        if self.holding is None or not flight.ids:
            return 0
        held = self.holding
        return sum(held.is_settled((flight.ids[at], flight.epochs[at])) for at in flight.refused)

    def warn_of_rest(self) -> None:
        """The subscription ends: the log tells of what it was not yet told."""
        self._untold.tell()


def _stale(ids: Sequence[int]) -> list[ReceiptResult]:
    return [ReceiptResult.STALE_RECEIPT] * len(ids)


def _raise_refused(refused: dict[int, type[AckRefused]]) -> None:
    if not refused:
        return
    message_id, cls = next(iter(refused.items()))
    more = f" (and {len(refused) - 1:,} more acks were refused)" if len(refused) > 1 else ""
    codes = {refused_id: refused_cls.code for refused_id, refused_cls in refused.items()}
    raise cls(f"The ack of message {message_id} was refused: {cls.code}{more}.", refused=codes)
