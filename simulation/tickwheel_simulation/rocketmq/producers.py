"""Producers: messages with and without a time, message groups, transactions with their checks, recalls."""

from __future__ import annotations

from typing import Any, Final

import trio

from tickwheel_gateway.wire import schema
from tickwheel_gateway.wire.codes import Code
from tickwheel_simulation.oracle import Known, Violation
from tickwheel_simulation.rocketmq.channel import CallFailed
from tickwheel_simulation.rocketmq.client import Place, RocketClient
from tickwheel_simulation.rocketmq.profile import ORDERLY, TAGS, TOPIC
from tickwheel_simulation.rocketmq.promises import Said

ATTEMPTS: Final = 3
_KEPT: Final = 30
_RESULTS: Final = {
    "it was delivered already": "already_delivered",
    "it was consumed already": "already_acked",
    "its time is over": "expired",
}


class Producer(RocketClient):
    """Sends with up to three attempts, all with the same id of the message."""

    def __init__(self, place: Place, number: int) -> None:
        super().__init__(place, f"producer-{number}")
        self._number = number
        self._last_id = 0
        self._recalls: list[tuple[Said, str]] = []
        self._decisions: list[Said] = []
        """Transactions that it has decided about; whether that was answered or not."""

    def fill_settings(self, settings: Any) -> None:
        for topic in (TOPIC, ORDERLY):
            settings.publishing.topics.add(name=topic)

    def has_settings(self, settings: Any) -> None:
        if settings.backoff_policy.max_attempts != ATTEMPTS or not settings.publishing.max_body_size:
            raise Violation("a producer has other settings than it needs")

    async def live(self) -> None:
        rng = self.rng
        actions = (
            *((5, self._send_normal), (3, self._send_later), (4, self._send_in_order)),
            *((4, self._transact), (3, self._recall), (1, self._send_several)),
        )
        weights = [weight for weight, _ in actions]
        while not self.scene.is_calm:
            await rng.choices(actions, weights)[0][1]()
            await self.perhaps_vanish()
            await trio.sleep(rng.expovariate(1 / self.place.profile.pause_s))
        # It answers checks, and those decisions that were not answered are made again.
        while True:
            for said in self._decisions:
                if not said.decided:
                    await self._end(said, said.transaction_id, is_known=True, is_check=False)
            await trio.sleep(1)

    # -- sends --

    def _said(self, topic: str, **fields: Any) -> Said:
        self._last_id += 1
        size_bytes = self.rng.choice((0, 0, 100, 20_000))
        message = self.place.message(topic, size_bytes, **fields)
        message_id = f"01{self._number:012X}{self._last_id:020X}"
        return Said(message, message_id, self.rng.choice(TAGS), self.rng.randint(0, 9))

    def _fill(self, request: Any, said: Said) -> None:
        message = said.message
        made = request.messages.add(body=self.place.body_of(message))
        made.topic.name = message.topic
        made.user_properties["n"] = str(said.number)
        system = made.system_properties
        system.message_id = said.message_id
        if said.tag:
            system.tag = said.tag
        if message.order_key is not None:
            system.message_group = message.order_key
        if message.due_ms:
            schema.set_milliseconds(system.delivery_timestamp, message.due_ms)
        if said.commits is not None:
            system.message_type = schema.TRANSACTION
            schema.set_milliseconds(system.orphaned_transaction_recovery_duration, 1_000)

    async def _send(self, *all_said: Said) -> list[Any] | None:
        """The entries of the answer; None: it is not known what became of them, or none was taken."""
        request = schema.SendMessageRequest()
        for said in all_said:
            self._fill(request, said)
            self.promises.sending(said)
        is_uncertain = False

        async def send() -> Any:
            nonlocal is_uncertain
            try:
                response = await self.ask("SendMessage", request, schema.SendMessageResponse)
            except CallFailed:
                is_uncertain = True
                raise
            if response.status.code == Code.OK:
                return response
            is_uncertain |= self.is_uncertain(response.status) or bool(response.entries)
            return None

        try:
            response = await self.retried(ATTEMPTS, send)
        except BaseException:
            self._unknown(all_said)
            raise
        if response is None:
            if is_uncertain:
                self._unknown(all_said)
            else:
                for said in all_said:
                    self.scene.trace(self.name, "refused", said.message.token)
                    self.scene.oracle.refused(said.message)
            return None
        entries = list(response.entries)
        if [one.message_id for one in entries] != [one.message_id for one in all_said]:
            raise Violation("the entries of an answer are not those of the request")
        return entries

    def _unknown(self, all_said: tuple[Said, ...]) -> None:
        for said in all_said:
            self.scene.trace(self.name, "unanswered", said.message.token)
            self.scene.oracle.unanswered(said.message)

    def _accept(self, said: Said, entry: Any) -> None:
        scene, message = self.scene, said.message
        scene.trace(self.name, "sent", message.token, entry.offset)
        scene.oracle.accepted(message, entry.offset, scene.clock.highest_ms)
        self.promises.answered(said)
        scene.count("sent by rocketmq")

    async def _send_normal(self) -> None:
        said = self._said(TOPIC)
        if entries := await self._send(said):
            self._accept(said, entries[0])

    async def _send_several(self) -> None:
        all_said = [self._said(TOPIC) for _ in range(self.rng.randint(2, 5))]
        if entries := await self._send(*all_said):
            for said, entry in zip(all_said, entries, strict=True):
                self._accept(said, entry)

    async def _send_later(self) -> None:
        longest_ms = self.rng.choice((3_000, 20_000, self.scene.profile.longest_delay_ms))
        due_ms = self.scene.clock.now_ms() + self.rng.randint(0, longest_ms)
        said = self._said(TOPIC, due_ms=due_ms)
        if entries := await self._send(said):
            self._accept(said, entries[0])
            if entries[0].recall_handle:
                self._recalls.append((said, entries[0].recall_handle))
                del self._recalls[:-_KEPT]

    async def _send_in_order(self) -> None:
        """One after the other, as who wants an order must."""
        group = f"{self._number}{self.rng.choice('xy')}"
        topic = self.rng.choice((ORDERLY, ORDERLY, TOPIC))
        for _ in range(self.rng.randint(1, 4)):
            said = self._said(topic)
            self.scene.oracle.in_order(said.message, group)
            entries = await self._send(said)
            if entries is None:
                return
            self._accept(said, entries[0])

    # -- recalls --

    async def _recall(self) -> None:
        if not self._recalls:
            return
        said, handle = self.rng.choice(self._recalls)
        message, oracle = said.message, self.scene.oracle
        oracle.cancelling(message)
        request = schema.RecallMessageRequest(recall_handle=handle)
        request.topic.name = message.topic
        try:
            response = await self.ask("RecallMessage", request, schema.RecallMessageResponse)
        except BaseException as error:
            message.is_stray = True
            if isinstance(error, CallFailed):
                return
            raise
        status = response.status
        self.scene.trace(self.name, "recall", message.token, status.code, status.message)
        if status.code == Code.OK:
            if response.message_id != said.message_id:
                raise Violation(f"{message.token} is recalled as {response.message_id}")
            oracle.cancel_answered(message, "cancelled")
            self.scene.count("recalled")
        elif status.code == Code.NOT_FOUND:
            oracle.cancel_answered(message, "not_found")
        elif status.code == Code.BAD_REQUEST:
            oracle.cancel_answered(message, _RESULTS[status.message.rpartition(": ")[2]])
            self.scene.count("recalled too late")
        else:
            message.is_stray = True

    # -- transactions --

    async def _transact(self) -> None:
        said = self._said(TOPIC)
        said.commits = self.rng.random() < 0.7
        entries = await self._send(said)
        if entries is None:
            return
        said.is_prepared, said.transaction_id = True, entries[0].transaction_id
        said.message.is_waiting = True
        self.scene.trace(self.name, "prepared", said.message.token)
        self.scene.count("prepared by rocketmq")
        if self.rng.random() < self.place.profile.undecided:
            if self.rng.random() < 0.5:
                await self._end(said, said.transaction_id, is_known=False, is_check=False)
            return
        await trio.sleep(self.rng.random() * 3)
        await self._end(said, said.transaction_id, is_known=True, is_check=False)

    def told(self, command: Any) -> None:
        if command.WhichOneof("command") == "recover_orphaned_transaction_command":
            self.start(self._check, command.recover_orphaned_transaction_command)

    async def _check(self, command: Any) -> None:
        token = self.scene.token_of(command.message.body)
        said = self.promises.checked(token)
        assert said is not None
        if said.message_id != command.message.system_properties.message_id:
            raise Violation(f"{token} is checked as {command.message.system_properties.message_id}")
        self.scene.trace(self.name, "checked", token)
        self.scene.count("checks answered")
        is_known = self.scene.is_calm or self.rng.random() < 0.7
        await self._end(said, command.transaction_id, is_known=is_known, is_check=True)

    async def _end(self, said: Said, transaction_id: str, *, is_known: bool, is_check: bool) -> None:
        """`is_known`: else its producer does not know yet."""
        request = schema.EndTransactionRequest(
            transaction_id=transaction_id, message_id=said.message_id, source=2 if is_check else 1
        )
        request.topic.name = said.message.topic
        if is_known:
            request.resolution = schema.COMMIT if said.commits else schema.ROLLBACK
            said.transaction_id = transaction_id
            if said not in self._decisions:
                self._decisions.append(said)
        said.decisions += is_known
        try:
            response = await self.ask("EndTransaction", request, schema.EndTransactionResponse)
        except CallFailed:
            return
        status = response.status
        self.scene.trace(self.name, "decided", said.message.token, is_known, status.code)
        if not is_known:
            if status.code != Code.OK and not self.is_uncertain(status):
                raise Violation(f"who does not know yet is answered {status.code}: {status.message}")
            return
        if status.code == Code.OK:
            said.decided = True
            self.scene.oracle.decided(said.message, Known.YES if said.commits else Known.NO)
            self.scene.count("committed" if said.commits else "rolled back")
        elif status.message.startswith("the message cannot be"):
            self._refused_decision(said, status.message)

    def _refused_decision(self, said: Said, text: str) -> None:
        """Its decision is always the same; and what it prepared stays until it is decided."""
        is_gone = "it was never there" in text and (said.decisions > 1 or said.decided)
        if not is_gone:
            raise Violation(f"{said.message.token} was prepared, and {text}")
        said.decided = True  # by another decision, and a purge came
