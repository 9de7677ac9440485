"""AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue: what becomes of what was received."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final

import trio
from google.protobuf.message import DecodeError

from tickwheel import Client, ReceiptResult
from tickwheel.errors import UnknownGroup
from tickwheel.protocol.limits import MAX_ID
from tickwheel_gateway.calls.answers import check_count, refusal, tell, tell_all
from tickwheel_gateway.calls.deadlines import InTime
from tickwheel_gateway.calls.receiving import check_invisible
from tickwheel_gateway.calls.service import Asked
from tickwheel_gateway.calls.together import Single, Together
from tickwheel_gateway.config import Config
from tickwheel_gateway.delivery.acking import Acking, Delivered
from tickwheel_gateway.delivery.clock import NowMs, wall_ms
from tickwheel_gateway.delivery.dead_letters import DeadLetters, Dying
from tickwheel_gateway.delivery.fetched import held_of
from tickwheel_gateway.delivery.renewing import Renewing
from tickwheel_gateway.wire import schema
from tickwheel_gateway.wire.codes import Code, Refused
from tickwheel_gateway.wire.handles import Receipt, decode_receipt, encode_receipt
from tickwheel_gateway.wire.many import Acks
from tickwheel_gateway.wire.names import group_of, topic_of

EXPIRED: Final = "receipt handle is expired"
LEAST_NACK_MS: Final = 1_000
"""Of push consumers: Node's says milliseconds for seconds, or nothing."""
_MOST_U32: Final = 0xFFFF_FFFF
_ACKED: Final = frozenset({ReceiptResult.ACKED, ReceiptResult.ALREADY_ACKED})
_NACKED: Final = frozenset({ReceiptResult.NACKED, ReceiptResult.DEAD})


@dataclass(eq=False, slots=True)
class _Acks:
    """The entries of a call, until each has an outcome."""

    single: Single
    request: Any
    outcomes: list[Refused | None]
    left: int = 0
    """Without an outcome."""

    def answer(self, together: Together) -> None:
        """Answers the call."""
        response = _answer_to_acks(self.request, self.outcomes)
        together.answer(self.single, response.status.code, response.SerializeToString())


@dataclass(eq=False, slots=True)
class _Part:
    """The entries of a call that are of one group."""

    acks: _Acks
    places: list[int] = field(default_factory=list)
    pairs: list[Delivered] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class _Group:
    """What is to be acked for one group of consumers."""

    usual: list[int] = field(default_factory=list)
    """Places of calls with one entry, which the C code has read."""
    parts: list[_Part] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class _Read:
    """Calls that arrived together."""

    client: Client
    together: Together
    calls: list[Single]
    acks: Acks
    groups: dict[int, _Group] = field(default_factory=dict)
    """By number, until they are answered."""

    def group(self, group_id: int) -> _Group:
        """That of a number."""
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = _Group()
        return group

    def pairs(self, group_id: int) -> list[Delivered]:
        """The receipts of a group."""
        group, receipts = self.groups[group_id], self.acks.receipts
        return [
            *(receipts[place] for place in group.usual),
            *(pair for part in group.parts for pair in part.pairs),
        ]

    def tell(self, group_id: int, outcomes: list[Refused | None]) -> None:
        """Answers the calls that have nothing of another group, with outcomes as the receipts are."""
        group = self.groups.pop(group_id)
        told = iter(outcomes[len(group.usual) :])
        acked = []
        for place, outcome in zip(group.usual, outcomes, strict=False):
            if outcome is None:
                acked.append(place)
            else:
                single = self.calls[place]
                request = schema.AckMessageRequest.FromString(single.call.request)
                _Acks(single, request, [outcome]).answer(self.together)
        if acked:
            calls = [self.calls[place] for place in acked]
            self.together.answer_all(Code.OK, calls, self.acks.answers(acked))
        for part in group.parts:
            acks = part.acks
            for place in part.places:
                acks.outcomes[place] = next(told)
            acks.left -= len(part.places)
            if not acks.left:
                acks.answer(self.together)


class Settling:
    """Answers what a consumer says of messages that it has received."""

    def __init__(
        self,
        *,
        config: Config,
        acking: Acking,
        renewing: Renewing,
        dead_letters: DeadLetters,
        now_ms: NowMs = wall_ms,
    ) -> None:
        self._config = config
        self._acking = acking
        self._renewing = renewing
        self._dead_letters = dead_letters
        self._now_ms = now_ms

    async def ack(self, client: Client, together: Together) -> None:
        """Answers calls of AckMessage. Each entry has its own status. The receipts of a group go together."""
        calls = together.left
        read = _Read(client, together, calls, Acks([single.call.request for single in calls], self._now_ms()))
        usual, groups = read.acks.are_usual, read.acks.groups
        for place, single in enumerate(calls):
            if usual[place]:
                read.group(groups[place]).usual.append(place)
                continue
            try:
                self._read(single, read)
            except DecodeError:
                together.garbage(single)
            except Refused as error:
                together.refuse(single, error)
        await together.in_time(partial(self._ack_all, read), client)

    def _read(self, single: Single, read: _Read) -> None:
        """A call that is not usual. Raises DecodeError, Refused."""
        request = schema.AckMessageRequest.FromString(single.call.request)
        _check_names(request)
        if not request.entries:
            raise Refused(Code.BAD_REQUEST, "there is no entry")
        check_count(len(request.entries), "entries")
        acks = _Acks(single, request, [None] * len(request.entries))
        parts: dict[int, _Part] = {}
        for place, entry in enumerate(request.entries):
            try:
                receipt = self._receipt(entry.receipt_handle)
            except Refused as error:
                acks.outcomes[place] = error
                continue
            part = parts.get(receipt.group_id)
            if part is None:
                part = parts[receipt.group_id] = _Part(acks)
                read.group(receipt.group_id).parts.append(part)
            part.places.append(place)
            part.pairs.append((receipt.id, receipt.epoch))
            acks.left += 1
        if not acks.left:
            acks.answer(read.together)

    async def _ack_all(self, read: _Read) -> None:
        """Groups that are not answered may be tried again."""
        if len(read.groups) == 1:
            await self._ack_group(read, *read.groups)
            return
        async with trio.open_nursery() as nursery:
            for group_id in read.groups:
                nursery.start_soon(self._ack_group, read, group_id)

    async def _ack_group(self, read: _Read, group_id: int) -> None:
        read.tell(group_id, await self._ack(read.client, group_id, read.pairs(group_id)))

    async def _ack(self, client: Client, group_id: int, pairs: list[Delivered]) -> list[Refused | None]:
        try:
            results = await self._acking.ack(client, group_id, pairs)
        except UnknownGroup:
            results = [ReceiptResult.NOT_FOUND] * len(pairs)
        except Exception as error:  # entries of other groups have their own answers
            return [refusal(error, "AckMessage")] * len(pairs)
        self._renewing.drop(group_id, pairs)
        return [None if result in _ACKED else _not_counted(result) for result in results]

    async def change(self, asked: Asked, request: Any) -> Any:
        """ChangeInvisibleDuration. Raises Refused, and what the broker refuses."""
        _check_names(request)
        invisible_ms = schema.milliseconds(request.invisible_duration)
        check_invisible(invisible_ms, 0, self._config.invisible_max_ms)
        receipt = self._receipt(request.receipt_handle)
        if receipt.is_renewed:
            invisible_ms = max(invisible_ms, LEAST_NACK_MS)
        until_ms = self._now_ms() + invisible_ms
        with InTime(asked.call, asked.client):
            if receipt.is_renewed or not invisible_ms:
                await self._nack(asked, receipt, invisible_ms)
            else:
                await self._extend(asked, receipt, invisible_ms)
        response = schema.ChangeInvisibleDurationResponse()
        tell(response.status, Code.OK)
        response.receipt_handle = encode_receipt(receipt._replace(until_ms=until_ms))
        return response

    async def _nack(self, asked: Asked, receipt: Receipt, delay_ms: int) -> None:
        pairs = [(receipt.id, receipt.epoch)]
        self._renewing.drop(receipt.group_id, pairs)
        try:
            (result,) = await asked.client.nack(receipt.group_id, pairs, delay_ms=delay_ms)
        except UnknownGroup:
            result = ReceiptResult.NOT_FOUND
        if result not in _NACKED:
            raise _not_counted(result)

    async def _extend(self, asked: Asked, receipt: Receipt, for_ms: int) -> None:
        pairs = [(receipt.id, receipt.epoch)]
        try:
            (result,) = await asked.client.extend(receipt.group_id, pairs, timedelta(milliseconds=for_ms))
        except UnknownGroup:
            result = ReceiptResult.NOT_FOUND
        if result != ReceiptResult.EXTENDED:
            raise _not_counted(result)

    async def forward(self, asked: Asked, request: Any) -> Any:
        """ForwardMessageToDeadLetterQueue. Raises Refused, and what the broker refuses."""
        _check_names(request)
        receipt = self._receipt(request.receipt_handle)
        with InTime(asked.call, asked.client):
            await self._forward(asked, request, receipt)
        response = schema.ForwardMessageToDeadLetterQueueResponse()
        tell(response.status, Code.OK)
        return response

    async def _forward(self, asked: Asked, request: Any, receipt: Receipt) -> None:
        message = await asked.client.message(id=receipt.id)
        if message is None or len(message.body) != message.body_bytes:
            raise _not_counted(ReceiptResult.NOT_FOUND)
        dying = Dying(
            request.group.name,
            request.topic.name,
            receipt.group_id,
            receipt.epoch,
            held_of(message),
            message.priority,
        )
        self._renewing.drop(receipt.group_id, [(receipt.id, receipt.epoch)])
        try:
            result = await self._dead_letters.forward(asked.client, dying)
        except UnknownGroup:
            result = ReceiptResult.NOT_FOUND
        if result != ReceiptResult.ACKED:
            raise _not_counted(result)

    def _receipt(self, text: str) -> Receipt:
        """Raises Refused."""
        receipt = decode_receipt(text)
        if receipt.id > MAX_ID or max(receipt.group_id, receipt.epoch) > _MOST_U32:
            raise _not_counted(ReceiptResult.NOT_FOUND)
        if receipt.has_expired(self._now_ms()):
            raise Refused(Code.INVALID_RECEIPT_HANDLE, EXPIRED)
        return receipt


def _check_names(request: Any) -> None:
    topic_of(request.topic.name)
    group_of(request.group.name)


def _not_counted(result: ReceiptResult) -> Refused:
    return Refused(Code.INVALID_RECEIPT_HANDLE, f"the receipt does not count: {result}")


def _answer_to_acks(request: Any, outcomes: list[Refused | None]) -> Any:
    response = schema.AckMessageResponse()
    for entry, refused in zip(request.entries, outcomes, strict=True):
        answer = response.entries.add(message_id=entry.message_id, receipt_handle=entry.receipt_handle)
        _tell_outcome(answer.status, refused)
    tell_all(response.status, [answer.status.code for answer in response.entries])
    if outcomes[0] is not None and response.status.code == outcomes[0].code:
        response.status.message += f": {outcomes[0].text}"  # clients look for the name, and show the text
    return response


def _tell_outcome(status: Any, refused: Refused | None) -> None:
    if refused is None:
        tell(status, Code.OK)
    else:
        tell(status, refused.code, refused.text)
