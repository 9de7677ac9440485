"""AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue: what becomes of what was received."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from tickwheel import ReceiptResult
from tickwheel.errors import UnknownGroup
from tickwheel.protocol.limits import MAX_ID
from tickwheel_gateway.calls.answers import refusal, tell, tell_all
from tickwheel_gateway.calls.deadlines import InTime
from tickwheel_gateway.calls.receiving import check_invisible
from tickwheel_gateway.calls.service import Asked
from tickwheel_gateway.config import Config
from tickwheel_gateway.delivery.acking import Acking
from tickwheel_gateway.delivery.clock import NowMs, wall_ms
from tickwheel_gateway.delivery.dead_letters import DeadLetters, Dying
from tickwheel_gateway.delivery.fetched import held_of
from tickwheel_gateway.delivery.renewing import Renewing
from tickwheel_gateway.wire import schema
from tickwheel_gateway.wire.codes import Code, Refused
from tickwheel_gateway.wire.handles import Receipt, decode_receipt, encode_receipt
from tickwheel_gateway.wire.names import group_of, topic_of

EXPIRED: Final = "receipt handle is expired"
LEAST_NACK_MS: Final = 1_000
"""Of push consumers: Node's says milliseconds for seconds, or nothing."""
_MOST_U32: Final = 0xFFFF_FFFF
_ACKED: Final = frozenset({ReceiptResult.ACKED, ReceiptResult.ALREADY_ACKED})
_NACKED: Final = frozenset({ReceiptResult.NACKED, ReceiptResult.DEAD})


class Settling:
    """Answers what a consumer says of messages that it has received."""

    def __init__(
        self,
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

    async def ack(self, asked: Asked, request: Any) -> Any:
        """AckMessage. Each entry has its own status. Raises Refused."""
        _check_names(request)
        if not request.entries:
            raise Refused(Code.BAD_REQUEST, "there is no entry")
        outcomes: list[Refused | None] = [None] * len(request.entries)
        by_group: dict[int, list[tuple[int, Receipt]]] = {}
        for place, entry in enumerate(request.entries):
            try:
                receipt = self._receipt(entry.receipt_handle)
            except Refused as error:
                outcomes[place] = error
            else:
                by_group.setdefault(receipt.group_id, []).append((place, receipt))
        with InTime(asked.call, asked.client):
            for group_id, placed in by_group.items():
                refusals = await self._ack(asked, group_id, [receipt for _, receipt in placed])
                for (place, _), refused in zip(placed, refusals, strict=True):
                    outcomes[place] = refused
        return _answer_to_acks(request, outcomes)

    async def _ack(self, asked: Asked, group_id: int, receipts: list[Receipt]) -> list[Refused | None]:
        pairs = [(receipt.id, receipt.epoch) for receipt in receipts]
        try:
            results = await self._acking.ack(asked.client, group_id, pairs)
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
