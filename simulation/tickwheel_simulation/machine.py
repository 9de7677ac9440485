"""A machine with a broker on it, which is stopped, killed, loses its power, and is started again.

The broker is the real one, from `tickwheel_broker.daemon.serve_broker` on. Only what is around it is simulated.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import trio

from tickwheel.protocol.frames import HEADER_BYTES
from tickwheel_broker.background.queries import Queries
from tickwheel_broker.broker import Broker
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.daemon import Running, serve_broker, store_settings
from tickwheel_broker.group_commit import Committer, InPlace, SyncEnded, SyncFailed
from tickwheel_broker.net.outgoing import Outgoing
from tickwheel_broker.requests.subscriptions import SubscriptionRequests
from tickwheel_native import memory
from tickwheel_simulation.claims import Claims
from tickwheel_simulation.clock import WallClock
from tickwheel_simulation.cluster.processes import HERE
from tickwheel_simulation.disk import NO_LIMIT, Disk, Inode, Killed, SmallFile, View
from tickwheel_simulation.network import MemoryListener
from tickwheel_simulation.oracle import Violation
from tickwheel_simulation.scene import Scene
from tickwheel_simulation.tap import tap, tapped_queue, tapped_unsubscribe
from timerlog.commitlog.durability import SyncTicket
from timerlog.errors import DamagedLog, DiskFull, StoreError
from timerlog.files import mapped_file as region
from timerlog.files.disk import LOG_FOLDER, segment_path
from timerlog.files.holes import Holes
from timerlog.query.worker import Job, run_job
from timerlog.recovery import checkpoint as checkpoints
from timerlog.recovery import timeline
from timerlog.settings import StoreSettings
from timerlog.store import Store

NOWHERE = "/nonexistent/tickwheel"
"""The broker is told that its directory is here: what it asks the real file system about it must not matter."""

LOG_ID = 0x5EED


class DiskThread(InPlace):
    """Syncs take simulated time, and cover only what was written before they began."""

    def __init__(self, machine: Machine, view: View) -> None:
        self._machine = machine
        self._view = view
        self._written: dict[Inode, int] = {}

    def begin(self, ticket: SyncTicket, ended: SyncEnded) -> None:
        """See `SyncRunner`."""
        self._written = self._view.written()
        super().begin(ticket, ended)

    async def run(self, work: Callable[[], None]) -> None:
        """See `InPlace`."""
        with trio.CancelScope(shield=True), trio.move_on_after(self._machine.sync_delay_s()):
            await self._machine.died.wait()
        if self._view.is_dead:
            raise Killed
        self._view.sync_limits = self._written
        try:
            work()
        finally:
            self._view.sync_limits = None


class FullDiskMemory:
    """`tickwheel_native.memory`, but that blocks of tables are taken from the simulated disk of the machine on which
    that is done."""

    def allocate(self, fd: int, start: int, count_bytes: int) -> int:
        """See `native/memory.h`."""
        machine = _here()
        view = machine.view if machine is not None else None
        if view is None:
            return memory.allocate(fd, start, count_bytes)
        return view.allocate_table(fd, start, count_bytes)

    def __getattr__(self, name: str) -> Any:
        return getattr(memory, name)


def _here() -> Machine | None:
    machine = HERE.get()
    return machine if isinstance(machine, Machine) else None


def _boot_id() -> str:
    machine = _here()
    return machine.boot_id if machine is not None else "elsewhere"


def _is_dead_here() -> bool:
    machine = _here()
    return machine is not None and machine.is_dead


def _life_here() -> int:
    machine = _here()
    return machine.life if machine is not None else 0


async def _run_job(queries: Queries, job: Job) -> bytes:
    """`Queries._run_process`, without a process: no other program may run beside a simulation."""
    machine = _here()
    assert machine is not None
    await trio.lowlevel.checkpoint()
    with machine.log_in_files():
        frame = run_job(job)
    return frame[: HEADER_BYTES + int.from_bytes(frame[:4], "little")]


@contextmanager
def installed(scene: Scene) -> Iterator[None]:
    """Inside, tables and checkpoints ask the simulated machine that they are on instead of the real one."""
    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(region, "memory", FullDiskMemory()))
        patches.enter_context(mock.patch.object(checkpoints, "boot_id", _boot_id))
        patches.enter_context(
            mock.patch.object(Outgoing, "queue", tapped_queue(Outgoing.queue, scene, _is_dead_here))
        )
        patches.enter_context(
            mock.patch.object(
                SubscriptionRequests,
                "unsubscribe",
                tapped_unsubscribe(SubscriptionRequests.unsubscribe, scene, _life_here),
            )
        )
        patches.enter_context(mock.patch.object(Queries, "_run_process", _run_job))
        yield


class Machine:
    """Holds the disk and the derived tables; runs one broker at a time."""

    def __init__(
        self,
        *,
        scene: Scene,
        claims: Claims,
        settings: Settings,
        disk: Disk,
        clock: WallClock,
        name: str = "machine",
    ) -> None:
        self.scene = scene
        self.name = name
        self.clock = clock
        self._claims = claims
        self.settings = settings
        self.disk = disk
        self.view: View | None = None
        self.died = trio.Event()
        self.broker: Broker | None = None
        self.is_wanted = True
        self.clock_is_behind_ms = 0
        """Against that of the machine whose clock is furthest."""
        self.life = 0
        """The number of the broker that runs, or ran last: no other one has it."""
        self._rng: random.Random = scene.random(name)
        shared = Path("/dev/shm")
        self._root = Path(tempfile.mkdtemp(prefix="tickwheel-sim-", dir=shared if shared.is_dir() else None))
        self._boot = 0
        self._number = 0
        self._tables = self._next_directory()
        self._snapshot: Path | None = None
        self._store: Store | None = None
        self._running: Running | None = None
        self._listener: MemoryListener | None = None
        self._scope: trio.CancelScope | None = None
        self.state: str | None = None
        """Of the store, after it was stopped in order."""
        self._power_lost = False
        self._was_stopped = False
        """In order, the last time."""
        self._is_wanted_again = trio.Event()
        self._replayed: str | None = None

    # -- life --

    @property
    def boot_id(self) -> str:
        """It is another one after the machine has lost its power."""
        return f"boot {self._boot}"

    async def run(self) -> None:
        """Starts a broker whenever one is wanted and none runs."""
        HERE.set(self)
        while True:
            while not self.is_wanted:
                self._is_wanted_again = trio.Event()
                await self._is_wanted_again.wait()
            await self._live()
            await trio.sleep(self._rng.random() * 2)

    async def start(self) -> None:
        """Returns when a broker runs."""
        self.is_wanted = True
        self._is_wanted_again.set()
        while self._running is None:
            await trio.sleep(0.1)

    async def stop(self) -> None:
        """Stops in order; returns when it has ended, however."""
        self.is_wanted = False
        if self._running is not None:
            self.scene.note("stop")
            self._running.stop()
        while self.view is not None:
            await trio.sleep(0.1)

    def one(self) -> Machine:
        """One to which something is done."""
        return self

    def calm_down(self) -> None:
        """No more faults."""

    def kill(self, *, power: bool) -> None:
        """Ends the process now; `power`: with the whole machine."""
        if self.view is None or self.view.is_dead:
            return
        self.note("power loss" if power else "kill")
        self.scene.count("power losses" if power else "kills")
        self._power_lost |= power
        self._take_snapshot()
        self.view.is_dead = True
        self.disk.faults.kill_in = 0
        self._disconnect()
        self.died.set()
        if self._scope is not None:
            self._scope.cancel()

    async def _live(self) -> None:
        self.died = trio.Event()
        self.view = view = View(self.disk, self._killed_in_call)
        self._store, is_clean = None, False
        try:
            is_clean = await self._work(view)
        except* Killed:
            self.note("killed in a call")
        except* (StoreError, OSError, SyncFailed) as group:
            self._failed(group)
        finally:
            self._end(self._store, view, is_clean)

    async def _work(self, view: View) -> bool:
        """Until the process ends; whether it did so in order."""
        self._begin_life()
        store = self._store = self._open(view)
        with trio.CancelScope() as self._scope:
            await self._serve(store, view)
        if view.is_dead:
            return False
        self.state = store.look.state_hash()
        return True

    def _begin_life(self) -> None:
        self.scene.lives += 1
        self.life = self.scene.lives

    def note(self, what: str, **details: object) -> None:
        """For the trace."""
        self.scene.note(what, **details)

    def _open(self, view: View) -> Store:
        self._check_replay_before(view)
        self.clock.forget_step_back()
        Holes.are_read_only = True  # a write to disk space that was given back ends the process
        store = Store._open(self._tables, view, self.store_settings, self.clock.now_ms(), LOG_ID)
        self.note("started", **self._recovered(store))
        self._check_state(store)
        return store

    @staticmethod
    def _recovered(store: Store) -> dict[str, object]:
        report = store.recovery
        return {
            "trusted": report.from_checkpoint,
            "clean": report.was_clean,
            "replayed": report.replayed_bytes,
            "torn": report.torn_tail_bytes,
        }

    async def _serve(
        self,
        store: Store,
        view: View,
        committer: Committer | None = None,
        until: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Until it is stopped, or `until` returns."""
        tap(store, self.scene, self._claims, self.life, self.clock_is_behind_ms, lambda: self.is_dead)
        async with trio.open_nursery() as nursery:
            broker = Broker(
                settings=self.settings,
                store=store,
                clock=self.clock,
                runner=DiskThread(self, view),
                nursery=nursery,
                committer=committer,
            )
            self.broker = broker
            listener = self._listener = self.scene.network.listen()
            self._running = running = Running(urls=[listener.url], settings=self.settings)
            if until is not None:
                nursery.start_soon(self._stop_after, until, running)
            await serve_broker(broker, [listener], None, running, nursery)
            nursery.cancel_scope.cancel()

    @staticmethod
    async def _stop_after(until: Callable[[], Awaitable[None]], running: Running) -> None:
        await until()
        running.stop()

    def _disconnect(self) -> None:
        if self._listener is not None:
            self.scene.network.gone(self._listener)

    def _failed(self, group: BaseExceptionGroup[BaseException]) -> None:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        self.note("broker failed", error=f"{type(error).__name__}: {error}")
        if isinstance(error, DamagedLog) or not self.scene.may_fail(error, self.disk):
            raise Violation(f"the broker ended: {type(error).__name__}: {error}") from error
        if not isinstance(error, DiskFull):
            # After a failed sync it is not known what is on the disk; the machine is started anew.
            self._power_lost = True

    def _end(self, store: Store | None, view: View, is_clean: bool) -> None:
        self._running = self.broker = None
        self._scope = None
        self._disconnect()
        if store is not None:
            try:
                store.close(clean=is_clean and not view.is_dead)
            except Killed:
                is_clean = False
            except (StoreError, OSError) as error:
                is_clean = False
                if not self.scene.may_fail(error, self.disk):
                    raise Violation(f"stopping failed: {type(error).__name__}: {error}") from error
        view.is_dead = True
        self.view = None
        self._ended()
        self._settle_tables()
        if not is_clean:
            self.state = None
        self._was_stopped = is_clean
        if self._power_lost:
            self._power_lost = False
            self._lose_power()
        if is_clean:
            self.scene.count("clean stops")

    def _ended(self) -> None:
        self.scene.oracle.ended()

    def _lose_power(self) -> None:
        self._boot += 1
        self.disk.lose_power()
        with self.disk.without_faults():
            found = checkpoints.load(View(self.disk, lambda: None))
        if found is None or not found.clean:
            self._spoil_tables()

    def set_back(self, backup: Disk, since_ms: int) -> None:
        """A backup of the disk, made at a time, is restored; nothing may run."""
        assert self.view is None, "a broker has its directory for itself"
        self.disk.segments = {base: inode.copy() for base, inode in backup.segments.items()}
        self.disk.files = {timeline.NAME: SmallFile(timeline.pack_mark(since_ms), is_synced=True)}
        self.disk.sync_directory()
        self._tables, self.state, self._was_stopped = self._next_directory(), None, False
        self.note("set back")
        self.scene.count("restores")

    # -- tables --

    def _killed_in_call(self) -> None:
        self.scene.count("kills in calls")
        if self._rng.random() < 0.3:
            self._power_lost = True
            self.scene.count("power losses")
        self._take_snapshot()
        self._disconnect()
        self.died.set()

    def _take_snapshot(self) -> None:
        """The tables as they are when the process dies: what its tasks do while they end never happened."""
        self._snapshot = self._copy_tables()

    def _copy_tables(self) -> Path:
        target = self._next_directory()
        shutil.copytree(self._tables, target, dirs_exist_ok=True)
        return target

    def _settle_tables(self) -> None:
        if self._snapshot is not None:
            shutil.rmtree(self._tables)
            self._tables, self._snapshot = self._snapshot, None

    def _spoil_tables(self) -> None:
        """It is not known what of the tables the system had written."""
        for path in sorted(self._tables.rglob("*")):
            if path.is_file() and self._rng.random() < 0.5:
                path.write_bytes(self._rng.randbytes(self._rng.randint(0, 8_192)))

    @contextmanager
    def log_in_files(self) -> Iterator[None]:
        """Inside, the log lies beside the tables, for those who read a data directory."""
        (self._tables / LOG_FOLDER).mkdir()
        for base, inode in self.disk.segments.items():
            segment_path(self._tables, base).symlink_to(f"/proc/self/fd/{inode.fd}")
        try:
            yield
        finally:
            shutil.rmtree(self._tables / LOG_FOLDER)

    def _next_directory(self) -> Path:
        self._number += 1
        path = self._root / str(self._number)
        path.mkdir()
        return path

    def close(self) -> None:
        """At the end of the run."""
        self.disk.close()
        shutil.rmtree(self._root, ignore_errors=True)

    # -- checks --

    def _check_replay_before(self, view: View) -> None:
        """Before a start that trusts the tables: a start from a copy of the log alone must give the same."""
        self._replayed = None
        is_disturbed = (
            self.disk.faults.read_fails or self.disk.faults.kill_in or self.disk.free_bytes < NO_LIMIT
        )
        if is_disturbed or self._rng.random() > self.scene.replays or not self.disk.segments:
            return
        self.view = None
        self._replayed = replayed_state(self.disk, self.store_settings, self.clock.now_ms())
        if self._replayed is not None and self._was_stopped:
            self._check_rot(self._replayed)
        self.view = view
        self.scene.count("replays compared")

    def _check_rot(self, state: str) -> None:
        """A bit that changes in what was synced is found, or makes no difference. Only after a stop in order: any other
        end may have taken the mark that tells the last batch from a torn tail."""
        copy = self.disk.copy()
        inode = copy.segments[self._rng.choice(sorted(copy.segments))]
        place = self._rng.randrange(max(1, len(inode.synced)))
        inode.flip(place, 1 << self._rng.randrange(8))
        before = [one.content() for one in copy.segments.values()]
        try:
            found = replayed_state(copy, self.store_settings, self.clock.now_ms(), keep=copy)
        except StoreError:
            self.scene.count("rot refused")
            if [one.content() for one in copy.segments.values()] != before:
                raise Violation("a start that was refused has changed the log") from None
        else:
            self.scene.count("rot without effect")
            if found != state:
                raise Violation(f"a bit that changed at {place} of a segment gives another state")
        finally:
            copy.close()

    def _check_state(self, store: Store) -> None:
        expected = {"before the stop": self.state, "of a replay of the log": self._replayed}
        if not any(expected.values()):
            return
        state = store.look.state_hash()
        for what, hash_ in expected.items():
            if hash_ is not None and hash_ != state:
                raise Violation(f"the state after a start is not that {what}")
        self.state = None

    def check_at_end(self) -> str:
        """After a stop in order: the log alone gives the state, which is returned."""
        before = self.state
        assert before is not None, "it was stopped in order"
        if replayed_state(self.disk, self.store_settings, self.clock.now_ms()) != before:
            raise Violation("a replay of the whole log gives another state")
        return before

    @property
    def is_dead(self) -> bool:
        """Whether the broker was killed, or none runs: what its tasks do while they end never happened."""
        return self.view is None or self.view.is_dead

    @property
    def store_settings(self) -> StoreSettings:
        """What the broker makes of its settings for the store."""
        return store_settings(self.settings)

    def sync_delay_s(self) -> float:
        """How long the next sync takes."""
        profile = self.scene.profile
        if self._rng.random() < profile.slow_sync and not self.scene.is_calm:
            return self._rng.random() * 3
        return self._rng.random() * profile.sync_delay_s


def replayed_state(disk: Disk, settings: StoreSettings, now_ms: int, keep: Disk | None = None) -> str | None:
    """The state that a disk's log gives by itself; None for one that is being created. It is read from a copy, unless
    it is told to `keep` what it has read."""
    copy = keep or disk.copy()
    try:
        store = Store._open(None, View(copy, lambda: None), settings, now_ms, LOG_ID)
        state = None if store.recovery.is_new else store.look.state_hash()
        store.close(clean=False)
    finally:
        if keep is None:
            copy.close()
    return state
