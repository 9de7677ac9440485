"""What a subscription holds, and the renewal of its leases, so that a slow handler loses no message to another.

A message is held from its arrival until it is acked or given back, until its object (or that of its batch) is garbage,
or until it was held for as long as is allowed. At half a lease the leases of all that is held are renewed in one frame.
Nothing here costs anything a message while messages come and go within half a lease: objects are looked at when leases
are renewed, and which of them were acked meanwhile, the broker says in its answer.

What can no longer be renewed is dropped if it still waits here, and if it is in a handler's hands, the log tells of it.
"""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from tickwheel.client.calls import RequestCall
from tickwheel.client.consumer.acks import AckQueue
from tickwheel.client.consumer.message import BaseBatch, BaseMessage
from tickwheel.client.conversation import Conversation
from tickwheel.protocol.bodies.settling import Extend, ExtendOk
from tickwheel.protocol.errors import NotConnected, TickwheelError
from tickwheel.protocol.limits import MAX_IDS_A_REQUEST
from tickwheel.protocol.machine import AnswerBody

logger = logging.getLogger("tickwheel")

Receipt: TypeAlias = tuple[int, int]
"""Id and epoch."""

DEFAULT_MAX_HOLD_S: Final = 3600.0
_RENEWED_AT: Final = 0.5
"""Of a lease that much has passed when it is renewed; what has had a quarter goes with it, to share the frame."""
_SHARES_AT: Final = 0.25
_RETRY: Final = 0.125
_MARGIN: Final = 0.125
"""What is left of a lease when what waits under it is no more handed out without asking the broker."""
_RECEIPT_BYTES: Final = 16


class Parcel:
    """The messages of one delivery: they wait, are handed out one by one, and then are in the hands of handlers."""

    __slots__ = (
        "__weakref__",
        "_batch",
        "_known",
        "_seen",
        "_turn",
        "arrived",
        "handed",
        "rest",
        "until",
        "waits",
    )

    def __init__(self, batch: BaseBatch[Any], now: float, until: float) -> None:
        self.waits: BaseBatch[Any] | None = batch
        """The batch, as long as some of it was not handed out."""
        self.arrived = now
        self.handed = math.inf
        """When the whole batch was handed out."""
        self.until = until
        """When its leases end, by the clock of the event loop; never later than the broker thinks."""
        self.rest: Iterator[Any] = iter(())
        """Of a batch that is handed out one by one: what is left."""
        self._batch: weakref.ref[BaseBatch[Any]] = weakref.ref(batch)
        self._turn: list[Any] = []
        self._known: dict[Receipt, tuple[weakref.ref[BaseMessage], float]] | None = None
        self._seen = 0

    def __len__(self) -> int:
        return 0 if self.waits is None else len(self.waits)

    def hand_over(self, now: float) -> BaseBatch[Any]:
        """The whole batch: from now on it is held as long as its object, or that of one of its messages, lives."""
        batch, self.waits, self.handed = self.waits, None, now
        assert batch is not None
        return batch

    def begin(self, *, exactly: bool) -> Iterator[Any]:
        """Its messages, to be handed out one by one. ``exactly``: each will be looked at by itself."""
        assert self.waits is not None
        if not exactly:
            self.rest = iter(self.waits)
            return self.rest
        # Made at once, so that which of them were handed out can be seen by the place of the iterator.
        self._turn, self._known, self._seen = list(self.waits), {}, 0
        self.rest = iter(self._turn)
        return self.rest

    def take_rest(self) -> list[Any]:
        """What was not handed out; it is not handed out any more. Safe beside a thread that hands out."""
        return list(self.rest)

    def finish(self, now: float, *, exactly: bool) -> None:
        """All of it was handed out. ``exactly``: from now on each message is held as long as its own object lives, not
        as long as that of any message of its batch."""
        if self._known is not None and (exactly or self._known):
            self._look(now)
        else:
            self._known, self.handed = None, now
        # The iterator of a batch refers to it.
        self._turn, self.waits, self.rest = [], None, iter(())

    @property
    def receipts(self) -> list[Receipt]:
        """Of a parcel that waits."""
        return [] if self.waits is None else list(zip(self.waits.ids, self.waits.epochs, strict=True))

    def drop(self, gone: Container[Receipt]) -> int:
        """Leaves out messages of a parcel that waits; how many."""
        assert self.waits is not None
        before = len(self.waits)
        self.waits.drop(gone)
        return before - len(self.waits)

    @property
    def is_alive(self) -> bool:
        """Whether any of its messages or its batch lives."""
        return self._batch() is not None

    def held(self, now: float) -> Iterable[tuple[Receipt, float, bool]]:
        """(receipt, since when, whether it is in a handler's hands) of each message that may still be wanted."""
        if self._known is not None:
            self._look(now)
            yield from ((receipt, since, True) for receipt, (_, since) in self._known.items())
            yield from (((one.id, one.epoch), self.arrived, False) for one in self._turn[self._seen :])
            return
        batch = self._batch()
        if batch is not None:
            is_handed = self.waits is None
            since = self.handed if is_handed else self.arrived
            yield from ((receipt, since, is_handed) for receipt in zip(batch.ids, batch.epochs, strict=True))

    def _look(self, now: float) -> None:
        """Of what was handed out since the last look only who has it keeps it alive from now on."""
        assert self._known is not None
        known = {receipt: one for receipt, one in self._known.items() if one[0]() is not None}
        end = len(self._turn) - self.rest.__length_hint__()  # type: ignore[attr-defined]
        for place in range(self._seen, end):
            message = self._turn[place]
            self._turn[place] = None
            known[message.id, message.epoch] = weakref.ref(message), now
            del message
        self._known, self._seen = {key: one for key, one in known.items() if one[0]() is not None}, end


class Holding:
    """What one subscription holds."""

    def __init__(
        self,
        *,
        session: Conversation,
        topic: str,
        acks: AckQueue,
        max_hold_s: float,
        changed: Callable[[int], None],
    ) -> None:
        """``changed``: hears of leases that were renewed, and how many messages that waited were dropped."""
        self._session = session
        self._waits = session.waits
        self._topic = topic
        self._acks = acks
        self._max_hold_s = max_hold_s
        self._changed = changed
        self._lease_s = 0.0
        self._parcels: dict[Parcel, None] = {}
        self._settled: set[Receipt] = set()
        self._calls: set[_Renewal] = set()
        self._retry_at = 0.0
        self._is_urgent = False
        self._prune_at = 64
        self._last: Parcel | None = None
        self.given_back = 0
        """How many messages handlers gave back, or lost."""
        self._outlive = True
        """Messages lived longer than their batch was in turn, so each is looked at by itself."""
        self.current: Parcel | None = None
        """What is handed out one by one now."""
        self.revoked: set[Receipt] = set()
        """Messages of the current parcel that are not to be handed out."""

    # What comes and goes -------------------------------------------------------------------------

    def started(self, lease_s: float) -> None:
        """There is a connection. ``lease_s``: how long leases last there at least; 0: they cannot be renewed."""
        self._lease_s = lease_s if self._max_hold_s > 0 else 0.0
        if not self._lease_s:
            self._session.holdings.pop(self, None)
            return
        self._session.holdings[self] = None
        self._is_urgent = bool(self._parcels)
        self._session.leases_changed(0.0)

    @property
    def is_on(self) -> bool:
        """Whether leases are renewed, with a broker that knows how."""
        return self._max_hold_s > 0 and self._session.limits.holds

    def lease_told(self, lease_s: float) -> None:
        """What comes from now on has leases of another length; so has what is renewed. What came before keeps its
        own."""
        if self._lease_s:
            self._lease_s = lease_s
            self._session.leases_changed(0.0)

    def add(self, batch: BaseBatch[Any], now: float) -> Parcel:
        """Messages came. ``now``: when, at the earliest."""
        parcel = Parcel(batch, now, now + self._lease_s if self._lease_s else math.inf)
        if self._lease_s:
            self._parcels[parcel] = None
            if len(self._parcels) > self._prune_at:
                self._parcels = {one: None for one in self._parcels if one.is_alive}
                self._prune_at = max(64, 2 * len(self._parcels))
            self._session.leases_changed(parcel.until - self._lease_s * (1 - _RENEWED_AT))
        return parcel

    def begin(self, parcel: Parcel, *, is_fast: bool) -> Iterator[Any]:
        """Its messages are the next ones; those of the one before were all handed out. ``is_fast``: this will not last,
        so that all of it is held until it is over."""
        self.end_turn()
        self.revoked.clear()
        self.current = parcel
        return parcel.begin(exactly=self._outlive or not is_fast)

    def end_turn(self) -> None:
        """All of the current parcel was handed out."""
        if self.current is None:
            return
        # The loop of a user has the last message of the one before until it has the next, so it is asked later.
        self._outlive = self._last is None or self._last.is_alive
        self.current.finish(self._waits.now(), exactly=self._outlive)
        self._last, self.current = self.current, None

    def put_back(self, parcel: Parcel) -> Parcel:
        """What was not handed out of the current parcel, as one that waits."""
        now = self._waits.now()
        batch = parcel.waits
        assert batch is not None
        unseen = {(message.id, message.epoch) for message in parcel.take_rest()}
        batch.drop({receipt for receipt in parcel.receipts if receipt not in unseen})
        parcel.finish(now, exactly=True)
        self._last, self.current = parcel, None
        rest = Parcel(batch, parcel.arrived, parcel.until)
        self._parcels[rest] = None
        return rest

    def settle(self, ids: Sequence[int], epochs: Sequence[int], waited: int = 0) -> None:
        """These are held no longer: they were given back, or leased anew. ``waited``: so many of them were
        not handed out."""
        settled = set(zip(ids, epochs, strict=True)) - self._settled
        self.given_back += max(0, len(settled) - waited)
        if self._lease_s:
            self._settled |= settled

    def is_settled(self, receipt: Receipt) -> bool:
        """Whether it is known that this one is held no longer."""
        return receipt in self._settled

    def forget(self, parcel: Parcel) -> None:
        """A parcel was dropped."""
        self._parcels.pop(parcel, None)

    def start_anew(self, acks: AckQueue) -> int:
        """Nothing is held any more; how much was in the hands of handlers. What comes is acked elsewhere."""
        now = self._waits.now()
        in_hand = sum(
            is_handed and receipt not in self._settled
            for parcel in self._parcels
            for receipt, _, is_handed in parcel.held(now)
        )
        self._acks, self.given_back = acks, 0
        self._parcels.clear()
        self._settled.clear()
        self.revoked.clear()
        self.current = self._last = None
        return in_hand

    def clear(self) -> None:
        """The subscription has ended."""
        self._session.holdings.pop(self, None)
        self._lease_s = 0.0
        self._parcels.clear()
        self.current = self._last = None

    # Handing out ---------------------------------------------------------------------------------

    def may_hand_out(self, parcel: Parcel) -> bool:
        """Whether its leases surely last; otherwise the broker is asked, and ``changed`` hears of it."""
        if parcel.until > self._waits.now() + _MARGIN * self._lease_s:
            return True
        if self._lease_s and not self._calls:
            self._is_urgent = True
            self._session.leases_changed(0.0)
        return not self._lease_s

    # Renewing ------------------------------------------------------------------------------------

    def turn(self, now: float) -> float:
        """Renews what is to be renewed now; when to come again."""
        if not self._lease_s or self._calls or self._acks.group_id is None:
            return math.inf
        ends = min((parcel.until for parcel in self._parcels), default=math.inf)
        due = max(ends - self._lease_s * (1 - _RENEWED_AT), self._retry_at)
        if self._is_urgent and now >= self._retry_at:
            due = now
        if due > now:
            return due
        everything, self._is_urgent = self._is_urgent, False
        self._renew(now, now + self._lease_s * (1 if everything else 1 - _SHARES_AT))
        # A frame that is on its way comes back; if nothing had to be renewed, there is a later time.
        return math.inf if self._calls else self.turn(now)

    def _renew(self, now: float, ending_by: float) -> None:
        wanted: list[tuple[Parcel, list[Receipt]]] = []
        alive: set[Receipt] = set()
        kept: dict[Parcel, None] = {}
        for parcel in self._parcels:
            every = self._every_receipt(parcel, now)
            alive.update(every)
            receipts = [receipt for receipt in every if receipt not in self._settled]
            if receipts and parcel.until <= ending_by:
                wanted.append((parcel, receipts))
            elif not receipts:
                parcel.until = math.inf
            if every or parcel is self.current:
                kept[parcel] = None
        self._parcels = kept
        self._settled &= alive
        self._send(wanted, now)

    def _every_receipt(self, parcel: Parcel, now: float) -> list[Receipt]:
        """Of what is held, also if it is settled."""
        held = list(parcel.held(now))
        over = [
            receipt
            for receipt, since, _ in held
            if now - since > self._max_hold_s and receipt not in self._settled
        ]
        if over:
            self._over(parcel, over)
        return [receipt for receipt, _, _ in held]

    def _over(self, parcel: Parcel, over: list[Receipt]) -> None:
        logger.warning(
            "message %d of %r%s was held for %g s, un-acked: it is not kept any longer and is delivered again when its "
            "lease ends. Ack it sooner, give subscribe() a longer max_hold, or a smaller credit if it was not yet "
            "handed out.",
            over[0][0],
            self._topic,
            f" and {len(over) - 1:,} more" if len(over) > 1 else "",
            self._max_hold_s,
        )
        self._drop(parcel, over)

    def _drop(self, parcel: Parcel, receipts: Iterable[Receipt]) -> None:
        """They are not renewed any more, and what waits is not handed out."""
        gone = set(receipts)
        self._settled |= gone
        if parcel is self.current:
            self.revoked |= gone
        elif parcel.waits is not None:
            self._changed(parcel.drop(gone))

    def _send(self, wanted: list[tuple[Parcel, list[Receipt]]], now: float) -> None:
        group_id, for_ms = self._acks.group_id, max(1, round(self._lease_s * 1_000))
        assert group_id is not None
        most = max(1, min(MAX_IDS_A_REQUEST, self._session.limits.max_frame_bytes // _RECEIPT_BYTES - 16))
        pairs = [(parcel, receipt) for parcel, receipts in wanted for receipt in receipts]
        for start in range(0, len(pairs), most):
            part = pairs[start : start + most]
            ids, epochs = zip(*(receipt for _, receipt in part), strict=True)
            call = _Renewal(
                holding=self,
                group_id=group_id,
                ids=list(ids),
                epochs=list(epochs),
                for_ms=for_ms,
                deadline=self._session.deadline(),
            )
            call.parcels, call.until = [parcel for parcel, _ in part], now + self._lease_s
            self._calls.add(call)
            self._session.submit(call)

    def renewed(self, call: _Renewal, results: Sequence[str]) -> None:
        """The broker answered."""
        self._calls.discard(call)
        lost: dict[Parcel, list[tuple[Receipt, str]]] = {}
        for parcel, receipt, result in zip(call.parcels, call.receipts, results, strict=False):
            parcel.until = max(parcel.until, call.until)
            if result != "extended" and receipt not in self._settled:
                lost.setdefault(parcel, []).append((receipt, result))
        self._lose(lost)
        self._go_on()

    def not_renewed(self, call: _Renewal, error: TickwheelError) -> None:
        """The broker refused, or the connection broke."""
        self._calls.discard(call)
        if not isinstance(error, NotConnected):
            self._retry_at = self._waits.now() + max(0.05, self._lease_s * _RETRY)
            self._is_urgent = error.retryable
            if not error.retryable:
                lost: dict[Parcel, list[tuple[Receipt, str]]] = {}
                for parcel, receipt in zip(call.parcels, call.receipts, strict=True):
                    lost.setdefault(parcel, []).append((receipt, error.code))
                self._lose(lost)
        self._go_on()

    def _go_on(self) -> None:
        self._changed(0)
        if not self._calls:
            self._session.leases_changed(0.0)

    def _lose(self, lost: dict[Parcel, list[tuple[Receipt, str]]]) -> None:
        in_hand: list[tuple[Receipt, str]] = []
        dropped = 0
        for parcel, some in lost.items():
            handed = {receipt for receipt, _, is_handed in parcel.held(self._waits.now()) if is_handed}
            # Who handles it may well have acked it.
            in_hand += [one for one in some if one[0] in handed and one[1] != "already_acked"]
            dropped += sum(1 for receipt, _ in some if receipt not in handed)
            self._drop(parcel, [receipt for receipt, _ in some])
        if dropped:
            logger.info(
                "%d messages of %r that waited here are no longer ours: dropped", dropped, self._topic
            )
        self.given_back += len(in_hand)
        if in_hand:
            (message_id, epoch), result = in_hand[0]
            logger.warning(
                "message %d of %r (epoch %d)%s is being handled, but is no longer ours (%s): it may be handled again, "
                "and its ack is refused. Handlers must stand that. It happens when the connection was away, or the "
                "loop did not turn, for longer than ack_wait: run blocking code in threads, or raise ack_wait.",
                message_id,
                self._topic,
                epoch,
                f" and {len(in_hand) - 1:,} more" if len(in_hand) > 1 else "",
                result,
            )


class _Renewal(RequestCall):
    """EXTEND. It means nothing on another connection, where everything is renewed anew."""

    __slots__ = ("_holding", "parcels", "receipts", "until")

    def __init__(
        self,
        *,
        holding: Holding,
        group_id: int,
        ids: list[int],
        epochs: list[int],
        for_ms: int,
        deadline: float,
    ) -> None:
        super().__init__(
            Extend(group_id=group_id, ids=ids, epochs=epochs, for_ms=for_ms, only_longer=True), deadline
        )
        self.bound = True
        self.receipts = list(zip(ids, epochs, strict=True))
        self.parcels: list[Parcel] = []
        self.until = 0.0
        self._holding = holding

    def answered(self, body: AnswerBody) -> None:
        super().answered(body)
        assert isinstance(body, ExtendOk)
        self._holding.renewed(self, body.results)

    def failed(self, error: TickwheelError) -> None:
        self._holding.not_renewed(self, error)
