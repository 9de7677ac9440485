"""Backups that are restored while clients live on: a run of its own, because what was confirmed since is lost then.

The machine is set back to an earlier copy of its disk, as often as a seed says. Clients only see that a connection
broke and that there is a broker again. An oracle of its own knows which messages each history of the log had, so it
sees when a client settles or cancels what is another one's.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import trio
from trio.testing import MockClock

from tickwheel import Client
from tickwheel.errors import AckRefused, TickwheelError
from tickwheel_simulation.determinism import repeatable
from tickwheel_simulation.machine import Machine
from tickwheel_simulation.oracle import Violation
from tickwheel_simulation.scene import RESTORED
from tickwheel_simulation.world import World
from timerlog.recovery import timeline

GROUP = "red"
PRODUCERS, CONSUMERS = 2, 3
_TIMER_MS = 600_000
_PATIENCE_S = 60.0
_HEAL_S = 2 * _TIMER_MS / 1_000


@dataclass
class Histories:
    """What each history of the log had. A token names a message; the first of all histories is 0."""

    now: int = 0
    ids: dict[int, str] = field(default_factory=dict)
    """Which message an id was told of; for good, whatever becomes of the log."""
    accepted: dict[str, int] = field(default_factory=dict)
    """In which history a message was confirmed."""
    begun: set[str] = field(default_factory=set)
    """What was sent, confirmed or not."""
    surely: dict[int, set[str]] = field(default_factory=dict)
    """Of a history that is over: what the next one has of it, since it was confirmed before the backup."""
    perhaps: dict[int, set[str]] = field(default_factory=dict)
    """The same, and what was on its way then."""
    done: set[str] = field(default_factory=set)
    """What a handler has handled to the end, in whatever history."""
    acks: int = 0
    refused: int = 0

    def sent(self, token: str, message_id: int) -> None:
        """The broker confirmed it."""
        if self.ids.setdefault(message_id, token) != token:
            raise Violation(
                f"id {message_id} is that of {self.ids[message_id]}, and was given to {token}, too"
            )
        self.accepted[token] = self.now

    def is_there(self, token: str) -> bool:
        """Whether a message that was confirmed is in the log of now."""
        history = self.accepted[token]
        return all(token in self.surely[one] for one in range(history, self.now))

    def is_lost(self, token: str) -> bool:
        """Whether it is surely not there."""
        history = self.accepted[token]
        return not all(token in self.perhaps[one] for one in range(history, self.now))

    def acked(self, token: str, history: int) -> None:
        """An ack counted of what was received in a history."""
        self.acks += 1
        if history != self.now:
            raise Violation(f"an ack of {token} counted, which was received before the log was set back")
        self.done.add(token)

    def cancelled(self, token: str, history: int) -> None:
        """A cancel by id says that it came in time; it was asked for in a history."""
        if history == self.now and self.is_lost(token):
            raise Violation(f"{token} was lost with the log, and its id has cancelled another message")
        self.done.add(token)

    def backed_up(self) -> None:
        """The next history begins with what there is now."""
        self.surely[self.now] = {token for token in self.accepted if self.is_there(token)}
        self.perhaps[self.now] = set(self.begun)

    def set_back(self) -> None:
        """The log is that of the backup."""
        self.now += 1

    @property
    def missing(self) -> list[str]:
        """What is in the log and was not handled."""
        return [one for one in self.accepted if one not in self.done and self.is_there(one)]


class Restoring:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.histories = Histories()
        self._world = World(seed, replays=0.0, is_cluster=False)
        assert isinstance(self._world.machine, Machine)
        self._machine = self._world.machine
        self._rng = self._world.random("restoring")
        self._last = 0

    def run(self) -> None:
        """Raises Violation."""
        with self._world.installed(), mock.patch.multiple(timeline, LEAST_IDS=2_000, IDS_A_MS=1):
            # Small gaps: the tables of a machine that is killed are copied.
            trio.run(self._main, clock=MockClock(autojump_threshold=0))

    async def _main(self) -> None:
        self._world.calm_down()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._machine.run)
            await self._machine.start()
            for _ in range(CONSUMERS):
                nursery.start_soon(self._consume)
            with trio.CancelScope() as producing:
                async with trio.open_nursery() as producers:
                    for _ in range(PRODUCERS):
                        producers.start_soon(self._produce)
                    for _ in range(self._rng.randint(1, 3)):
                        await self._lose_some()
                    await trio.sleep(self._rng.random() * 20)
                    producing.cancel()
            with trio.move_on_after(_HEAL_S) as healing:
                while self.histories.missing:
                    await trio.sleep(1)
            if healing.cancelled_caught:
                missing = self.histories.missing
                raise Violation(f"never handled: {missing[:5]} ({len(missing)})")
            nursery.cancel_scope.cancel()

    async def _lose_some(self) -> None:
        """A backup, and some time later the broker is gone and the backup is what there is."""
        histories, machine = self.histories, self._machine
        await trio.sleep(self._rng.random() * 20)
        histories.backed_up()
        backup = machine.disk.copy()
        began_ms = machine.clock.now_ms()
        await trio.sleep(self._rng.random() * 20)
        machine.is_wanted = False
        machine.kill(power=False)
        await machine.stop()
        await trio.sleep(5)  # what was on its way arrives
        machine.set_back(backup, began_ms)
        histories.set_back()
        await machine.start()

    async def _produce(self) -> None:
        timers: list[tuple[str, int]] = []
        async with self._world.patient_client(_PATIENCE_S) as client:
            while True:
                await trio.sleep(self._rng.random())
                self._last += 1
                token = f"m{self._last}"
                self.histories.begun.add(token)
                is_timer = self._rng.random() < 0.3
                delay_ms = _TIMER_MS if is_timer else 0
                with suppress(TickwheelError):
                    sent = await client.send(RESTORED, token.encode(), delay_ms=delay_ms)
                    self.histories.sent(token, sent.id)
                    if is_timer:
                        timers.append((token, sent.id))
                if timers and self._rng.random() < 0.2:
                    await self._cancel(client, *timers.pop(self._rng.randrange(len(timers))))

    async def _cancel(self, client: Client, token: str, message_id: int) -> None:
        history = self.histories.now
        with suppress(TickwheelError):
            if await client.cancel(id=message_id) == "cancelled":
                self.histories.cancelled(token, history)

    async def _consume(self) -> None:
        async with (
            self._world.patient_client(_PATIENCE_S) as client,
            client.subscribe(RESTORED, GROUP, credit=10) as subscription,
            trio.open_nursery() as nursery,
        ):
            async for message in subscription:
                nursery.start_soon(self._handle, message, self.histories.now)

    async def _handle(self, message: Any, history: int) -> None:
        await trio.sleep(self._rng.random() * 15)
        try:
            await message.ack(confirm=True)
        except AckRefused:
            self.histories.refused += 1
        except TickwheelError:
            return  # the connection broke: whether it counted, the next delivery says
        else:
            self.histories.acked(message.body.decode(), history)


def run_restores(seed: int, told: Callable[[Histories], None] = lambda _: None) -> str:
    """What is wrong, or nothing. ``told`` is given what happened."""
    with repeatable(seed):
        restoring = Restoring(seed)
        try:
            restoring.run()
        except BaseException as error:
            found: BaseException = error
            while isinstance(found, BaseExceptionGroup):
                found = found.exceptions[0]
            if isinstance(found, KeyboardInterrupt):
                raise
            is_violation = isinstance(found, Violation)
            return str(found) if is_violation else "".join(traceback.format_exception(found))
    told(restoring.histories)
    return ""
