"""Transactions, and prepared messages."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Unpack

from tickwheel.client.admin.prepared import decided
from tickwheel.client.checks import shown, text
from tickwheel.client.columns import (
    Body,
    Headers,
    SendBatch,
    body_bytes,
    check_name,
    checked_bodies,
    encode_one_key,
    level_delay,
)
from tickwheel.client.consumer.fetching import one_group, receipt_columns
from tickwheel.client.consumer.message import BaseBatch, BaseMessage
from tickwheel.client.conversation import Conversation
from tickwheel.client.options import SendTime
from tickwheel.client.requests import Requests, targets, time_or_priority
from tickwheel.client.times import Delay, Delays, Milliseconds, Moment, Moments, duration_ms
from tickwheel.protocol.bodies.admin import Decide, DecideOk, Prepare, PrepareOk
from tickwheel.protocol.bodies.requests import OpenTopic, OpenTopicOk
from tickwheel.protocol.bodies.settling import Transaction as TransactionRequest
from tickwheel.protocol.bodies.settling import TransactionAck, TransactionChange, TransactionOk
from tickwheel.protocol.errors import (
    BadArgument,
    ClientClosed,
    NotConnected,
    RequestTimeout,
    TickwheelError,
    TransactionTooLarge,
)
from tickwheel.protocol.messages import retarget_send

if TYPE_CHECKING:
    from tickwheel.client.tracing import Producing

_RESERVE_BYTES = 4096


_ID_BYTES: Final = 16
_MAX_ID_CHARACTERS: Final = 255


def _id_of(name: str) -> bytes:
    """As it goes on the wire. Raises BadArgument."""
    if not 1 <= len(text(name, "id")) <= _MAX_ID_CHARACTERS:
        raise BadArgument(
            f"The id of a transaction has {len(name):,} characters.", advice=f"Use 1 to {_MAX_ID_CHARACTERS}."
        )
    return hashlib.blake2b(name.encode(), digest_size=_ID_BYTES).digest()


class TransactionResult:
    """What a committed transaction stored: the ids of each ``send`` and ``send_many``, in order."""

    def __init__(self, sends: Sequence[tuple[int, int]], *, repeated: bool = False) -> None:
        self.ids: list[range] = [range(first, first + count) for first, count in sends]
        self.repeated = repeated
        """It had been committed before, and these are the ids of then."""


class Transaction:
    """Sends, acks, cancels and reschedules that happen together or not at all, when its block ends::

        async with client.transaction() as tx:
            tx.ack(order)
            tx.send("invoices", b"...", key=f"invoice-{order.id}")
            tx.cancel("reminders", key=f"order-{order.id}")

    Nothing leaves this process before that; an exception in the block drops it all. Commit is safe to repeat, so a
    connection that breaks meanwhile neither loses nor doubles it. A part that cannot be done (a message that is
    acked, delivered or gone, a key that exists) fails the whole with TransactionRefused.
    """

    def __init__(
        self, session: Conversation, producing: Producing | None = None, *, id: str | None = None
    ) -> None:
        """``producing`` makes a span of each send; ``id`` as ``Client.transaction`` has it."""
        self._session = session
        self._producing = producing
        self._id = secrets.token_bytes(_ID_BYTES) if id is None else _id_of(id)
        self._sends: list[tuple[str, bytes]] = []
        self._acks: dict[Any, tuple[list[int], list[int]]] = {}
        self._receipts: dict[int, tuple[list[int], list[int]]] = {}
        """By the number of the group: ids and epochs."""
        self._changes: list[TransactionChange] = []
        self._is_over = False
        self._is_committing = False
        """It was asked for, and what became of it is not known."""
        self.result: TransactionResult | None = None
        """Set once it is committed."""

    async def __aenter__(self) -> Transaction:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and (self._is_committing or not self._is_over):
            await self.commit()
        self._is_over = True

    def send(
        self,
        topic: str,
        body: Body,
        *,
        key: str | None = None,
        order_key: str | None = None,
        headers: Headers | None = None,
        **when: Unpack[SendTime],
    ) -> None:
        """A message; the arguments are those of ``Client.send``. ``when``: ``deliver_at``, ``delay``, ``delay_ms`` or
        ``delay_level``, and ``priority``."""
        keys, order_keys = (None if one is None else [one] for one in (key, order_key))
        self.send_many(topic, [body], keys=keys, order_keys=order_keys, headers=headers, **when)

    def send_many(
        self,
        topic: str,
        bodies: Iterable[Body],
        *,
        keys: Sequence[str | None] | None = None,
        deliver_at: Moments | None = None,
        delay: Delays | None = None,
        delay_ms: Milliseconds | None = None,
        delay_level: int | None = None,
        priority: int | Sequence[int] | None = None,
        order_keys: Sequence[str | None] | str | None = None,
        headers: Headers | Sequence[Headers | None] | None = None,
    ) -> None:
        """Many messages; the arguments are those of ``Client.send_many``. One that is too large raises at once."""
        self._check_open()
        check_name(topic)
        if delay_level is not None:
            delay_ms = level_delay(delay_level, self._session.limits, deliver_at, delay, delay_ms)
        checked = checked_bodies(bodies)
        if self._producing is not None:
            with self._producing.sending(topic, "create", count=len(checked)) as creating:
                headers = creating.headers(headers)
        batch = SendBatch(
            bodies=checked,
            keys=keys,
            deliver_at=deliver_at,
            delay=delay,
            delay_ms=delay_ms,
            priority=priority,
            headers=headers,
            order_keys=order_keys,
            limits=self._session.limits,
        )
        self._sends.extend((topic, payload) for payload in batch.payloads())

    def ack(self, delivered: BaseMessage | BaseBatch[Any]) -> None:
        """Acks a message, or a batch."""
        self._check_open()
        if not isinstance(delivered, BaseMessage | BaseBatch):
            raise BadArgument(
                f"{shown(delivered)} cannot be acked.", advice="Give a message or a batch that came."
            )
        acks = delivered.acks
        ids, epochs = self._acks.setdefault(acks, ([], []))
        ids.extend(delivered.receipts[0])
        epochs.extend(delivered.receipts[1])

    def ack_receipts(self, group_id: int, receipts: Sequence[tuple[int, int]]) -> None:
        """Acks deliveries of a group by (id, epoch), as ``Client.ack``: whoever was given them."""
        self._check_open()
        number, (ids, epochs) = one_group(group_id), receipt_columns(receipts)
        known_ids, known_epochs = self._receipts.setdefault(number, ([], []))
        known_ids += ids
        known_epochs += epochs

    def cancel(self, topic: str | None = None, **which: Any) -> None:
        """Cancels messages that are not delivered yet: ``id=``, ``ids=``, or a topic with ``key=`` or ``keys=``."""
        self._change(topic, which, {})

    def reschedule(
        self,
        topic: str | None = None,
        *,
        deliver_at: Moment | None = None,
        delay: Delay | None = None,
        delay_ms: int | None = None,
        priority: int | None = None,
        **which: Any,
    ) -> None:
        """Gives messages that are not delivered yet another time, another priority, or both."""
        self._change(topic, which, time_or_priority(deliver_at, delay, delay_ms, priority))

    def _change(self, topic: str | None, which: dict[str, Any], change: dict[str, Any]) -> None:
        self._check_open()
        fields: dict[str, Any] = {"id": None, "ids": None, "key": None, "keys": None}
        if not set(which) <= set(fields):
            raise BadArgument(
                "The messages meant are not clear.", advice="Give id=, ids=, or a topic with key=."
            )
        for target in targets(topic, **{**fields, **which}):
            self._changes.append(TransactionChange(**target, **change))

    def _check_open(self) -> None:
        if self._is_over:
            raise ClientClosed("The transaction is over.", advice="Begin another one.")

    async def commit(self) -> TransactionResult | None:
        """Commits now; leaving the block does it otherwise. None: there was nothing in it.

        When it was cancelled, or its connection broke, before the broker answered, it may have been committed or not.
        Then it can be called again, which commits once.
        """
        if not self._is_committing:
            self._check_open()
        self._is_over = True
        if not (self._sends or self._acks or self._receipts or self._changes):
            return None
        self._is_committing = True
        try:
            self.result = await self._commit()
        except (NotConnected, RequestTimeout):
            raise
        except TickwheelError:
            self._is_committing = False
            raise
        self._is_committing = False
        for acks, (ids, epochs) in self._acks.items():
            acks.let_go(ids, epochs)
        return self.result

    async def _commit(self) -> TransactionResult:
        request = TransactionRequest(
            id=self._id,
            sends=[retarget_send(payload, await self._topic_id(topic)) for topic, payload in self._sends],
            acks=[
                TransactionAck(group_id=await acks.group(), ids=ids, epochs=epochs)
                for acks, (ids, epochs) in self._acks.items()
            ]
            + [
                TransactionAck(group_id=group_id, ids=ids, epochs=epochs)
                for group_id, (ids, epochs) in self._receipts.items()
            ],
            changes=self._changes,
        )
        size_bytes = sum(len(payload) for payload in request.sends) + _RESERVE_BYTES
        if size_bytes > self._session.limits.max_frame_bytes:
            raise TransactionTooLarge(f"The transaction has about {size_bytes:,} bytes.")
        body = await self._session.request(request)
        assert isinstance(body, TransactionOk)
        return TransactionResult(body.sends, repeated=body.repeated)

    async def _topic_id(self, topic: str) -> int:
        body = await self._session.request(OpenTopic(topic=topic, create=True))
        assert isinstance(body, OpenTopicOk)
        return body.topic_id


class Prepared:
    """A prepared message: stored, and delivered only once it is committed."""

    def __init__(self, requests: TransactionRequests, message_id: int) -> None:
        self._requests = requests
        self.id = message_id
        """Its id while it waits; the message that is delivered has another."""

    async def commit(self) -> int:
        """Lets it be delivered at its time; the id of the message that it becomes, 0 when that one is gone already.
        Raises TransactionRefused when it was rolled back, or not decided for too long."""
        ((result, message_id),) = await self._requests.commit_prepared([self.id])
        return decided(self.id, result, message_id, commit=True)

    async def rollback(self) -> None:
        """Drops it. Raises TransactionRefused when it was committed, or not decided for too long."""
        (result,) = await self._requests.rollback_prepared([self.id])
        decided(self.id, result, 0, commit=False)


class TransactionRequests(Requests):
    """Transactions and prepared messages."""

    def transaction(self, *, id: str | None = None) -> Transaction:
        """A block whose sends, acks, cancels and reschedules happen together or not at all; see Transaction.

        ``id``: your own name for it, of 1 to 255 characters. Of transactions with the same one only the first is
        committed, whichever process it comes from; the others have its ``result``, whatever is in them. The broker
        remembers the last 20,000.
        """
        return Transaction(self._session, self._producing, id=id)

    async def prepare(
        self,
        topic: str,
        body: Body,
        *,
        key: str | None = None,
        deliver_at: Moment | None = None,
        delay: Delay | None = None,
        delay_ms: int | None = None,
        priority: int | None = None,
        order_key: str | None = None,
        headers: Headers | None = None,
        check_after: Delay | None = None,
    ) -> Prepared:
        """Stores a message that waits for ``commit`` or ``rollback`` (RocketMQ's half message).

        One without a decision is asked after: it is delivered to ``check_prepared`` subscribers, first after
        ``check_after`` (by default the broker's setting of that name), then each ``check_interval``,
        ``check_attempts`` times; then it is a dead letter. With a ``key`` preparing it again gives TransactionRefused
        (duplicate) while it waits.
        """
        with self._span(topic, "prepare", body=body) as sending:
            check_name(topic)
            limits = self._session.limits
            batch = SendBatch(
                bodies=[body_bytes(body)],
                keys=None if key is None else [encode_one_key(key, limits).decode()],
                deliver_at=deliver_at,
                delay=delay,
                delay_ms=delay_ms,
                priority=priority,
                headers=headers if sending is None else sending.headers(headers),
                order_keys=None if order_key is None else [order_key],
                limits=limits,
            )
            (payload,) = batch.payloads()
            after_ms = None if check_after is None else duration_ms(check_after, "check_after")
            request = Prepare(topic=topic, payload=payload, check_after_ms=after_ms)
            answer = await self._answer(request, PrepareOk)
            return Prepared(self, answer.ids[0])

    async def commit_prepared(
        self,
        ids: Sequence[int] | None = None,
        *,
        topic: str | None = None,
        keys: Sequence[str] | None = None,
    ) -> list[tuple[str, int]]:
        """By ids, or by the topic that the messages are for and their keys. A decided one has its key no more: then
        ``already_committed`` says that a message of the topic has it, and ``not_found`` that none has.

        Each gets its own answer, and none stands in the way of the others: (``committed``, ``already_committed``,
        ``already_rolled_back``, ``not_found``, or ``refused`` when its topic is gone; the id of the message that it
        became, else 0).
        """
        return await self._decide(targets(topic, None, ids, None, keys), commit=True)

    async def rollback_prepared(
        self,
        ids: Sequence[int] | None = None,
        *,
        topic: str | None = None,
        keys: Sequence[str] | None = None,
    ) -> list[str]:
        """``rolled_back``, ``already_rolled_back``, ``already_committed`` or ``not_found`` for each."""
        named = targets(topic, None, ids, None, keys)
        return [result for result, _ in await self._decide(named, commit=False)]

    async def _decide(self, named: list[dict[str, Any]], *, commit: bool) -> list[tuple[str, int]]:
        results: list[tuple[str, int]] = []
        for target in named:
            answer = await self._answer(Decide(commit=commit, **target), DecideOk)
            results += zip(answer.results, answer.ids, strict=True)
        return results
