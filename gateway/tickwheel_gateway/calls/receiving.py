"""ReceiveMessage: messages for a consumer, at once or as soon as there are some.

What is fetched is in one of three places: with the broker again, settled, or written to the client's socket. A call
that ends between gives back what it holds, as not looked at.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final

import trio

from tickwheel import Client, Fetched, Message, ReceiptResult, RequestUncertain, TickwheelError
from tickwheel.errors import HeadersTooLarge
from tickwheel.sharing.returns import give_back, log_others
from tickwheel_gateway.calls.answers import tell
from tickwheel_gateway.calls.service import Asked
from tickwheel_gateway.clients.registry import Declared, Registry
from tickwheel_gateway.config import Config
from tickwheel_gateway.delivery.acking import Delivered
from tickwheel_gateway.delivery.attempts import Attempts
from tickwheel_gateway.delivery.clock import NowMs, wall_ms
from tickwheel_gateway.delivery.dead_letters import DeadLetters, Dying
from tickwheel_gateway.delivery.fetched import held_of, properties_of, shown
from tickwheel_gateway.delivery.renewing import Renewing
from tickwheel_gateway.filters.expressions import Filter, Filters
from tickwheel_gateway.filters.tags import TagFilter
from tickwheel_gateway.wire import schema
from tickwheel_gateway.wire.codes import Code, Refused
from tickwheel_gateway.wire.handles import Receipt, encode_receipt
from tickwheel_gateway.wire.many import Receiver, given
from tickwheel_gateway.wire.messages import Given, Held
from tickwheel_gateway.wire.names import group_of, topic_of

MAX_BATCH: Final = 32
NOTHING_NEW: Final = "no new message"
_BEFORE_DEADLINE_MS: Final = 250
"""So long before it, a call waits no more."""
_GIVE_UP_S: Final = 0.05
"""So long before its deadline, a call is answered in any case."""
_AT_ONCE: Final = 8
"""So many messages are put to an SQL filter before other calls have their turn: a large one takes milliseconds each."""
_BURY_AGAIN: Final = timedelta(minutes=1)
"""When a message that could not become a dead letter comes again."""
_BURIED: Final = (ReceiptResult.ACKED, ReceiptResult.NACKED, ReceiptResult.DEAD)
"""Results of a receipt by which a group gives a message up."""

_log = logging.getLogger("tickwheel.gateway.calls")


@dataclass(frozen=True, slots=True)
class _Wish:
    """What a request asks for."""

    topic: str
    """In Tickwheel."""
    group: str
    """In Tickwheel."""
    count: int
    ordered_batch: int
    """So many of one message group may come together."""
    filter: Filter
    is_renewed: bool
    lease_ms: int
    ends: float
    """When there is no more waiting, on trio's clock."""
    attempts: int
    """How many a message has."""
    request: Any


@dataclass(slots=True)
class _Hand:
    """What a call has fetched, and neither settled nor written."""

    group_id: int = 0
    receipts: dict[Delivered, None] = field(default_factory=dict)

    def take(self, fetched: Fetched) -> None:
        """What has come is held."""
        self.group_id = fetched.group_id
        self.receipts |= dict.fromkeys(zip(fetched.ids, fetched.epochs, strict=True))

    def let_go(self, receipts: Iterable[Delivered]) -> None:
        """These are where they belong."""
        for receipt in receipts:
            self.receipts.pop(receipt, None)


@dataclass(slots=True)
class _Found:
    """What becomes of what was fetched."""

    wanted: list[tuple[Delivered, bytes]] = field(default_factory=list)
    """Receipts, and the answers with the messages."""
    refused: list[Delivered] = field(default_factory=list)
    """By the filter."""
    dying: list[Dying] = field(default_factory=list)


class Receiving:
    """Answers ReceiveMessage."""

    def __init__(
        self,
        *,
        config: Config,
        registry: Registry,
        filters: Filters,
        renewing: Renewing,
        attempts: Attempts,
        dead_letters: DeadLetters,
        stopping: trio.Event,
        now_ms: NowMs = wall_ms,
    ) -> None:
        self._config = config
        self._registry = registry
        self._filters = filters
        self._renewing = renewing
        self._attempts = attempts
        self._dead_letters = dead_letters
        self._stopping = stopping
        self._now_ms = now_ms
        self._fetches: dict[trio.CancelScope, None] = {}

    def __len__(self) -> int:
        """How many fetches wait at the broker."""
        return len(self._fetches)

    async def run(self) -> None:
        """Until ``stopping`` is set: then it ends the calls that wait. To be started once."""
        await self._stopping.wait()
        for scope in self._fetches:
            scope.cancel()

    async def receive(self, asked: Asked, request: Any) -> Code:
        """Raises Refused, CallEnded, and what the broker refuses."""
        wish = self._wish(asked, request)
        found, hand = _Found(), _Hand()
        try:
            with self._attempts.waiting(asked.caller, request.attempt_id) as waiting:
                await self._return_lost(asked, request.attempt_id)
                found = await self._find(asked, wish, hand)
            if waiting.cancel_called:  # the client has left this call, and waits in another one
                await _give_back(asked.client, wish.topic, hand)
                found, hand = _Found(), _Hand()
            return await self._answer(asked, wish, hand, found)
        except BaseException:
            await _give_back(asked.client, wish.topic, hand)
            raise

    # -- what is asked for --

    def _wish(self, asked: Asked, request: Any) -> _Wish:
        topic = topic_of(request.message_queue.topic.name)
        group = group_of(request.group.name)
        chosen = self._filters.get(request.filter_expression.type, request.filter_expression.expression)
        is_renewed = request.auto_renew
        lease_ms = self._config.renew_lease_ms
        if not is_renewed:
            lease_ms = schema.milliseconds(request.invisible_duration)
            check_invisible(lease_ms, self._config.invisible_min_ms, self._config.invisible_max_ms)
        if request.batch_size < 1:
            raise Refused(Code.BAD_REQUEST, f"batch_size is {request.batch_size}, and must be 1 or more")
        count = min(request.batch_size, self._config.receive_batch_size if is_renewed else MAX_BATCH)
        return _Wish(
            topic=topic,
            group=group,
            count=count,
            ordered_batch=min(count, MAX_BATCH) if self._config.is_fifo(request.group.name) else 1,
            filter=chosen,
            is_renewed=is_renewed,
            lease_ms=lease_ms,
            ends=trio.current_time() + self._wait_ms(asked, request) / 1_000,
            attempts=self._config.attempts_of(request.group.name),
            request=request,
        )

    def _wait_ms(self, asked: Asked, request: Any) -> float:
        left_ms = (asked.call.deadline - trio.current_time()) * 1_000
        wait_ms: float = self._config.long_polling_max_ms
        if request.HasField("long_polling_timeout"):
            wait_ms = schema.milliseconds(request.long_polling_timeout)
        elif left_ms < math.inf:
            # Go's SimpleConsumer: what its call may take is the wait, and its time for any request.
            known = self._registry.get(asked.caller)
            declared = (known.declared if known is not None else None) or Declared()
            wait_ms = left_ms - declared.request_timeout_ms
        return max(0, min(wait_ms, self._config.long_polling_max_ms, left_ms - _BEFORE_DEADLINE_MS))

    async def _return_lost(self, asked: Asked, attempt_id: str) -> None:
        """The client asks again, because it did not get an answer: what that had comes first."""
        if not attempt_id:
            return
        for group_id, receipts in self._attempts.handed(asked.caller, attempt_id).items():
            self._renewing.drop(group_id, receipts)
            await asked.client.give_back(group_id, receipts)
        self._attempts.forget(asked.caller, attempt_id)

    # -- what is found --

    async def _find(self, asked: Asked, wish: _Wish, hand: _Hand) -> _Found:
        """Something, or what there is when the time is over."""
        while True:
            fetched = await self._fetch(asked, wish)
            if fetched is None:
                return _Found()
            hand.take(fetched)
            # Who asks for less has a full cache: more receives would bring it nothing.
            if fetched and wish.is_renewed and wish.count >= min(MAX_BATCH, self._config.receive_batch_size):
                known = self._registry.heard(asked.caller)
                known.took(wish.topic, wish.group, all_it_may=len(fetched) == wish.count)
            found = await self._sort(asked, wish, fetched)
            await self._settle(asked.client, wish.topic, hand, found)
            if found.wanted or trio.current_time() >= wish.ends:
                return found

    async def _fetch(self, asked: Asked, wish: _Wish) -> Fetched | None:
        """None: the gateway stops, and there is nothing any more."""
        with trio.CancelScope(deadline=asked.call.deadline - _GIVE_UP_S) as scope:
            self._fetches[scope] = None
            try:
                while not self._stopping.is_set():
                    left_ms = max(0, math.ceil((wish.ends - trio.current_time()) * 1_000))
                    try:
                        return await asked.client.fetch(
                            wish.topic,
                            wish.group,
                            count=wish.count,
                            wait=timedelta(milliseconds=left_ms),
                            lease=timedelta(milliseconds=wish.lease_ms),
                            start="earliest",
                            ordered_batch=wish.ordered_batch,
                        )
                    except RequestUncertain:  # the connection broke, and there may be another one by now
                        if trio.current_time() >= wish.ends:
                            raise
            finally:
                del self._fetches[scope]
        if not self._stopping.is_set():
            raise Refused(Code.PROXY_TIMEOUT, "the broker did not answer before the deadline of the call")
        return None

    async def _sort(self, asked: Asked, wish: _Wish, fetched: Fetched) -> _Found:
        found = _Found()
        until_ms = 0 if wish.is_renewed else self._now_ms() + wish.lease_ms
        topic, store_host = wish.request.message_queue.topic, self._store_host(asked)
        usual, answers = None, [b""] * len(fetched)
        if isinstance(wish.filter, TagFilter):
            receiver = Receiver(topic.SerializeToString(), store_host, wish.lease_ms, until_ms)
            usual = given(fetched.delivery.payload, fetched.attempts, receiver)
            answers = usual.answers
        receipts = list(zip(fetched.ids, fetched.epochs, strict=True))
        takes_all = isinstance(wish.filter, TagFilter) and wish.filter.tags is None
        if takes_all and all(answers) and max(fetched.attempts, default=0) <= wish.attempts:
            found.wanted = list(zip(receipts, answers, strict=True))
            return found
        messages: list[Message] = []
        for place, (answer, receipt, attempt) in enumerate(
            zip(answers, receipts, fetched.attempts, strict=True)
        ):
            if usual is not None and answer and attempt <= wish.attempts:
                if wish.filter.matches(usual.tag(place), {}):
                    found.wanted.append((receipt, answer))
                else:
                    found.refused.append(receipt)
                continue
            if place % _AT_ONCE == _AT_ONCE - 1:
                await trio.lowlevel.checkpoint()
            messages = messages or list(fetched)
            message = messages[place]
            held = held_of(message)
            handle = encode_receipt(Receipt(fetched.group_id, *receipt, until_ms))
            out = shown(held, Given(topic, store_host, handle, attempt, wish.lease_ms))
            if not _is_wanted(wish.filter, out):
                found.refused.append(receipt)
            elif attempt > wish.attempts:
                found.dying.append(_dying(wish, fetched.group_id, message, held))
            else:
                response = schema.ReceiveMessageResponse(message=out)
                found.wanted.append((receipt, response.SerializeToString()))
        return found

    def _store_host(self, asked: Asked) -> str:
        host, port = self._config.advertise or asked.caller.local
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def _settle(self, client: Client, topic: str, hand: _Hand, found: _Found) -> None:
        """What does not go to the client."""
        if found.refused:
            results = await client.ack(hand.group_id, found.refused)
            log_others(_log, topic, "acked, though the filter refuses them", results, [ReceiptResult.ACKED])
            hand.let_go(found.refused)
        for dying in found.dying:
            results = await self._bury(client, dying)
            log_others(_log, topic, "given up", results, _BURIED)
            hand.let_go([(dying.held.id, dying.epoch)])

    async def _bury(self, client: Client, dying: Dying) -> list[ReceiptResult]:
        """What became of the message in its own topic: ACKED where its dead letter is."""
        receipts = [(dying.held.id, dying.epoch)]
        try:
            return [await self._dead_letters.forward(client, dying)]
        except (Refused, HeadersTooLarge) as error:
            _log.warning(
                "message %d is given up by %s and cannot be in its dead letters (%s): it is in those of its topic",
                dying.held.id,
                dying.group,
                error,
            )
            return await client.nack(dying.group_id, receipts, error=str(error), give_up=True)
        except TickwheelError as error:
            _log.warning(
                "message %d is given up by %s and could not become a dead letter: %s",
                dying.held.id,
                dying.group,
                error,
            )
            return await client.nack(dying.group_id, receipts, _BURY_AGAIN, error=str(error))

    # -- what is answered --

    async def _answer(self, asked: Asked, wish: _Wish, hand: _Hand, found: _Found) -> Code:
        first, last = schema.ReceiveMessageResponse(), schema.ReceiveMessageResponse()
        code, text = (Code.OK, "") if found.wanted else (Code.MESSAGE_NOT_FOUND, NOTHING_NEW)
        tell(first.status, code, text)
        schema.set_milliseconds(last.delivery_timestamp, self._now_ms())
        receipts = [receipt for receipt, _ in found.wanted]
        answers = [answer for _, answer in found.wanted]
        self._remember(asked, wish, hand.group_id, receipts)
        try:
            await asked.call.stream(first.SerializeToString(), *answers, last.SerializeToString(), last=True)
        except BaseException:
            written = max(0, asked.call.written - 1)  # the status is the first
            hand.let_go(receipts[:written])
            self._renewing.drop(hand.group_id, receipts[written:])
            raise
        return code

    def _remember(self, asked: Asked, wish: _Wish, group_id: int, receipts: list[Delivered]) -> None:
        if not receipts:
            return
        caller = asked.caller
        if wish.is_renewed:
            self._registry.heard(caller)  # it is there, also if it said meanwhile that it goes
            self._renewing.keep(caller, group_id, receipts)
        if wish.request.attempt_id:
            self._attempts.remember(caller, wish.request.attempt_id, group_id, receipts, wish.lease_ms)


def _is_wanted(chosen: Filter, message: Any) -> bool:
    system = message.system_properties
    tag = system.tag if system.HasField("tag") else None
    return chosen.matches(tag, {} if isinstance(chosen, TagFilter) else properties_of(message))


def check_invisible(invisible_ms: int, least_ms: int, most_ms: int) -> None:
    """Raises Refused, with RocketMQ's texts."""
    if invisible_ms < least_ms:
        raise Refused(Code.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too small. min is {least_ms}")
    if invisible_ms > most_ms:
        raise Refused(Code.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too large. max is {most_ms}")


def _dying(wish: _Wish, group_id: int, message: Message, held: Held) -> Dying:
    request = wish.request
    return Dying(
        request.group.name,
        request.message_queue.topic.name,
        group_id,
        message.epoch,
        held,
        message.priority,
    )


async def _give_back(client: Client, topic: str, hand: _Hand) -> None:
    """The call is over."""
    if hand.receipts:
        ask = partial(client.give_back, hand.group_id, list(hand.receipts))
        await give_back(_log, len(hand.receipts), topic, ask)
