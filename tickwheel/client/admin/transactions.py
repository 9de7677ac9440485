"""Transactions, and prepared messages."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tickwheel.client.admin.prepared import decided
from tickwheel.client.checks import many_ids, shown
from tickwheel.client.columns import (
    Batch as ColumnBatch,
)
from tickwheel.client.columns import (
    Body,
    Headers,
    body_bytes,
    check_name,
    check_priority,
    checked_bodies,
    encode_one_key,
    level_delay,
)
from tickwheel.client.consumer.message import BaseBatch, BaseMessage
from tickwheel.client.requests import Requests, targets, when
from tickwheel.client.session import Session
from tickwheel.client.times import Delay, Delays, Milliseconds, Moment, Moments
from tickwheel.protocol.bodies.admin import Decide, DecideOk, Prepare, PrepareOk
from tickwheel.protocol.bodies.requests import OpenTopic, OpenTopicOk
from tickwheel.protocol.bodies.settling import Transaction as TransactionRequest
from tickwheel.protocol.bodies.settling import TransactionAck, TransactionChange, TransactionOk
from tickwheel.protocol.errors import (
    BadArgument,
    BadTime,
    ClientClosed,
    NotConnected,
    RequestTimeout,
    TickwheelError,
    TransactionTooLarge,
)
from tickwheel.protocol.limits import MAX_IDS_A_REQUEST
from tickwheel.protocol.messages import encode_send, retarget_send

if TYPE_CHECKING:
    from tickwheel.client.tracing import Producing

_RESERVE_BYTES = 4096


class TransactionResult:
    """What a committed transaction stored: the ids of each ``send`` and ``send_many``, in order."""

    def __init__(self, sends: Sequence[tuple[int, int]]) -> None:
        self.ids: list[range] = [range(first, first + count) for first, count in sends]


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

    def __init__(self, session: Session, producing: Producing | None = None) -> None:
        """``producing`` makes a span of each send."""
        self._session = session
        self._producing = producing
        self._id = secrets.token_bytes(16)
        self._sends: list[tuple[str, bytes]] = []
        self._acks: dict[Any, tuple[list[int], list[int]]] = {}
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
        deliver_at: Moment | None = None,
        delay: Delay | None = None,
        delay_ms: int | None = None,
        delay_level: int | None = None,
        priority: int | None = None,
        order_key: str | None = None,
        headers: Headers | None = None,
    ) -> None:
        """A message; the arguments are those of ``Client.send``."""
        self.send_many(
            topic,
            [body],
            keys=None if key is None else [key],
            deliver_at=deliver_at,
            delay=delay,
            delay_ms=delay_ms,
            delay_level=delay_level,
            priority=priority,
            order_keys=None if order_key is None else [order_key],
            headers=headers,
        )

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
        if self._producing is not None:
            bodies = checked_bodies(bodies)
            with self._producing.sending(topic, "create", count=len(bodies)) as creating:
                headers = creating.headers(headers)
        batch = ColumnBatch(
            bodies,
            keys=keys,
            deliver_at=deliver_at,
            delay=delay,
            delay_ms=delay_ms,
            priority=priority,
            headers=headers,
            order_keys=order_keys,
            key_maker=None,
            limits=self._session.limits,
        )
        for refused in batch.refused.values():
            raise refused
        self._sends.extend((topic, encode_send(0, part.columns)) for part in batch.parts())

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
        change: dict[str, Any] = when(deliver_at, delay, delay_ms)
        if priority is not None:
            change["priority"] = check_priority(priority)
        if not change:
            raise BadTime("No new time was given.", advice="Give deliver_at or delay, or a priority.")
        self._change(topic, which, change)

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
        if not (self._sends or self._acks or self._changes):
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
            ],
            changes=self._changes,
        )
        size_bytes = sum(len(payload) for payload in request.sends) + _RESERVE_BYTES
        if size_bytes > self._session.limits.max_frame_bytes:
            raise TransactionTooLarge(f"The transaction has about {size_bytes:,} bytes.")
        body = await self._session.request(request)
        assert isinstance(body, TransactionOk)
        return TransactionResult(body.sends)

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
        Raises TransactionRefused when it was rolled back, or nobody decided about it for too long."""
        ((result, message_id),) = await self._requests.commit_prepared([self.id])
        return decided(self.id, result, message_id, commit=True)

    async def rollback(self) -> None:
        """Drops it. Raises TransactionRefused when it was committed, or nobody decided about it for too long."""
        (result,) = await self._requests.rollback_prepared([self.id])
        decided(self.id, result, 0, commit=False)


class TransactionRequests(Requests):
    """Transactions and prepared messages."""

    def transaction(self) -> Transaction:
        """A block whose sends, acks, cancels and reschedules happen together or not at all; see Transaction."""
        return Transaction(self._session, self._producing)

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
    ) -> Prepared:
        """Stores a message that waits for ``commit`` or ``rollback`` (RocketMQ's half message).

        One that nobody decides about is asked after: it is delivered to ``check_prepared`` subscribers, first after the
        broker's ``check_after``, then each ``check_interval``, ``check_attempts`` times; then it is a dead letter.
        With a ``key`` preparing it again gives TransactionRefused (duplicate) while it waits.
        """
        if self._producing is not None:
            check_name(topic)
            body = body_bytes(body)
            with self._producing.sending(topic, "prepare", size_bytes=len(body)) as sending:
                return await self._untraced().prepare(
                    topic,
                    body,
                    key=key,
                    deliver_at=deliver_at,
                    delay=delay,
                    delay_ms=delay_ms,
                    priority=priority,
                    order_key=order_key,
                    headers=sending.headers(headers),
                )
        check_name(topic)
        limits = self._session.limits
        batch = ColumnBatch(
            [body],
            keys=None if key is None else [encode_one_key(key, limits).decode()],
            deliver_at=deliver_at,
            delay=delay,
            delay_ms=delay_ms,
            priority=priority,
            headers=headers,
            order_keys=None if order_key is None else [order_key],
            key_maker=None,
            limits=limits,
        )
        for refused in batch.refused.values():
            raise refused
        payload = encode_send(0, next(batch.parts()).columns)
        answer = await self._answer(Prepare(topic=topic, payload=payload), PrepareOk)
        return Prepared(self, answer.ids[0])

    async def commit_prepared(self, ids: Sequence[int]) -> list[tuple[str, int]]:
        """Each gets its own answer, and none stands in the way of the others: (``committed``, ``already_committed``,
        ``already_rolled_back``, ``not_found``, or ``refused`` when its topic is gone; the id of the message that it
        became, else 0)."""
        return [one for answer in await self._decide(ids, commit=True) for one in answer]

    async def rollback_prepared(self, ids: Sequence[int]) -> list[str]:
        """``rolled_back``, ``already_rolled_back``, ``already_committed`` or ``not_found`` for each."""
        return [result for answer in await self._decide(ids, commit=False) for result, _ in answer]

    async def _decide(self, ids: Sequence[int], *, commit: bool) -> list[list[tuple[str, int]]]:
        chosen, answers = many_ids(ids), []
        for start in range(0, len(chosen), MAX_IDS_A_REQUEST):
            some = chosen[start : start + MAX_IDS_A_REQUEST]
            answer = await self._answer(Decide(commit=commit, ids=some), DecideOk)
            answers.append(list(zip(answer.results, answer.ids, strict=True)))
        return answers
