"""One seed from beginning to end: days on which everything happens, nights in which the machine is off, and at last
a calm in which everything must heal."""

from __future__ import annotations

import traceback
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from importlib import import_module
from typing import Any, Final

import trio
from trio.testing import MockClock

from tickwheel.client.admin.prepared import CHECKS_GROUP
from tickwheel_simulation.consumers import all_consumers
from tickwheel_simulation.determinism import repeatable
from tickwheel_simulation.faults import Faults
from tickwheel_simulation.oracle import (
    Violation,
    check_events,
    check_figures,
    check_history,
    figure_bounds,
    told_of,
)
from tickwheel_simulation.producers import Administrator, Producer
from tickwheel_simulation.scene import MORTAL, ORDERED, PLAIN, PUSHED, UNDERTAKERS
from tickwheel_simulation.world import World

_PATIENCE_S: Final = 300.0

HISTORIES = 6
"""Of so many messages it is looked at what the log says of them."""
HEAL_S = 3_600.0
"""So much simulated time all that is due may take to be delivered and acked, once nothing goes wrong any more."""

PATIENT = timedelta(seconds=30)
"""How long consumers have at last: with a lease that is too short for the work they would never be done."""

DAY_MS = 86_400_000


@dataclass
class Report:
    """What a run found, and what it went through."""

    seed: int
    hours: float
    violation: str = ""
    profile: dict[str, object] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    trace_tail: list[str] = field(default_factory=list)
    trace_hash: str = ""
    state_hash: str = ""
    simulated_s: float = 0.0
    is_cluster: bool = False
    has_gateway: bool = False

    @property
    def command(self) -> str:
        """What repeats it."""
        options = " --cluster" if self.is_cluster else ""
        options += " --rocketmq" if self.has_gateway else ""
        return f"tickwheel simulate --seed {self.seed} --hours {self.hours:g}{options}"


def run_seed(
    seed: int,
    hours: float,
    *,
    replays: float = 0.3,
    is_cluster: bool = False,
    has_endpoint: bool = False,
    has_gateway: bool = False,
) -> Report:
    """Runs one seed; never raises what the seed causes. `is_cluster`: on several machines that share a log;
    `has_endpoint`: one more task administers an endpoint; `has_gateway`: most clients are those of RocketMQ. With
    either, everything else happens at other times than without."""
    report = Report(seed, hours, is_cluster=is_cluster, has_gateway=has_gateway)
    if has_gateway:  # before randomness comes from the seed: modules take some when they are loaded
        import_module("tickwheel_simulation.rocketmq.site")
    with repeatable(seed):
        world = World(seed, replays=replays, is_cluster=is_cluster, has_gateway=has_gateway)
        report.profile = world.profile.described()
        if world.cluster is not None:
            report.profile["cluster"] = world.cluster.described()
        if world.site is not None:
            report.profile["rocketmq"] = world.site.profile.described()
        try:
            with world.installed():
                clock = MockClock(autojump_threshold=0)
                trio.run(
                    _Run(world, hours, report, has_endpoint=has_endpoint).main,
                    clock=clock,
                    instruments=[world.cancels],
                )
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            report.violation = _described(world.violation or error)
        else:
            report.violation = "" if world.violation is None else _described(world.violation)
    report.counts = _totals(world)
    report.trace_tail = list(world.lines)
    report.trace_hash = world.trace_hash
    return report


def _totals(world: World) -> dict[str, int]:
    disk: Counter[str] = Counter()
    for one in world.disks:
        disk.update({f"disk: {name}": count for name, count in one.counts.items()})
    if world.cluster is not None:
        disk.update({f"partition: {name}": count for name, count in world.cluster.partition.counts.items()})
    others = {
        "leases": world.oracle.leases,
        "starts": world.lives,
        "connections": world.network.opened,
        "cuts": world.network.cuts,
        "lost answers": sum(world.network.lost_answers.values()),
    }
    return dict(sorted({**world.counts, **disk, **others}.items()))


def _described(error: BaseException) -> str:
    """A broken promise in a line; a defect with where it happened."""
    found: list[BaseException] = []

    def collect(one: BaseException) -> None:
        if isinstance(one, BaseExceptionGroup):
            for inner in one.exceptions:
                collect(inner)
        else:
            found.append(one)

    collect(error)
    for one in found:
        if isinstance(one, Violation):
            return str(one)
    first = found[0]
    return "defect: " + "".join(traceback.format_exception(first)).strip()


class _Run:
    def __init__(self, world: World, hours: float, report: Report, *, has_endpoint: bool) -> None:
        self._world = world
        self._administrator = Administrator(world) if has_endpoint else None
        self._hours = hours
        self._report = report
        self._rng = world.random("run")
        self._producers = [Producer(world, number) for number in range(world.profile.producers)]

    async def main(self) -> None:
        """All of it."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._world.machine.run)
            if self._world.site is not None:
                nursery.start_soon(self._world.site.run)
            await self._world.machine.start()
            await self._prepare_topics()
            days = self._world.profile.nights + 1
            for day in range(days):
                await self._day(self._hours * 3_600 / days)
                if day < days - 1:
                    await self._night(self._rng.randint(0, self._world.profile.night_ms))
            self._world.calm_down()
            await self._heal()
            nursery.cancel_scope.cancel()
        self._report.simulated_s = trio.current_time()

    async def _prepare_topics(self) -> None:
        profile = self._world.profile
        async with self._world.patient_client(_PATIENCE_S) as client:
            settings: dict[str, Any] = {"max_attempts": profile.max_attempts}
            await client.create_topic(MORTAL, **settings)
            if self._administrator is not None:
                await client.create_topic(PUSHED)
            named = [
                (topic, group) for topic, groups in self._world.oracle.groups.items() for group in groups
            ]
            for topic, group in [*named, (f"{MORTAL}.dead", UNDERTAKERS)]:
                async with client.subscribe(topic, group):
                    pass

    async def _day(self, length_s: float) -> None:
        world = self._world
        world.note("day")
        await world.machine.start()
        with trio.move_on_after(length_s):
            async with trio.open_nursery() as nursery:
                for producer in self._producers:
                    nursery.start_soon(producer.run)
                for consumer in all_consumers(world, world.profile.consumers_a_group):
                    nursery.start_soon(consumer.run)
                if self._administrator is not None:
                    nursery.start_soon(self._administrator.run)
                if world.site is not None:
                    nursery.start_soon(world.site.day)
                Faults(world).start(nursery)
        world.oracle.nobody_waits()
        world.empty_disks()

    async def _night(self, length_ms: int) -> None:
        """The machine is off. It loses its power, or was stopped in order."""
        world = self._world
        world.note("night", length_ms=length_ms)
        if world.site is not None:
            await world.site.night()
        if self._rng.random() < 0.5:
            world.machine.is_wanted = False
            world.machine.kill(power=self._rng.random() < 0.5)
        await world.machine.stop()
        await trio.sleep(length_ms / 1_000)

    async def _heal(self) -> None:
        world, oracle = self._world, self._world.oracle
        await world.machine.start()
        await self._decide()
        last_ms = max(
            (max(message.due_ms, message.latest_ms) for message in oracle.messages.values()), default=0
        )
        await self._night(max(0, last_ms - world.clock.now_ms()) + 2 * DAY_MS)
        await world.machine.start()
        async with trio.open_nursery() as nursery:
            for consumer in all_consumers(world, 1):
                nursery.start_soon(consumer.run)
            if world.site is not None:
                nursery.start_soon(world.site.heal)
            await self._wait_until_done()
            await self._check_readers()
            nursery.cancel_scope.cancel()
        oracle.check_together()
        if world.site is not None:
            world.site.check_at_end()
            await world.site.night()
        await self._check_counts()
        if self._administrator is not None:
            async with self._world.patient_client(_PATIENCE_S) as client:
                await self._administrator.finish(client)
        await self._look_back()
        await world.machine.stop()
        self._report.state_hash = world.machine.check_at_end()

    async def _look_back(self) -> None:
        """The log tells of some messages what happened to them, each by itself and in the order of all."""
        world = self._world
        rng, known = world.random("history"), told_of(world.oracle)
        async with self._world.patient_client(_PATIENCE_S) as client:
            tail = await client.events("earliest", limit=10_000)
            for message in rng.sample(known, min(HISTORIES, len(known))):
                history = await client.history(id=message.id)
                world.count("histories" if history is None or history.is_complete else "purged histories")
                check_history(message, history)
                if history is not None and not tail.more and not tail.has_gap:
                    world.count("histories among all events")
                    check_events(message, history, tail)

    async def _decide(self) -> None:
        """What is prepared is decided upon, in the end."""
        async with self._world.patient_client(_PATIENCE_S) as client:
            for producer in self._producers:
                while producer.undecided:
                    await producer.decide(client, commit=True)
            await client.resume_topic(PLAIN)
            for topic in (PLAIN, ORDERED, MORTAL):
                await client.set_topic(topic, ack_wait=PATIENT, min_backoff=PATIENT, max_backoff=PATIENT)

    async def _wait_until_done(self) -> None:
        oracle = self._world.oracle
        with trio.move_on_after(HEAL_S):
            while not self._is_all_done() or not await self._is_quiet():
                await trio.sleep(5)
            return
        waiting = [f"{one.token} of {one.topic}" for one in oracle.open_messages()]
        if self._world.site is not None:
            self._world.site.promises.check_decided()
        raise Violation(
            f"not delivered and acked in {HEAL_S:.0f} s without faults: {waiting[:5]} ({len(waiting)})"
        )

    def _is_all_done(self) -> bool:
        site = self._world.site
        return not self._world.oracle.open_messages() and (site is None or site.is_done)

    async def _check_readers(self) -> None:
        """Each group has one reader now: whatever else is subscribed was left behind by a call that was cancelled."""
        groups = [(one.topic, one.group) for one in all_consumers(self._world, 1)]
        with trio.move_on_after(PATIENT.total_seconds()):
            while True:
                async with self._world.patient_client(_PATIENCE_S) as client:
                    topics = await client.topics()
                found = {(one.name, group.name): group.subscribers for one in topics for group in one.groups}
                wrong = {name: found.get(name, 0) for name in groups if found.get(name) != 1}
                if not wrong:
                    return
                await trio.sleep(1)
        raise Violation(f"subscriptions without a reader, or readers without one: {wrong}")

    async def _is_quiet(self) -> bool:
        """Whether no group has anything to do. A prepared message whose answer was lost waits without end, unless its
        producer is asked about it."""
        async with self._world.patient_client(_PATIENCE_S) as client:
            topics = await client.topics()
        asked = () if self._world.site is None else self._world.site.prepared
        groups = [
            group
            for topic in topics
            for group in topic.groups
            if group.name != CHECKS_GROUP or topic.name in asked
        ]
        return not any(group.backlog or group.leased for group in groups)

    async def _check_counts(self) -> None:
        """Now that all is known, every figure has one right value."""
        oracle = self._world.oracle
        oracle.settle()
        before = figure_bounds(oracle)
        async with self._world.patient_client(_PATIENCE_S) as client:
            check_figures(oracle, await client.topics(), before)
