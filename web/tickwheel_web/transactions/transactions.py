"""Transactions: sends, cancels, reschedules and acks that happen together or not at all."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from msgspec import UNSET
from starlette.responses import Response

from tickwheel import Transaction as Open
from tickwheel.errors import BadArgument, TickwheelError, TransactionRefused
from tickwheel.protocol.receipts import decode_receipt
from tickwheel_web import reading
from tickwheel_web.endpoints import Asked, json
from tickwheel_web.messages.sending import made_ready
from tickwheel_web.problems import Refused, detail_of
from tickwheel_web.shapes import duration_of, moment_of, or_none
from tickwheel_web.transactions.shapes import Acks, Committed, Move, SendTo, Transaction, Which


async def commit_transaction(asked: Asked) -> Response:
    """All of it, or nothing; a request that was not answered can be sent again with the same id."""
    wanted = await reading.decode_large(Transaction, asked.body)
    given = wanted.id if isinstance(wanted.id, str) else reading.idempotency_key(asked.request)
    transaction = asked.client.transaction(
        id=None if given is None else _id_of(reading.token(asked.request), given)
    )
    parts = _Parts(transaction)
    parts.add(wanted)
    if not parts.count:
        raise BadArgument(
            "There is nothing in the transaction.", advice="Give sends, cancels, reschedules or acks."
        )
    try:
        result = await transaction.commit()
    except TransactionRefused as error:
        raise parts.refused(error) from None
    assert result is not None
    ids = [str(one) for sent in result.ids for one in sent]
    return json(Committed(ids, result.repeated))


def _id_of(token: str, given: str) -> str:
    """Nobody is to meet the transaction of somebody else by chance."""
    return f"{hashlib.sha256(token.encode()).hexdigest()}/{given}"


@dataclass
class _Parts:
    """What a transaction consists of, and where each part stands in the request."""

    transaction: Open
    sends: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    acks: dict[int, list[str]] = field(default_factory=dict)
    """By the number of the group, as the client puts them together."""

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.sends) + len(self.changes) + len(self.acks)

    def add(self, wanted: Transaction) -> None:
        """Raises Refused with the place of what is wrong."""
        for name in ("sends", "cancels", "reschedules", "acks"):
            for index, part in enumerate(getattr(wanted, name)):
                pointer = f"/{name}/{index}"
                try:
                    self._add(part, pointer)
                except TickwheelError as error:
                    if not isinstance(error, ValueError):
                        raise
                    raise Refused(400, error.code, detail_of(error), pointer=pointer) from None

    def _add(self, part: SendTo | Which | Acks, pointer: str) -> None:
        if isinstance(part, SendTo):
            message = made_ready(part)
            self.transaction.send(part.topic, message.body, **message.arguments)
            self.sends.append(pointer)
        elif isinstance(part, Acks):
            self._ack(part, pointer)
        else:
            self._change(part)
            self.changes.append(pointer)

    def _change(self, part: Which) -> None:
        which: dict[str, Any] = {"id": int(part.id)} if part.id is not UNSET else {}
        if part.key is not UNSET:
            which["key"] = part.key
        if not isinstance(part, Move):
            self.transaction.cancel(or_none(part.topic), **which)
            return
        self.transaction.reschedule(
            or_none(part.topic),
            deliver_at=moment_of(part.deliver_at),
            delay=duration_of(part.delay, "delay"),
            priority=or_none(part.priority),
            **which,
        )

    def _ack(self, part: Acks, pointer: str) -> None:
        for index, text in enumerate(part.receipts):
            place = f"{pointer}/receipts/{index}"
            try:
                receipt = decode_receipt(part.topic, part.group, text)
            except ValueError:
                raise Refused(
                    400, "bad_receipt", "This is no receipt of this topic and group.", pointer=place
                ) from None
            self.transaction.ack_receipts(receipt.group_id, [(receipt.id, receipt.epoch)])
            self.acks.setdefault(receipt.group_id, []).append(place)

    def refused(self, error: TransactionRefused) -> Refused:
        """With the place of the part that could not be done."""
        acks = [place for places in self.acks.values() for place in places]
        places = {"send": self.sends, "ack": acks}.get(error.part, self.changes)
        known = error.part and error.index is not None and error.index < len(places)
        pointer = places[error.index] if known and error.index is not None else None
        return Refused(409, error.code, detail_of(error), pointer=pointer)
