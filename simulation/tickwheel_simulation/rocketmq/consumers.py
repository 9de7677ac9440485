"""Consumers: push consumers, whose leases the gateway renews, orderly ones, simple ones, and those of dead letters."""

from __future__ import annotations

from typing import Any, Final

import trio

from tickwheel_gateway.wire import schema
from tickwheel_gateway.wire.codes import Code
from tickwheel_gateway.wire.handles import decode_receipt
from tickwheel_gateway.wire.names import DEAD
from tickwheel_simulation.oracle import Violation
from tickwheel_simulation.rocketmq.channel import CallFailed
from tickwheel_simulation.rocketmq.client import Place, RocketClient
from tickwheel_simulation.rocketmq.profile import (
    BURIERS,
    CHOOSY,
    FIFO,
    INVISIBLE_MIN_MS,
    POLL_MS,
    PUSH,
    RENEW_LEASE_MS,
    SIMPLE,
    WANTED_TAGS,
    all_groups,
)
from tickwheel_simulation.rocketmq.promises import Said

_AT_A_TIME: Final = 8
_LOCAL_ATTEMPTS: Final = 2
"""Of an orderly consumer, before it gives a message up itself."""
_PATIENT_MS: Final = 30_000
_GONE_S: Final = 50.0


class Consumer(RocketClient):
    """What all of them have in common: a topic, a group, receives, acks."""

    client_type = schema.PUSH_CONSUMER

    def __init__(self, place: Place, topic: str, group: str, number: int) -> None:
        super().__init__(place, f"{group}@{topic}/{number}")
        self.topic = topic
        self.group = group

    def _expression(self) -> tuple[int, str]:
        if self.group != CHOOSY:
            return 1, "*"
        return (2, "n > 3") if self.place.profile.by_sql else (1, " || ".join(WANTED_TAGS))

    def fill_settings(self, settings: Any) -> None:
        settings.subscription.group.name = self.group
        entry = settings.subscription.subscriptions.add()
        entry.topic.name = self.topic
        entry.expression.type, entry.expression.expression = self._expression()

    def has_settings(self, settings: Any) -> None:
        if settings.subscription.fifo is not (self.group == FIFO):
            raise Violation(f"{self.group} is told that it is orderly: {settings.subscription.fifo}")

    def fill_termination(self, request: Any) -> None:
        request.group.name = self.group

    async def receive(self, *, batch: int, attempt_id: str = "", invisible_ms: int = 0) -> list[Any]:
        """Messages. Raises CallFailed when it is not known whether there were any."""
        request = schema.ReceiveMessageRequest(batch_size=batch)
        request.group.name, request.message_queue.topic.name = self.group, self.topic
        request.filter_expression.type, request.filter_expression.expression = self._expression()
        schema.set_milliseconds(request.long_polling_timeout, POLL_MS)
        if invisible_ms:
            schema.set_milliseconds(request.invisible_duration, invisible_ms)
        else:
            request.auto_renew, request.attempt_id = True, attempt_id
        since_s = trio.current_time()
        found = await self.call("ReceiveMessage", request, POLL_MS / 1_000 + self._timeout_s)
        answers = [schema.ReceiveMessageResponse.FromString(one) for one in found]
        if not answers or not answers[0].HasField("status"):
            raise Violation(f"a receive is answered without a status, with {len(answers)} messages")
        status = answers[0].status
        self.check("ReceiveMessage", status, since_s)
        if status.code != Code.OK:
            if len(answers) > 2:
                raise Violation(f"a receive has failed with {status.code}, and has messages")
            if status.code != Code.MESSAGE_NOT_FOUND:
                await trio.sleep(self.rng.random() * 2)
            return []
        if len(answers) < 3 or not answers[-1].HasField("delivery_timestamp") or len(answers) - 2 > batch:
            raise Violation(f"a receive of {batch} is answered with {len(answers)} parts")
        return [one.message for one in answers[1:-1]]

    def taken(self, message: Any) -> tuple[Said, int]:
        """What was received, checked; the epoch of its receipt."""
        token = self.scene.token_of(message.body)
        said, epoch = self.promises.received(self.group, message, token)
        attempt = message.system_properties.delivery_attempt
        self.scene.trace(self.name, "got", token, epoch, attempt)
        self.scene.count("received by rocketmq")
        if said.message.id and said.message.id != message.system_properties.queue_offset:
            raise Violation(f"{token} has the id {said.message.id}, and comes as another one")
        return said, epoch

    # -- what becomes of it --

    async def ack(self, said: Said, message: Any, handle: str = "", *, attempts: int = 1_000) -> bool:
        """Until it is answered OK, or that the receipt does not count."""
        system, oracle = message.system_properties, self.scene.oracle
        handle = handle or system.receipt_handle
        receipt = decode_receipt(handle)
        request = schema.AckMessageRequest()
        request.topic.name, request.group.name = self.topic, self.group
        request.entries.add(message_id=system.message_id, receipt_handle=handle)
        oracle.acking(said.message, self.group, receipt.epoch)

        async def ack() -> Any:
            response = await self.ask("AckMessage", request, schema.AckMessageResponse)
            codes = {response.status.code, *(one.status.code for one in response.entries)}
            if codes == {Code.OK}:
                return response
            if response.status.code == Code.INVALID_RECEIPT_HANDLE:
                return response
            if response.status.code == Code.OK or (len(codes) > 1 and response.entries):
                raise Violation(f"an ack is answered with {codes}")
            return None

        response = await self.retried(attempts, ack)
        if response is None:
            return False
        if response.status.code == Code.OK:
            self.scene.trace(self.name, "acked", said.message.token, receipt.epoch)
            oracle.acked(said.message, self.group, receipt.epoch)
            self.scene.count("acked by rocketmq")
            return True
        self._ack_refused(said, receipt, response.status.message)
        return False

    def _ack_refused(self, said: Said, receipt: Any, text: str) -> None:
        token = said.message.token
        self.scene.trace(self.name, "ack refused", token, receipt.epoch, text)
        code = text.rpartition(": ")[2]
        if code == "receipt handle is expired":
            if not receipt.until_ms or receipt.until_ms > self.scene.clock.highest_ms:
                raise Violation(f"the receipt of {token} is expired before {receipt.until_ms}")
            return
        self.scene.oracle.ack_refused(said.message, self.group, receipt.epoch, code)

    async def change(self, said: Said, handle: str, invisible_ms: int, attempts: int) -> str:
        """The new handle; empty: it is not known, or the receipt does not count."""
        receipt, scene = decode_receipt(handle), self.scene
        oracle, message = scene.oracle, said.message
        request = schema.ChangeInvisibleDurationRequest(receipt_handle=handle, message_id=said.message_id)
        request.topic.name, request.group.name = self.topic, self.group
        schema.set_milliseconds(request.invisible_duration, invisible_ms)
        gives_back = receipt.is_renewed or not invisible_ms
        if gives_back:
            oracle.may_come_again(message, self.group)
        from_ms, jumps = scene.clock.now_ms(), scene.clock.jumps

        async def change() -> Any:
            nonlocal from_ms
            if not gives_back:
                from_ms = scene.clock.now_ms()
                oracle.extending(message, self.group, receipt.epoch, from_ms + invisible_ms)
            response = await self.ask(
                "ChangeInvisibleDuration", request, schema.ChangeInvisibleDurationResponse
            )
            return response if response.status.code in (Code.OK, Code.INVALID_RECEIPT_HANDLE) else None

        response = await self.retried(attempts, change)
        if response is None or response.status.code != Code.OK:
            return ""
        scene.trace(self.name, "changed", message.token, receipt.epoch, invisible_ms)
        new = decode_receipt(response.receipt_handle)
        if response.receipt_handle == handle or new[:3] != receipt[:3]:
            raise Violation(f"the receipt {handle} becomes {response.receipt_handle}")
        if not gives_back and scene.clock.jumps == jumps and scene.is_surely_kept(invisible_ms):
            oracle.extended(message, self.group, receipt.epoch, from_ms + invisible_ms, from_ms)
        return str(response.receipt_handle)


class PushConsumer(Consumer):
    """Works on several at a time; says nothing while it works."""

    def __init__(self, place: Place, topic: str, group: str, number: int) -> None:
        super().__init__(place, topic, group, number)
        self._attempt = 0
        self._room = trio.CapacityLimiter(_AT_A_TIME)
        self._holding: dict[str, None] = {}

    def vanished(self) -> None:
        for token in self._holding:
            self.promises.unclaim(token, self.group)
        self._holding.clear()
        self._room = trio.CapacityLimiter(_AT_A_TIME)

    async def live(self) -> None:
        rng = self.rng
        attempt_id = self._next_attempt()
        while True:
            if not self._room.available_tokens:
                await trio.sleep(0.2)
                continue
            batch = min(rng.choice((1, 4, 32)), int(self._room.available_tokens))
            try:
                messages = await self.receive(batch=batch, attempt_id=attempt_id)
            except CallFailed:
                self.scene.count("receives tried again")
                await trio.sleep(rng.random())
            else:
                attempt_id = self._next_attempt()
                await self.work(messages)
            await self.perhaps_vanish()

    def _next_attempt(self) -> str:
        self._attempt += 1
        return f"{self.name}-{self._attempt}"

    async def work(self, messages: list[Any]) -> None:
        """What becomes of what it was given."""
        for message in messages:
            said, epoch = self.taken(message)
            self.hold(said, epoch)
            self.start(self._handle, said, message)

    def hold(self, said: Said, epoch: int) -> None:
        """From now on the gateway renews its lease."""
        self._holding[said.message.token] = None
        self.promises.claim(said.message.token, self.group, epoch, self._circumstances)

    def let_go(self, said: Said) -> None:
        """It has said what becomes of it, or is about to."""
        self._holding.pop(said.message.token, None)
        self.promises.unclaim(said.message.token, self.group)

    def _circumstances(self) -> tuple[object, ...] | None:
        """What ends a renewal if it changes."""
        if trio.current_time() - self.heard_s > _GONE_S:
            return None
        scene = self.scene
        links = tuple(one.links for one in self.place.processes)
        return (self.breaks, scene.lives, scene.clock.jumps, links)

    async def _handle(self, said: Said, message: Any) -> None:
        async with self._room:
            if await self.try_once(said):
                self.let_go(said)
                await self.ack(said, message)
                return
            self.let_go(said)
            if not self.scene.is_calm and self.rng.random() < self.place.profile.forgets:
                return  # it tells no one, and the gateway renews until its time is over
            delay_ms = self.rng.choice((0, 1_000, 2_000))
            await self.change(said, message.system_properties.receipt_handle, delay_ms, attempts=3)

    async def try_once(self, said: Said) -> bool:
        """A program works on it; whether it succeeds."""
        if self.scene.is_calm:
            return True
        if self.rng.random() < self.place.profile.slow:
            self.scene.count("slow handlers of rocketmq")
            await trio.sleep((0.2 + 2 * self.rng.random()) * RENEW_LEASE_MS / 1_000)
        else:
            await trio.sleep(self.rng.random() * 0.5)
        return self.rng.random() >= self.place.profile.fails


class FifoConsumer(PushConsumer):
    """Tries again by itself, then gives up by itself; messages of a group one after the other."""

    async def work(self, messages: list[Any]) -> None:
        by_group: dict[str, list[tuple[Said, Any]]] = {}
        for message in messages:
            said, epoch = self.taken(message)
            self.hold(said, epoch)
            by_group.setdefault(message.system_properties.message_group, []).append((said, message))
        for together in by_group.values():
            self.start(self._handle_in_order, together)

    async def _handle_in_order(self, together: list[tuple[Said, Any]]) -> None:
        async with self._room:
            for said, message in together:
                await self._handle_one(said, message)

    async def _handle_one(self, said: Said, message: Any) -> None:
        for _ in range(_LOCAL_ATTEMPTS):
            if await self.try_once(said):
                self.let_go(said)
                await self.ack(said, message)
                return
            await trio.sleep(self.rng.random())
        self.let_go(said)
        await self._forward(said, message)

    async def _forward(self, said: Said, message: Any) -> None:
        system = message.system_properties
        receipt, oracle = decode_receipt(system.receipt_handle), self.scene.oracle
        request = schema.ForwardMessageToDeadLetterQueueRequest(
            receipt_handle=system.receipt_handle, message_id=said.message_id, delivery_attempt=1
        )
        request.topic.name, request.group.name = self.topic, self.group
        self.promises.forwarding(said.message.token, self.group)
        oracle.acking(said.message, self.group, receipt.epoch)

        async def forward() -> Any:
            response = await self.ask(
                "ForwardMessageToDeadLetterQueue", request, schema.ForwardMessageToDeadLetterQueueResponse
            )
            return response if response.status.code in (Code.OK, Code.INVALID_RECEIPT_HANDLE) else None

        response = await self.retried(1_000, forward)
        self.scene.trace(self.name, "forwarded", said.message.token, response.status.code)
        self.scene.count("forwarded by rocketmq")
        if response.status.code == Code.OK:
            self.promises.forwarded(said.message.token, self.group, receipt.epoch)
        else:
            self._ack_refused(said, receipt, response.status.message)


class SimpleConsumer(Consumer):
    """Says how long a message is to be invisible, and has to keep to it."""

    client_type = schema.SIMPLE_CONSUMER

    async def live(self) -> None:
        rng = self.rng
        while True:
            invisible_ms = (
                _PATIENT_MS if self.scene.is_calm else rng.choice((INVISIBLE_MIN_MS, 3_000, 20_000))
            )
            try:
                messages = await self.receive(batch=rng.choice((1, 8, 32)), invisible_ms=invisible_ms)
            except CallFailed:
                await trio.sleep(rng.random())
                continue
            for message in messages:
                await self._handle(*self.taken(message), message)
            await self.perhaps_vanish()

    async def _handle(self, said: Said, _epoch: int, message: Any) -> None:
        rng, profile = self.rng, self.place.profile
        handle = older = message.system_properties.receipt_handle
        if not self.scene.is_calm:
            if rng.random() < profile.slow:
                await trio.sleep(rng.random() * 4)
            if rng.random() < 0.2:
                invisible_ms = rng.choice((INVISIBLE_MIN_MS, 5_000, 15_000))
                handle = await self.change(said, handle, invisible_ms, attempts=2) or older
            if rng.random() < profile.fails:
                if rng.random() < 0.5:
                    await self.change(said, handle, rng.choice((0, 500)), attempts=1)
                return
        await self.ack(said, message, rng.choice((handle, handle, older)), attempts=3)


class Burier(Consumer):
    """Reads the dead letters of a group."""

    client_type = schema.SIMPLE_CONSUMER

    def __init__(self, place: Place, of: str) -> None:
        super().__init__(place, DEAD + of, BURIERS, 0)
        self._of = of

    async def live(self) -> None:
        while True:
            try:
                messages = await self.receive(batch=8, invisible_ms=_PATIENT_MS)
            except CallFailed:
                await trio.sleep(self.rng.random())
                continue
            for message in messages:
                token = self.scene.token_of(message.body)
                self.promises.received_dead(self._of, message, token)
                self.scene.trace(self.name, "dead", token)
                self.scene.count("dead letters of rocketmq")
                await self._ack_dead(message)

    async def _ack_dead(self, message: Any) -> None:
        system = message.system_properties
        request = schema.AckMessageRequest()
        request.topic.name, request.group.name = self.topic, self.group
        request.entries.add(message_id=system.message_id, receipt_handle=system.receipt_handle)

        async def ack() -> Any:
            response = await self.ask("AckMessage", request, schema.AckMessageResponse)
            return response if response.status.code in (Code.OK, Code.INVALID_RECEIPT_HANDLE) else None

        await self.retried(3, ack)


_KINDS: Final[dict[str, type[Consumer]]] = {
    PUSH: PushConsumer,
    CHOOSY: PushConsumer,
    SIMPLE: SimpleConsumer,
    FIFO: FifoConsumer,
}


def all_consumers(place: Place, each: int) -> list[Consumer]:
    """So many of each group, and one for the dead letters of each."""
    found: list[Consumer] = []
    for topic, group in all_groups():
        found += [_KINDS[group](place, topic, group, number) for number in range(each)]
        found.append(Burier(place, group))
    return found
