"""Producers, people who change their minds, and one who administers an endpoint."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final, TypeAlias

import trio

from tickwheel import Client, SendResult
from tickwheel.errors import (
    ClientClosed,
    NotConnected,
    RequestTimeout,
    RequestUncertain,
    SendUncertain,
    TickwheelError,
    TransactionRefused,
    UnknownEndpoint,
    UnknownTopic,
)
from tickwheel.protocol.endpoint_tests import GROUP, tests_topic
from tickwheel_simulation.consumers import check_error
from tickwheel_simulation.oracle import Known, Message, Violation, check_figures, figure_bounds
from tickwheel_simulation.scene import MORTAL, ORDERED, PLAIN, PUSHED, SCRATCH
from tickwheel_simulation.world import World

_UNCERTAIN = (NotConnected, ClientClosed, RequestTimeout, SendUncertain, trio.Cancelled)
_KEPT = 60
ENDPOINT: Final = "simulated"
ENDPOINT_GROUP: Final = f"push.{ENDPOINT}"


class Producer:
    """Sends, and changes what it has sent; no other task changes that."""

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
            message.due_ms -= self._world.clock_lag_ms
        elif message.due_ms:
            options["deliver_at"] = message.due_ms
        if self._rng.random() < 0.3:
            options["priority"] = self._rng.randrange(256)
        return options

    def _accept(self, message: Message, result: Any) -> None:
        world = self._world
        if isinstance(result, SendResult):
            world.trace(self._name, "accepted", message.token, result.id)
            world.oracle.accepted(message, result.id, world.clock.highest_ms + world.clock_lead_ms)
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
        heir = self._heir(cancelled, together)
        messages += [heir] if heir is not None else []
        transaction = client.transaction()
        for message in messages:
            transaction.send(message.topic, self._world.body_of(message), **self._options(message))
        if cancelled is not None:
            transaction.cancel(id=cancelled.id)
            self._world.oracle.cancelling(cancelled)
        try:
            result = await transaction.commit()
        except TransactionRefused as error:
            if error.reason == "duplicate" and not self._world.oracle.is_stale():
                raise Violation(f"a key is new, or that of {cancelled}, and refused: {error}") from error
            for message in messages:
                self._refuse(message, error)
            return
        except (TickwheelError, trio.Cancelled) as error:
            for message in messages:
                self._refuse(message, error)
            if cancelled is not None:
                cancelled.is_stray = True
                cancelled.is_key_free |= heir is not None
            raise
        assert result is not None
        for message, ids in zip(messages, result.ids, strict=True):
            self._accept(message, SendResult(ids[0]))
        if cancelled is not None:
            cancelled.is_key_free |= heir is not None
            self._world.oracle.cancel_answered(cancelled, "cancelled")

    def _heir(self, cancelled: Message | None, together: int) -> Message | None:
        """A message that gets the key of one that is cancelled with the same transaction."""
        if cancelled is None or cancelled.key is None or cancelled.is_key_free or self._rng.random() < 0.3:
            return None
        heir = self._new(cancelled.topic, keyed=0.0, together=together)
        heir.key = cancelled.key
        return heir

    # -- prepared messages --

    async def _prepare(self, client: Client) -> None:
        message = self._new(self._rng.choice((PLAIN, MORTAL)))
        options = self._options(message)
        try:
            after = timedelta(seconds=1) if len(self.undecided) % 2 else None
            body = self._world.body_of(message)
            prepared = await client.prepare(message.topic, body, check_after=after, **options)
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
        if known is None and result == "not_found" and (was_asked or self._world.oracle.is_stale()):
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
        self._world.longest_lease_ms = max(self._world.longest_lease_ms, ack_wait_ms)
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
            if not self._is_delete_open and not oracle.is_stale():
                raise Violation(f"{SCRATCH} is not there, although only one deletes it: {error}") from error
            self._world.trace(self._name, "nothing to delete")
        except (TickwheelError, trio.Cancelled):
            self._is_delete_open = True  # it may come true much later
            raise
        else:
            self._world.trace(self._name, "deleted")
        oracle.topic_deleted(SCRATCH, Known.YES)
        self._mine = [one for one in self._mine if one.topic != SCRATCH]


_Endpoint: TypeAlias = tuple[int, bool] | None
"""Its rate, and whether it is enabled; None: there is none."""
_Step: TypeAlias = Callable[[_Endpoint], _Endpoint]


class Administrator:
    """Makes, changes, switches, tests and deletes one endpoint: what was answered is so, and its group comes and goes
    with it. Tests are taken, and what became of them is told. No other task does any of this."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng: random.Random = world.random("administrator")
        self._possible: set[_Endpoint] = {None}
        self._late: list[_Step] = []
        """What may have been done, or may still be: its answer did not come."""
        self._late_since = 0
        self._tests: set[int] = set()
        """The ids of those that were answered."""
        self._has_others = False
        """There may be more tests: their answers did not come."""
        self._acked: set[int] = set()
        """Of tests that were taken, and their acks confirmed."""
        self._taken: set[int] = set()
        """The same, at the first attempt: no other one at a test is told of."""

    async def run(self) -> None:
        """Administer until cancelled."""
        rng = self._rng
        while True:
            since_s = trio.current_time()
            try:
                async with self._world.client(rng) as client:
                    while rng.random() > 0.02:
                        since_s = trio.current_time()
                        await rng.choice(
                            (
                                *(self._set, self._set, self._switch, self._delete, self.look),
                                *(self._test, self._take, self._tried),
                            )
                        )(client)
                        await trio.sleep(rng.expovariate(4))
            except TickwheelError as error:
                check_error(self._world, error, since_s)
                await trio.sleep(rng.random())

    async def look(self, client: Client) -> None:
        """Whether the endpoint is as it must be, and its group there when it is."""
        found = await client.endpoints(PUSHED)
        groups = [group.name for group in await client.groups(PUSHED) if group.name == ENDPOINT_GROUP]
        self._is_now({(int(one.rate_per_s or 0), one.enabled) for one in found} or {None})
        if bool(groups) is not bool(found) and not self._late:
            raise Violation(f"endpoint {found} has the groups {groups}")
        self._world.count("looks at endpoints")

    async def finish(self, client: Client) -> None:
        """When all is calm again: one more test, which is taken, and told of."""
        await self.look(client)
        await self._set(client)
        await self._test(client)
        test = max(self._tests)
        while test not in self._acked:
            await self._take(client)
        if test not in await self._tried(client) and test in self._taken:
            raise Violation(f"test {test} was taken, and is not told of")

    async def _set(self, client: Client) -> None:
        rate = self._rng.randint(1, 5)
        await self._change(
            client.set_endpoint(ENDPOINT, topic=PUSHED, url="https://a.example/x", rate=rate),
            lambda known: (rate, True if known is None else known[1]),
        )

    async def _switch(self, client: Client) -> None:
        enabled = self._rng.random() < 0.5
        call = client.enable_endpoint(ENDPOINT) if enabled else client.disable_endpoint(ENDPOINT, "simulated")
        await self._change(call, lambda known: None if known is None else (known[0], enabled), needs_one=True)

    async def _delete(self, client: Client) -> None:
        await self._change(client.delete_endpoint(ENDPOINT), lambda _: None, needs_one=True)

    async def _test(self, client: Client) -> None:
        """It changes nothing that is looked at."""

        async def test() -> None:
            self._tests.add(await client.test_endpoint(ENDPOINT))

        try:
            await self._change(test(), lambda known: known, needs_one=True)
        except (*_UNCERTAIN, RequestUncertain):
            self._has_others = True
            raise

    async def _take(self, client: Client) -> None:
        """As `tickwheel push` takes them."""
        if not self._tests:
            return  # to fetch would make the topic
        messages = await client.fetch(tests_topic(PUSHED), GROUP, count=10, wait=timedelta(seconds=1))
        for message, attempt in zip(messages, messages.attempts, strict=True):
            if message.id not in self._tests and not self._has_others:
                raise Violation(f"test {message.id} was never made")
            await message.ack(confirm=True)
            self._acked.add(message.id)
            if attempt == 1:
                self._taken.add(message.id)

    async def _tried(self, client: Client) -> set[int]:
        """What the log tells of deliveries to the endpoint, which has no messages but tests; those that were taken."""
        try:
            found = await client.endpoint_attempts(ENDPOINT, limit=1_000)
        except UnknownEndpoint:
            self._is_now({None})
            return set()
        if self._world.oracle.is_stale():
            return set()
        for one in found.attempts:
            if one.id and one.id not in self._tests and not self._has_others:
                raise Violation(f"there was an attempt at test {one.id}, which was never made")
        acked = {one.id for one in found.attempts if one.outcome == "acked"}
        others = {one.id for one in found.attempts} - acked
        if others & self._taken:
            raise Violation(f"{others & self._taken} were taken, and are told to be otherwise")
        self._world.count("tests told of", len(acked & self._taken))
        return acked

    async def _change(self, call: Awaitable[object], step: _Step, *, needs_one: bool = False) -> None:
        try:
            await call
        except UnknownEndpoint:
            self._is_now({None})
        except (*_UNCERTAIN, RequestUncertain):
            self._settle()
            self._late.append(step)
            raise
        else:
            known = self._all_possible()
            done = {step(one) for one in known if one is not None or not needs_one}
            if not done:
                raise Violation("an endpoint was changed that is not there")
            self._possible = done
            self._world.count("endpoint changes")

    def _is_now(self, found: set[_Endpoint]) -> None:
        possible = self._all_possible()
        if not found <= possible and not self._world.oracle.is_stale():
            raise Violation(f"the endpoint is {found}, and can only be one of {possible}")
        self._possible = found

    def _all_possible(self) -> set[_Endpoint]:
        """With what may have been done meanwhile, in any order."""
        self._settle()
        possible = set(self._possible)
        while True:
            more = possible | {step(one) for one in possible for step in self._late}
            if more == possible:
                return possible
            possible = more

    def _settle(self) -> None:
        """What was on its way to a broker that has ended does not arrive any more."""
        if self._late and self._world.lives > self._late_since:
            late, self._late = self._late, []
            for _ in late:
                self._possible |= {step(one) for one in self._possible for step in late}
        self._late_since = self._world.lives
