"""Consumers: they ack, give back, ask for more time, say nothing, are slow, and leave."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import trio

from tickwheel import Client
from tickwheel.errors import AckRefused, InternalError, TickwheelError
from tickwheel.protocol.errors import DiskFull, RemoteProtocolError
from tickwheel_simulation.oracle import Message, Violation
from tickwheel_simulation.scene import GROUPS, MORTAL, UNDERTAKERS
from tickwheel_simulation.world import World

_DEAD = f"{MORTAL}.dead"


def check_error(world: World, error: TickwheelError, since_s: float) -> None:
    """Some errors are excused by what was done to the broker, others never."""
    if isinstance(error, DiskFull) and not world.was_full(since_s):
        raise Violation(f"refused as disk_full, and the disk was not full: {error}") from error
    if isinstance(error, InternalError | RemoteProtocolError) and error.code != "shutting_down":
        raise Violation(f"an error that nothing excuses: {error.code}: {error}") from error


class Consumer:
    """One subscriber of a group, for as long as the run lasts, with one client after the other."""

    def __init__(self, world: World, topic: str, group: str, number: int) -> None:
        self._world = world
        self.topic = topic
        self.group = group
        self._rng: random.Random = world.random(f"consumer/{topic}/{group}/{number}")
        self._slowness: random.Random = world.random(f"slowness/{topic}/{group}/{number}")
        self._giving: random.Random = world.random(f"giving/{topic}/{group}/{number}")
        self._fetching: random.Random = world.random(f"fetching/{topic}/{group}/{number}")
        self._repeating: random.Random = world.random(f"repeating/{topic}/{group}/{number}")
        self._client: Client | None = None
        self._name = f"{topic}/{group}/{number}"
        self._ordered_batch = 1 + number % 3

    async def run(self) -> None:
        """Consume until cancelled."""
        while True:
            since_s = trio.current_time()
            try:
                async with self._world.client(self._rng) as client:
                    self._client = client
                    while self._world.profile.cancels and self._rng.random() < 0.5:
                        await self._change_mind(client)
                    await (self._fetch if self._fetching.random() < 0.3 else self._subscribe)(client)
            except TickwheelError as error:
                check_error(self._world, error, since_s)
                await trio.sleep(self._rng.random() * 2)

    async def _change_mind(self, client: Client) -> None:
        """A client subscribes and leaves, and is cancelled on the way."""

        async def come_and_go() -> None:
            async with client.subscribe(self.topic, self.group):
                pass

        if await self._world.cancels.run(self._rng, come_and_go):
            self._world.trace("cancelled", self._name)
            self._world.count("cancelled calls")

    async def _subscribe(self, client: Client) -> None:
        rng, profile = self._rng, self._world.profile
        credit = rng.choice((1, 10, 200))
        async with client.subscribe(
            self.topic, self.group, credit=credit, batch=rng.choice((1, 7, 100))
        ) as subscription:
            while self._world.is_calm or rng.random() > profile.leave:
                batch = await subscription.receive_batch(timeout=20)
                if batch is None:
                    continue
                link = self._world.claims.link_of(client)
                for delivered in batch:
                    await self._handle(delivered, client, link)
            if rng.random() < 0.5:
                self._world.trace("leave", self._name)
                raise _Abandon

    async def _fetch(self, client: Client) -> None:
        """The same without a subscription: what is fetched is not renewed, and stays leased when the client goes."""
        rng, world = self._fetching, self._world
        while world.is_calm or rng.random() > world.profile.leave:
            wait = timedelta(seconds=rng.choice((0, 1, 20)))
            fetched = await client.fetch(
                self.topic,
                self.group,
                count=rng.choice((1, 7, 100)),
                wait=wait,
                ordered_batch=self._ordered_batch,
            )
            if not fetched and not wait:
                await trio.sleep(rng.random() * 2)
            elif fetched and not world.is_calm and rng.random() < 0.1:
                results = await fetched.give_back()
                world.trace("gave back", self._name, *zip(fetched.ids, results, strict=True))
                world.count("fetched and given back")
            else:
                world.count("fetched", len(fetched))
                for delivered in fetched:
                    await self._handle(delivered)

    async def _handle(self, delivered: Any, client: Client | None = None, link: object = None) -> None:
        """`client`: what renews the lease meanwhile, if anything does; `link`: over which connection."""
        world = self._world
        token = world.token_of(delivered.body)
        message = world.oracle.messages.get(token)
        world.trace("got", self._name, token, delivered.epoch)
        if message is None:
            raise Violation(f"{self._name} got {token}, which nobody sent")
        if self.topic == _DEAD:
            await delivered.ack()
            return
        if message.id != delivered.id:
            raise Violation(f"{token} has the id {message.id}, and came as {delivered.id}")
        if client is not None:
            world.claims.begin(client, link, message, self.group, delivered.epoch)
        try:
            await self._work(delivered, message)
        finally:
            world.claims.end(message, self.group)

    async def _work(self, delivered: Any, message: Message) -> None:
        world, rng, profile = self._world, self._rng, self._world.profile
        if not world.is_calm and self._slowness.random() < profile.slow:
            world.count("slow handlers")
            await trio.sleep((0.5 + 2 * self._slowness.random()) * profile.ack_wait_ms / 1_000)
        chance = 1.0 if world.is_calm else rng.random()
        if (chance := chance - profile.silence) < 0:
            return
        if (chance := chance - profile.nack) < 0:
            await self._nack(delivered, message)
            return
        if chance - profile.extend < 0:
            await self._extend(delivered, message)
        if rng.random() < 0.2 and not world.is_calm:
            await trio.sleep(rng.random() * profile.ack_wait_ms / 600)
        await self._ack(delivered, message)

    async def _ack(self, delivered: Any, message: Message) -> None:
        world, epoch = self._world, delivered.epoch
        since_s = trio.current_time()
        world.claims.end(message, self.group)
        world.oracle.acking(message, self.group, epoch)
        confirm = world.is_calm or self._rng.random() < 0.5
        try:
            await delivered.ack(confirm=confirm)
        except AckRefused as error:
            code = error.refused.get(delivered.id, error.code)
            world.trace("ack refused", self._name, message.token, epoch, code)
            world.oracle.ack_refused(message, self.group, epoch, code)
        except DiskFull as error:
            check_error(world, error, since_s)
        else:
            if confirm:
                world.trace("acked", self._name, message.token, epoch)
                world.oracle.acked(message, self.group, epoch)
        if not world.is_calm and self._repeating.random() < (0.5 if epoch > 1 else 0.05):
            await self._ack_again(delivered, message)

    async def _ack_again(self, delivered: Any, message: Message) -> None:
        """By its receipt, or by that of the delivery before, whose holder is late."""
        client, group_id = self._client, delivered.acks.group_id
        epoch = max(1, delivered.epoch - self._repeating.choice((0, 1)))
        if client is None or group_id is None:
            return
        (result,) = await client.ack(group_id, [(delivered.id, epoch)])
        self._world.trace("acked again", self._name, message.token, epoch, result)
        self._world.count("acked again")
        self._world.oracle.ack_answered(message, self.group, epoch, result)

    async def _nack(self, delivered: Any, message: Message) -> None:
        delay = self._rng.choice((None, timedelta(0), timedelta(seconds=self._rng.random() * 5)))
        calls = self._world.oracle.nacking(message, self.group, delivered.epoch)
        self._world.claims.end(message, self.group)
        how = self._giving.random()
        if how < 0.2:
            result = await delivered.nack(delay, uncounted=True)
        elif how < 0.4 and self.topic == MORTAL:
            self._world.oracle.giving_up(message, self.group)
            result = await delivered.nack(error="simulated", give_up=True)
        else:
            result = await delivered.nack(delay, error="simulated")
        self._world.oracle.nack_answered(message, self.group, delivered.epoch, calls, result)
        self._world.trace("nacked", self._name, message.token, delivered.epoch, result)

    async def _extend(self, delivered: Any, message: Message) -> None:
        world = self._world
        duration_ms = self._rng.randint(100, 20_000)
        world.claims.end(message, self.group)  # which may be shorter than it had it
        from_ms, jumps = world.clock.now_ms() - world.clock_lag_ms, world.clock.jumps
        world.oracle.extending(message, self.group, delivered.epoch, from_ms + duration_ms)
        result = await delivered.extend(timedelta(milliseconds=duration_ms))
        world.trace("extended", self._name, message.token, delivered.epoch, result)
        if result == "extended" and world.clock.jumps == jumps:
            world.oracle.extended(message, self.group, delivered.epoch, from_ms + duration_ms, from_ms)


class _Abandon(TickwheelError):
    """The consumer vanishes within its block, as after an exception of its own."""


def all_consumers(world: World, each: int) -> list[Consumer]:
    """So many of each group, and one for the dead letters."""
    named = [(topic, group) for topic, groups in GROUPS.items() for group in groups]
    consumers = [Consumer(world, topic, group, number) for topic, group in named for number in range(each)]
    return [*consumers, Consumer(world, _DEAD, UNDERTAKERS, 0)]
