"""Producers, and people who change their minds."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import trio

from tickwheel import Client, SendResult
from tickwheel.errors import (
    ClientClosed,
    NotConnected,
    RequestTimeout,
    SendUncertain,
    TickwheelError,
    TransactionRefused,
    UnknownTopic,
)
from tickwheel_simulation.consumers import check_error
from tickwheel_simulation.oracle import Known, Message, Violation, check_figures, figure_bounds
from tickwheel_simulation.scene import MORTAL, ORDERED, PLAIN, SCRATCH
from tickwheel_simulation.world import World

_UNCERTAIN = (NotConnected, ClientClosed, RequestTimeout, SendUncertain, trio.Cancelled)
_KEPT = 60


class Producer:
    """Sends, and changes what it has sent: nobody else changes that."""

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._rng: random.Random = world.random(f"producer/{number}")
        self._name = f"producer-{number}"
        self._number = number
        self._mine: list[Message] = []
        self.undecided: list[tuple[Message, int]] = []
        self._last_group = 0
        self._is_delete_open = False
        self._actions: list[tuple[int, Callable[[Client], Awaitable[None]]]] = [
            (10, self._send),
            (5, self._send_many),
            (1, self._repeat),
            (4, self._cancel),
            (4, self._reschedule),
            (2, self._redeliver),
            (3, self._transaction),
            (3, self._prepare),
            (1, self._look),
            (1, self._purge),
            (1, self._settings),
        ]
        if number == 0:
            self._actions.append((2, self._scratch))

    async def run(self) -> None:
        """Produce until cancelled."""
        rng = self._rng
        weights = [weight for weight, _ in self._actions]
        while True:
            since_s = trio.current_time()
            try:
                async with self._world.client(rng) as client:
                    while rng.random() > 0.02:
                        since_s = trio.current_time()
                        await self._act(client, rng.choices(self._actions, weights)[0][1])
                        await trio.sleep(rng.expovariate(1 / self._world.profile.pause_s))
            except TickwheelError as error:
                check_error(self._world, error, since_s)
                self._world.trace(self._name, "error", error.code)
                await trio.sleep(rng.random())

    async def _act(self, client: Client, action: Callable[[Client], Awaitable[None]]) -> None:
        world, rng = self._world, self._rng
        if not world.profile.cancels or rng.random() >= world.profile.cancels:
            await action(client)
        elif await world.cancels.run(rng, lambda: action(client)):
            world.trace(self._name, "cancelled", action.__name__)
            world.count("cancelled calls")

    # -- what is sent --

    def _when(self) -> dict[str, Any]:
        """A time, as the message's fields."""
        rng, now_ms = self._rng, self._world.clock.now_ms()
        kind = rng.random()
        if kind < 0.25:
            return {"due_ms": 0}
        longest_ms = self._world.profile.longest_delay_ms if kind < 0.6 else 20_000
        delay_ms = rng.randint(0, longest_ms)
        return {"due_ms": now_ms + delay_ms, "is_relative": rng.random() < 0.3}

    def _new(self, topic: str = "", *, keyed: float = 0.3, **fields: Any) -> Message:
        rng = self._rng
        topic = topic or rng.choice((PLAIN, PLAIN, ORDERED, MORTAL))
        large = rng.random() < self._world.profile.large_bodies
        message = self._world.message(
            topic,
            size_bytes=rng.randint(10_000, 60_000) if large else rng.randint(0, 200),
            **self._when(),
            **fields,
        )
        if rng.random() < keyed:
            message.key = f"{self._number}/{message.token}"
        if topic == ORDERED and rng.random() < 0.8:
            self._world.oracle.in_order(message, rng.choice("abc"))
        return message

    def _options(self, message: Message) -> dict[str, Any]:
        options: dict[str, Any] = {"key": message.key, "order_key": message.order_key}
        if message.is_relative:
            options["delay"] = timedelta(milliseconds=message.due_ms - self._world.clock.now_ms())
        elif message.due_ms:
            options["deliver_at"] = message.due_ms
        if self._rng.random() < 0.3:
            options["priority"] = self._rng.randrange(256)
        return options

    def _accept(self, message: Message, result: Any) -> None:
        world = self._world
        if isinstance(result, SendResult):
            world.trace(self._name, "accepted", message.token, result.id)
            world.oracle.accepted(message, result.id, world.clock.highest_ms)
            self._keep(message)
        else:
            self._refuse(message, result)

    def _refuse(self, message: Message, error: TickwheelError | trio.Cancelled) -> None:
        self._world.trace(self._name, "not accepted", message.token, getattr(error, "code", "cancelled"))
        if isinstance(error, _UNCERTAIN):
            self._world.oracle.unanswered(message)
        else:
            self._world.oracle.refused(message)

    def _keep(self, message: Message) -> None:
        self._mine.append(message)
        if len(self._mine) > _KEPT:
            self._mine.pop(self._rng.randrange(_KEPT))

    async def _send(self, client: Client) -> None:
        message = self._new()
        try:
            result = await client.send(message.topic, self._world.body_of(message), **self._options(message))
        except (TickwheelError, trio.Cancelled) as error:
            self._refuse(message, error)
            raise
        self._accept(message, result)

    async def _send_many(self, client: Client) -> None:
        rng = self._rng
        topic = rng.choice((PLAIN, ORDERED, MORTAL))
        count = rng.choice((2, 10, 60))
        messages = [self._new(topic, keyed=0.0, together=0) for _ in range(count)]
        auto_key = rng.random() < 0.5
        for message in messages:
            message.is_relative = False
        try:
            results = await client.send_many(
                topic,
                [self._world.body_of(message) for message in messages],
                deliver_at=[message.due_ms for message in messages],
                order_keys=[message.order_key or "" for message in messages] if topic == ORDERED else None,
                auto_key=auto_key,
            )
        except (TickwheelError, trio.Cancelled) as error:
            for message in messages:
                self._refuse(message, error)
            raise
        for message, result in zip(messages, results, strict=True):
            self._accept(message, result)

    async def _repeat(self, client: Client) -> None:
        """The same key again: nothing is stored, as long as the first one is there."""
        keyed = [one for one in self._mine if one.key is not None]
        if not keyed:
            return
        first = self._rng.choice(keyed)
        again = self._world.message(first.topic, key=first.key)
        try:
            result = await client.send(first.topic, self._world.body_of(again), key=first.key)
        except BaseException as error:
            # It may have been stored, if the first one was done or cancelled: then the key is its own.
            first.is_key_free = again.is_key_free = True
            if isinstance(error, TickwheelError | trio.Cancelled):
                self._refuse(again, error)
            raise
        if result.duplicate and result.differs:
            if result.id != first.id and not first.is_key_free:
                raise Violation(f"the key of {first.token} ({first.id}) belongs to {result.id}")
            self._world.oracle.refused(again)
            return
        # What has its own body under this key is itself: the answer to its first try was lost.
        if not first.is_key_free and first.cancelled is Known.NO and not self._world.oracle.is_done(first):
            raise Violation(f"{again.token} was stored although {first.token} has its key and is not done")
        first.is_key_free = again.is_key_free = True
        self._accept(again, result)

    async def _transaction(self, client: Client) -> None:
        self._last_group += 1
        together = self._number * 1_000_000 + self._last_group
        messages = [self._new(together=together) for _ in range(self._rng.randint(2, 4))]
        cancelled = self._pick() if self._rng.random() < 0.4 else None
        transaction = client.transaction()
        for message in messages:
            transaction.send(message.topic, self._world.body_of(message), **self._options(message))
        if cancelled is not None:
            transaction.cancel(id=cancelled.id)
            self._world.oracle.cancelling(cancelled)
        try:
            result = await transaction.commit()
        except TransactionRefused as error:
            for message in messages:
                self._refuse(message, error)
            return
        except (TickwheelError, trio.Cancelled) as error:
            for message in messages:
                self._refuse(message, error)
            if cancelled is not None:
                cancelled.is_stray = True
            raise
        assert result is not None
        for message, ids in zip(messages, result.ids, strict=True):
            self._accept(message, SendResult(ids[0]))
        if cancelled is not None:
            self._world.oracle.cancel_answered(cancelled, "cancelled")

    # -- prepared messages --

    async def _prepare(self, client: Client) -> None:
        message = self._new(self._rng.choice((PLAIN, MORTAL)))
        options = self._options(message)
        try:
            prepared = await client.prepare(message.topic, self._world.body_of(message), **options)
        except TransactionRefused as error:
            raise Violation(f"{message.token} is prepared once, and refused: {error}") from error
        except (TickwheelError, trio.Cancelled) as error:
            if not isinstance(error, _UNCERTAIN):
                self._world.oracle.decided(message, Known.NO)
            raise
        self.undecided.append((message, prepared.id))
        self._world.trace(self._name, "prepared", message.token, prepared.id)
        if self._rng.random() < 0.9:
            await self.decide(client, self._rng.random() < 0.7)

    async def decide(self, client: Client, commit: bool) -> None:
        """About the oldest prepared message."""
        message, prepared_id = self.undecided[0]
        was_asked, message.is_stray = message.is_stray, True
        if commit:
            ((result, message_id),) = await client.commit_prepared([prepared_id])
        else:
            (result,) = await client.rollback_prepared([prepared_id])
            message_id = 0
        self._world.trace(self._name, "decided", message.token, result, message_id)
        self.undecided.pop(0)
        if not was_asked and result.startswith("already"):
            raise Violation(f"{message.token} is {result} by the first who decides")
        known = {
            "committed": Known.YES,
            "already_committed": Known.YES,
            "rolled_back": Known.NO,
            "already_rolled_back": Known.NO,
        }.get(result)
        if known is None and was_asked and result == "not_found":
            self._world.oracle.unanswered(
                message
            )  # a decision that was not answered counted, and a purge came
            return
        message.is_stray = False
        if known is None:
            raise Violation(f"{message.token} was prepared, and is {result}")
        self._world.oracle.decided(message, known)

    # -- changes --

    def _pick(self) -> Message | None:
        if not self._mine:
            return None
        waiting = [one for one in self._mine if not one.is_ever_leased]
        return self._rng.choice(waiting if waiting and self._rng.random() < 0.8 else self._mine)

    async def _cancel(self, client: Client) -> None:
        message = self._pick()
        if message is None:
            return
        oracle, stop = self._world.oracle, self._rng.random() < 0.2
        oracle.cancelling(message)
        if stop:
            message.is_stopped = True
        try:
            if message.key is not None and not message.is_key_free and self._rng.random() < 0.5:
                result = await client.cancel(message.topic, key=message.key, stop=stop)
            else:
                result = await client.cancel(id=message.id, stop=stop)
        except (TickwheelError, trio.Cancelled):
            message.is_stray = True
            raise
        self._world.trace(self._name, "cancel", message.token, result)
        oracle.cancel_answered(message, result)

    async def _reschedule(self, client: Client) -> None:
        message = self._pick()
        if message is None:
            return
        due_ms = self._when()["due_ms"] or self._world.clock.now_ms()
        self._world.oracle.moving(message, due_ms)
        jumps = self._world.clock.jumps
        try:
            result = await client.reschedule(id=message.id, deliver_at=due_ms)
        except (TickwheelError, trio.Cancelled):
            message.is_stray = True
            raise
        self._world.trace(self._name, "reschedule", message.token, due_ms, result)
        # If the clock was put back meanwhile, it may have been due before that.
        self._world.oracle.move_answered(message, result, due_ms if self._world.clock.jumps == jumps else 0)

    async def _redeliver(self, client: Client) -> None:
        message = self._pick()
        if message is None:
            return
        self._world.oracle.may_come_again(message)
        was_stray, message.is_stray = message.is_stray, True  # from now on until the answer, if one comes
        results = await client.redeliver(id=message.id)
        message.is_stray = was_stray
        self._world.oracle.may_come_again(message)
        self._world.trace(self._name, "redeliver", message.token, results[0])

    # -- topics --

    async def _look(self, client: Client) -> None:
        """Aggregates lie between what is certain and what may be."""
        before = figure_bounds(self._world.oracle)
        topics = await client.topics()
        check_figures(self._world.oracle, topics, before)
        await client.stats()
        await client.wheel()

    async def _purge(self, client: Client) -> None:
        result = await client.purge(dry_run=self._rng.random() < 0.2)
        self._world.trace(self._name, "purge", result.segments, result.purged_messages, result.moved_messages)
        self._world.count("segments purged", result.segments)

    async def _settings(self, client: Client) -> None:
        rng = self._rng
        if rng.random() < 0.3:
            await client.pause_topic(PLAIN)
            await trio.sleep(rng.random() * 10)
            await client.resume_topic(PLAIN)
            return
        ack_wait_ms = rng.choice((200, 1_000, 8_000))
        self._world.oracle.settings_changed(ack_wait_ms)
        self._world.claims.settings += 1
        await client.set_topic(
            rng.choice((PLAIN, ORDERED)),
            ack_wait=timedelta(milliseconds=ack_wait_ms),
            min_backoff=timedelta(milliseconds=ack_wait_ms),
            max_backoff=timedelta(milliseconds=4 * ack_wait_ms),
        )

    async def _scratch(self, client: Client) -> None:
        """A topic that comes and goes with all that is in it."""
        oracle = self._world.oracle
        message = self._new(SCRATCH, keyed=0.5)
        try:
            self._accept(
                message,
                await client.send(SCRATCH, self._world.body_of(message), **self._options(message)),
            )
        except (TickwheelError, trio.Cancelled) as error:
            self._refuse(message, error)
            raise
        if self._rng.random() < 0.5:
            return
        oracle.topic_deleted(SCRATCH, Known.MAYBE)
        try:
            await client.delete_topic(SCRATCH)
        except UnknownTopic as error:
            if not self._is_delete_open:
                raise Violation(f"{SCRATCH} is not there, although only one deletes it: {error}") from error
            self._world.trace(self._name, "nothing to delete")
        except (TickwheelError, trio.Cancelled):
            self._is_delete_open = True  # it may come true much later
            raise
        else:
            self._world.trace(self._name, "deleted")
        oracle.topic_deleted(SCRATCH, Known.YES)
        self._mine = [one for one in self._mine if one.topic != SCRATCH]
