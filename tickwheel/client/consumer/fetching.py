"""Messages that are asked for once, and settled by their receipts: no subscription, nothing to renew.

A request that was written and not answered before its connection broke is not repeated, because the broker may have
given out messages for it: it raises RequestUncertain, and those messages come again when their leases end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from tickwheel.client.calls import Call, Link, RequestCall, encode_request
from tickwheel.client.checks import many_ids, whole
from tickwheel.client.columns import check_name
from tickwheel.client.consumer.acks import AckQueue
from tickwheel.client.consumer.giving_back import give_back
from tickwheel.client.consumer.message import BaseBatch, Batch
from tickwheel.client.consumer.subscription import Start, start_of_group
from tickwheel.client.conversation import Conversation
from tickwheel.client.requests import Requests, chunks, typed
from tickwheel.client.results import ReceiptResult
from tickwheel.client.times import Delay, duration_ms
from tickwheel.protocol.bodies.base import Request
from tickwheel.protocol.bodies.fetching import Fetch
from tickwheel.protocol.bodies.settling import Extend, ExtendOk, NackOk, Return, ReturnOk
from tickwheel.protocol.errors import BadArgument, RequestUncertain, TickwheelError
from tickwheel.protocol.frames import FrameType
from tickwheel.protocol.limits import MAX_CREDIT, MAX_FETCH_BYTES, MAX_ORDERED_BATCH
from tickwheel.protocol.machine import AnswerBody
from tickwheel.protocol.messages import AckCode, AckOk, FetchOk, encode_ack, pack_column

Receipts: TypeAlias = Sequence[tuple[int, int]]
"""(id, epoch) of deliveries."""

_MOST_ACKS: Final = 65_536

B = TypeVar("B", bound=BaseBatch[Any])


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """The arguments of a fetch, as ``Client.fetch`` has them."""

    count: int
    wait: Delay | None
    lease: Delay | None
    start: Start
    max_bytes: int
    ordered_batch: int = 1

    def request(self, topic: str, group: str) -> Fetch:
        """Raises BadTopicName, BadArgument, BadTime."""
        check_name(topic)
        check_name(group, "group")
        return Fetch(
            topic=topic,
            group=group,
            count=whole(self.count, "count", 0, MAX_CREDIT),
            max_bytes=whole(self.max_bytes, "max_bytes", 1, MAX_FETCH_BYTES),
            wait_ms=0 if self.wait is None else duration_ms(self.wait, "wait"),
            start=start_of_group(self.start),
            lease_ms=None if self.lease is None else max(1, duration_ms(self.lease, "lease")),
            ordered_batch=whole(self.ordered_batch, "ordered_batch", 1, MAX_ORDERED_BATCH),
        )


class FetchCall(RequestCall):
    """A FETCH. What it is answered after its caller has gone goes back."""

    __slots__ = ("_request", "_session", "timeline")

    def __init__(self, session: Conversation, request: Fetch) -> None:
        told = msgspec.structs.replace(request, probes=session.has_probes)
        super().__init__(told, session.deadline() + request.wait_ms / 1_000)
        self._session, self._request = session, request
        self.timeline = ""

    def payload(self, link: Link) -> bytes | None:
        if self._session.has_probes:
            return super().payload(link)
        return encode_request(self._request)  # an older broker may be there now

    @property
    def repeatable(self) -> bool:
        return False

    def lost(self) -> TickwheelError:
        return RequestUncertain(
            "The connection broke while messages were fetched. What was on its way comes again when its lease ends.",
            advice="Fetch again.",
        )

    def answered(self, body: AnswerBody) -> None:
        super().answered(body)
        self.timeline = self._session.timeline
        if self.abandoned:
            self._give_back()

    def give_up(self) -> None:
        """Its caller has gone, perhaps just when the answer had come."""
        self._session.end_fetch(self)
        self._give_back()

    def _give_back(self) -> None:
        body, self.body = self.body, None
        if isinstance(body, FetchOk) and body.delivery.count:
            ids, epochs = list(body.delivery.ids), list(body.delivery.epochs)
            with suppress(TickwheelError):
                request = Return(group_id=body.group_id, ids=ids, epochs=epochs)
                self._session.see_off(self._session.submit_bound(request))


class Fetched(Batch):
    """Messages that were fetched; none if none got ready in time. They and their receipts, which others may settle too,
    are good until their leases end: nothing renews these."""

    attempts: tuple[int, ...] = ()
    """Which attempt of its message each delivery is."""

    @property
    def group_id(self) -> int:
        """The number of the group, to which the receipts belong."""
        return self.delivery.subscription

    async def give_back(self) -> list[ReceiptResult]:
        """Gives all of them back as not looked at: their delivery was no attempt, and they come again at once."""
        return await self.acks.give_back(self.ids, self.epochs)


class _AckCall(Call):
    """One ACK frame whose answer is wanted for each receipt."""

    __slots__ = ("_payload", "results")

    frame_type = FrameType.ACK

    def __init__(self, group_id: int, ids: Sequence[int], epochs: Sequence[int], deadline: float) -> None:
        self._payload = encode_ack(group_id, pack_column("Q", ids), pack_column("I", epochs))
        super().__init__(len(self._payload), deadline)
        self.results = [ReceiptResult.ACKED] * len(ids)

    def payload(self, link: Link) -> bytes | None:
        return self._payload

    def refuse_receipts(self) -> bool:
        self.results = [ReceiptResult.STALE_RECEIPT] * len(self.results)
        return True

    def answered(self, body: AnswerBody) -> None:
        assert isinstance(body, AckOk)
        for exception in body.exceptions:
            # Of a frame that went twice this is what the first copy did.
            if not (self.repeated and exception.code == AckCode.ALREADY_ACKED):
                self.results[exception.position] = ReceiptResult[AckCode(exception.code).name]


class FetchRequests(Requests):
    """Fetching, and settling by receipts."""

    async def fetch(
        self,
        topic: str,
        group: str = "default",
        *,
        count: int = 1,
        wait: Delay | None = None,
        lease: Delay | None = None,
        start: Start = "earliest",
        max_bytes: int = MAX_FETCH_BYTES,
        ordered_batch: int = 1,
    ) -> Fetched:
        """Up to ``count`` messages of a topic for a group, without a subscription: what is ready at once, else what
        gets ready first within ``wait`` (up to ten minutes), perhaps none.

        They are held until they are acked or their leases end, also when this client is closed; nothing renews them.
        ``lease``: how long, by default as the topic says. ``max_bytes``: no more once the answer has so many. ``start``
        as in ``subscribe``; ``count`` 0 makes topic and group, and fetches nothing. ``ordered_batch``: up to so many
        messages of one ordering key (256 at most) that follow each other, to be handled in this order. Raises
        RequestUncertain when the connection broke meanwhile: messages may have been lost on their way, and come again
        when their leases end.
        """
        options = FetchOptions(count, wait, lease, start, max_bytes, ordered_batch)
        fetched, attempts = await self.fetch_as(Fetched, topic, group, options)
        fetched.attempts = attempts
        return fetched

    async def fetch_as(
        self, batch_class: type[B], topic: str, group: str, options: FetchOptions
    ) -> tuple[B, tuple[int, ...]]:
        """As ``fetch``, with another class of batches: for twins of this client. The messages, and their attempts."""
        session = self._session
        call = FetchCall(session, options.request(topic, group))
        await session.enqueue(call)
        try:
            await session.wait(call)
        except BaseException:
            call.give_up()
            raise
        assert isinstance(call.body, FetchOk)
        acks = AckQueue(session, group, topic, call.timeline)
        acks.resume(call.body.group_id)
        return batch_class(call.body.delivery, topic, acks), call.body.attempts

    async def ack(self, group_id: int, receipts: Receipts) -> list[ReceiptResult]:
        """Acks deliveries of a group by (id, epoch), whoever was given them; a result for each, when it is safe on the
        broker's disk: ACKED, or why the receipt does not count."""
        results: list[ReceiptResult] = []
        ids, epochs = receipt_columns(receipts)
        for at in range(0, len(ids), _MOST_ACKS):
            part = slice(at, at + _MOST_ACKS)
            call = _AckCall(one_group(group_id), ids[part], epochs[part], self._session.deadline())
            await self._session.enqueue(call)
            await self._session.wait(call)
            results += call.results
        return results

    async def nack(
        self,
        group_id: int,
        receipts: Receipts,
        delay: Delay | None = None,
        error: str = "",
        *,
        delay_ms: int | None = None,
        give_up: bool = False,
        uncounted: bool = False,
    ) -> list[ReceiptResult]:
        """Gives deliveries of a group back by (id, epoch), as ``Message.nack``."""
        how = give_back(delay, error, delay_ms, give_up=give_up, uncounted=uncounted)
        return await self._settle(receipts, partial(how.request, one_group(group_id)), NackOk)

    async def extend(self, group_id: int, receipts: Receipts, duration: Delay) -> list[ReceiptResult]:
        """Keeps deliveries of a group by (id, epoch) for ``duration`` from now on."""
        for_ms = duration_ms(duration, "duration")
        number = one_group(group_id)

        def request(ids: list[int], epochs: list[int]) -> Extend:
            return Extend(group_id=number, ids=ids, epochs=epochs, for_ms=for_ms)

        return await self._settle(receipts, request, ExtendOk)

    async def give_back(self, group_id: int, receipts: Receipts) -> list[ReceiptResult]:
        """Gives deliveries of a group back by (id, epoch) as not looked at: they were no attempt, and come again at
        once. RETURNED, or why the receipt does not count."""
        number = one_group(group_id)

        def request(ids: list[int], epochs: list[int]) -> Return:
            return Return(group_id=number, ids=ids, epochs=epochs)

        return await self._settle(receipts, request, ReturnOk)

    async def _settle(
        self,
        receipts: Receipts,
        request: Callable[[list[int], list[int]], Request],
        answer: type[NackOk] | type[ExtendOk] | type[ReturnOk],
    ) -> list[ReceiptResult]:
        """As many receipts as fit into a request at a time."""
        results: list[ReceiptResult] = []
        for ids, epochs in _parts(receipts):
            answered = await self._answer(request(ids, epochs), answer)
            results += typed(ReceiptResult, answered.results, len(ids))
        return results


def one_group(group_id: int) -> int:
    """The number of a group. Raises BadArgument."""
    return whole(group_id, "group_id", 0, 0xFFFF_FFFF, "It stands in what was fetched.")


def receipt_columns(receipts: Receipts) -> tuple[list[int], list[int]]:
    """Ids and epochs. Raises BadArgument."""
    try:
        pairs = [(message_id, epoch) for message_id, epoch in receipts]
    except (TypeError, ValueError):
        raise BadArgument(
            "The receipts are no list of pairs.", advice="Give [(message.id, message.epoch), …]."
        ) from None
    ids = many_ids([message_id for message_id, _ in pairs]) if pairs else []
    return ids, [whole(epoch, "an epoch", 0, 0xFFFF_FFFF) for _, epoch in pairs]


def _parts(receipts: Receipts) -> list[tuple[list[int], list[int]]]:
    """As many as fit into a request each."""
    ids, epochs = receipt_columns(receipts)
    return list(zip(chunks(ids), chunks(epochs), strict=True))
