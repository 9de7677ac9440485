"""What goes wrong, and when: as the seed's profile says."""

from __future__ import annotations

import random

import trio

from tickwheel_simulation.disk import NO_LIMIT
from tickwheel_simulation.scene import STOOD_STILL
from tickwheel_simulation.world import World

_RATE_S = 10.0


class Faults:
    """One task for each kind of fault."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng: random.Random = world.random("faults")

    def start(self, nursery: trio.Nursery) -> None:
        """From now on things go wrong."""
        profile = self._world.profile
        for rate, fault in (
            (profile.kills, self._kill),
            (profile.power_losses, self._lose_power),
            (profile.kills_in_calls, self._kill_in_call),
            (profile.stops, self._stop),
            (profile.sync_errors, self._fail_sync),
            (profile.write_errors, self._fail_write),
            (profile.read_error_at_start, self._fail_read),
            (profile.disk_full, self._fill_disk),
            (profile.cuts, self._cut),
            (profile.stills, self._stand_still),
            (profile.jumps, self._jump),
        ):
            if rate:
                nursery.start_soon(self._again_and_again, rate, fault)

        cluster = self._world.cluster
        if cluster is not None:
            for rate, fault in (
                (cluster.profile.leader_changes, self._change_leader),
                (cluster.profile.line_cuts, self._cut_line),
                (cluster.profile.stops, self._stop_process),
            ):
                if rate:
                    nursery.start_soon(self._again_and_again, rate, fault)

    async def _change_leader(self) -> None:
        assert self._world.cluster is not None
        self._world.note("leader change")
        self._world.cluster.partition.change_leader(self._rng.random() * 3)

    async def _cut_line(self) -> None:
        assert self._world.cluster is not None
        member = self._world.cluster.one()
        assert member.line is not None
        self._world.cluster.partition.count("line cuts")
        member.note("line cut")
        member.line.is_cut = True
        try:
            await trio.sleep(self._rng.random() * 8)
        finally:
            member.line.is_cut = False

    async def _stop_process(self) -> None:
        """It is stopped for seconds, and then goes on as if nothing had happened."""
        assert self._world.cluster is not None
        cluster, member = self._world.cluster, self._world.cluster.one()
        cluster.partition.count("stopped processes")
        member.note("SIGSTOP")
        cluster.stops.stop(member)
        try:
            await trio.sleep(self._rng.random() * 8)
        finally:
            member.note("SIGCONT")
            cluster.stops.go_on(member)

    async def _again_and_again(self, rate: float, fault: object) -> None:
        while True:
            await trio.sleep(self._rng.expovariate(rate / _RATE_S))
            assert callable(fault)
            await fault()

    async def _kill(self) -> None:
        self._world.machine.one().kill(power=False)

    async def _lose_power(self) -> None:
        self._world.machine.one().kill(power=True)

    async def _kill_in_call(self) -> None:
        """In the middle of whatever the broker does some calls to the disk later, also while it starts."""
        self._world.machine.one().disk.faults.kill_in = self._rng.choice((1, 2, 3, 7, 30))

    async def _stop(self) -> None:
        machine = self._world.machine.one()
        await machine.stop()
        await trio.sleep(self._rng.random() * 5)
        await machine.start()

    async def _fail_sync(self) -> None:
        self._world.machine.one().disk.faults.sync_fails = True

    async def _fail_write(self) -> None:
        self._world.machine.one().disk.faults.write_fails = True

    async def _fail_read(self) -> None:
        self._world.machine.one().disk.faults.read_fails = True

    async def _fill_disk(self) -> None:
        disk = self._world.machine.one().disk
        if disk.free_bytes < NO_LIMIT:
            return
        self._world.note("disk full")
        self._world.fill_disk(disk, self._rng.choice((0, 4_096, 1 << 18)))
        await trio.sleep(self._rng.random() * 40)
        self._world.empty_disks()
        self._world.note("disk free")

    async def _cut(self) -> None:
        if self._world.network.cut_one():
            self._world.trace("cut")

    async def _stand_still(self) -> None:
        connection = self._world.network.stop_one()
        if connection is None:
            return
        self._world.note("stands still", peer=connection.peer)
        self._world.count(STOOD_STILL)
        try:
            await trio.sleep(self._rng.random() * 40)
        finally:
            connection.go_on()

    async def _jump(self) -> None:
        largest_ms = self._world.profile.largest_jump_ms
        by_ms = self._rng.randint(-largest_ms, largest_ms)
        self._world.note("clock", by_ms=by_ms)
        self._world.count("clock jumps")
        self._world.clock.jump(by_ms)
        if by_ms < 0:
            self._world.clock_went_back(-by_ms)
