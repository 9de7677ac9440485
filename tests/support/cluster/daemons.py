"""Nodes of a cluster as daemons in processes of their own, and what happens to them and to their Kafka.

Each has ports that it keeps, so that clients find it again. One of them has a disk of its own that can be full, another
one a clock of its own that can be set.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import trio

from tests.support.clients.crash_load import Ledger
from tests.support.clients.http_client import get
from tests.support.clients.shifted_clock import ShiftedClock
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tests.support.stores.small_disk import fill
from tickwheel_bench.cluster.kafka import Kafka
from tickwheel_bench.processes import free_port

T = TypeVar("T")

SESSION_S: Final = 2
SKEW_MS: Final = 200
"""So far the clock of a node that may own the log differs from the others."""

PROMISES: Final = 100
"""So much more the clients must have been promised after each harm."""

_HOUR_MS: Final = 3_600_000
_LOOK_S: Final = 0.05
_AT_ONCE_S: Final = 0.001
_JUST_BEFORE_S: Final = 0.2
"""So long answers may be on their way that were given before an owner was killed."""

INIT: Final = (
    *("--segment-bytes", "28MiB"),
    *("--ack-wait", "2s", "--min-backoff", "100ms", "--max-backoff", "2s"),
)
"""What `tickwheel cluster init` is told."""


class NodeDaemon(Daemon):
    """One node."""

    modules = (
        *Daemon.modules,
        "tickwheel_broker.node.process",
        "tickwheel_broker.sharedlog.kafka.group",
        "tickwheel_broker.sharedlog.kafka.log",
    )

    def __init__(
        self,
        number: int,
        cluster_url: str,
        directory: Path,
        program: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        self.number = number
        self._http_port = free_port()
        super().__init__(
            directory,
            program=program,
            log_level="info",
            cluster=cluster_url,
            node=number,
            cluster_timeout=f"{SESSION_S}s",
            drain_timeout="100ms",
            listen_port=free_port(),
            http_listen=True,
            http_port=self._http_port,
            **settings,
        )
        self.is_stopped = False
        self.start()

    def launch(self) -> None:
        """See `Daemon`. What it logged before is kept: it says why a test failed."""
        if self._log_path.exists():
            with self._log_path.open("rb") as log, self._log_path.with_suffix(".before").open("ab") as before:
                shutil.copyfileobj(log, before)
        super().launch()

    def sleep(self) -> None:
        """It does not run, until `wake`."""
        self.is_stopped = True
        self.process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        """It goes on as if nothing had been."""
        self.process.send_signal(signal.SIGCONT)
        self.is_stopped = False

    @property
    def is_running(self) -> bool:
        """Whether there is a process that would answer."""
        return not self.is_stopped and self.process.poll() is None

    @property
    def http(self) -> str:
        """Where it is looked at."""
        return f"http://127.0.0.1:{self._http_port}"

    def standing(self) -> dict[str, Any]:
        """What /readyz says. Raises OSError."""
        found: dict[str, Any] = json.loads(get(f"{self.http}/readyz").text)
        return found

    def is_ready(self) -> bool:
        """Whether it serves."""
        return self.is_running and bool(self.standing()["ready"])

    def drain(self, seconds: float) -> None:
        """It owns nothing when this returns, for so long."""
        assert get(f"{self.http}/drain?seconds={seconds}", method="POST").status == 200

    def says_that_its_disk_is_full(self) -> bool:
        """In its log, since it was started."""
        return any(
            "disk is full" in event["event"] or "disk of this" in event["event"] for event in self.events()
        )

    def end(self) -> None:
        """At the end of a test."""
        if self.process.poll() is None:
            self.wake()
            self.kill()


class ClusterDaemons:
    """All nodes, and each kind of harm. Every method returns when the cluster is whole again."""

    def __init__(
        self,
        nodes: Sequence[NodeDaemon],
        kafka: Kafka,
        ledger: Ledger,
        rng: random.Random,
        clock: ShiftedClock,
        disk: Path,
    ) -> None:
        """`clock`: of the last node. `disk`: where the first one's directory is."""
        self._nodes, self._kafka, self._ledger, self._rng = nodes, kafka, ledger, rng
        self._clock, self._disk = clock, disk
        self.kinds: dict[str, Callable[[], Awaitable[None]]] = {
            "owner": self._kill_owner,
            "follower": self._kill_follower,
            "Kafka": self._kill_kafka,
            "owner and Kafka": self._kill_owner_and_kafka,
            "zombie": self._put_owner_to_sleep,
            "full disk": self._fill_disk,
            "anew": self._make_anew,
            "rolling restart": self._restart_all,
            "clock": self._set_clock,
        }
        self.gaps_s: dict[str, list[float]] = {kind: [] for kind in self.kinds}
        """From a harm to the first answer after it."""

    async def harm(self, kind: str) -> None:
        """One of `kinds`, under load."""
        self._kind = kind
        await trio.sleep(self._rng.random() * 0.3)
        self._struck_s = trio.current_time()
        try:
            with trio.fail_after(3 * PATIENCE_S):
                await self.kinds[kind]()
                await self.wait_joined()
                await self._goes_on()
        except trio.TooSlowError:
            print(f"{kind}: the cluster is not whole again:", *map(_said, self._nodes), sep="\n")
            raise

    # -- the kinds --

    async def _kill_owner(self) -> None:
        owner = await self._owner()
        self._struck_s = trio.current_time()
        owner.kill()
        await self._first_answer()
        await self._start(owner)

    async def _kill_follower(self) -> None:
        follower = await self._follower()
        self._struck_s = trio.current_time()
        follower.kill()
        await self._first_answer()
        await self._start(follower)

    async def _kill_kafka(self) -> None:
        self._struck_s = trio.current_time()
        self._kafka.kill()
        await trio.to_thread.run_sync(self._kafka.start)
        await self._first_answer()

    async def _kill_owner_and_kafka(self) -> None:
        owner = await self._owner()
        self._struck_s = trio.current_time()
        owner.kill()
        self._kafka.kill()
        await trio.to_thread.run_sync(self._kafka.start)
        await self._first_answer()
        await self._start(owner)

    async def _put_owner_to_sleep(self) -> None:
        zombie = await self._owner()
        self._struck_s = trio.current_time()
        zombie.sleep()
        await self._first_answer()
        await self._goes_on()
        zombie.wake()
        await self._wait(lambda: self._says(zombie, "role", "follower"))

    async def _fill_disk(self) -> None:
        """Of a follower: an owner would refuse sends."""
        node = self._nodes[0]
        await trio.to_thread.run_sync(node.drain, PATIENCE_S)
        ballast = self._disk / "ballast"

        async def is_full() -> bool:
            await trio.to_thread.run_sync(fill, ballast)  # also what it has just given back
            return node.says_that_its_disk_is_full()

        await self._wait(is_full)
        assert node.process.poll() is None
        self._struck_s = trio.current_time()
        await self._first_answer()
        ballast.unlink()
        await trio.to_thread.run_sync(node.drain, _AT_ONCE_S)

    async def _make_anew(self) -> None:
        follower = await self._follower()
        self._struck_s = trio.current_time()
        follower.kill()
        shutil.rmtree(follower.directory)
        await self._start(follower)
        await self._first_answer()

    async def _restart_all(self) -> None:
        for node in self._nodes:
            self._struck_s = trio.current_time()
            assert await trio.to_thread.run_sync(node.stop) == 0
            await self._first_answer()
            await self._start(node)
            await self.wait_joined()

    async def _set_clock(self) -> None:
        """Far from the others, it is not chosen; a little, it may be."""
        node = self._nodes[-1]
        await trio.to_thread.run_sync(node.drain, PATIENCE_S)  # the others go by the owner's clock
        await self._owner()
        self._clock.set_by(self._rng.choice([-_HOUR_MS, _HOUR_MS]))
        await self._wait(lambda: self._says(node, "is_off_time", True))
        await trio.to_thread.run_sync(node.drain, _AT_ONCE_S)
        await self._wait(lambda: self._says(node, "is_drained", False))
        assert await self._says(node, "has_joined", False)
        owner = await self._owner()
        self._struck_s = trio.current_time()
        owner.kill()
        await self._first_answer()
        assert not await self._says(node, "role", "owner")
        await self._start(owner)
        self._clock.set_by(self._rng.randint(-SKEW_MS, SKEW_MS))

    # -- what they are made of --

    async def _owner(self) -> NodeDaemon:
        return await self._wait(lambda: self._with_role("owner"))

    async def _follower(self) -> NodeDaemon:
        await self._owner()
        return await self._wait(lambda: self._with_role("follower"))

    async def _with_role(self, role: str) -> NodeDaemon | None:
        for node in self._rng.sample(self._nodes, len(self._nodes)):
            if await self._says(node, "role", role):
                return node
        return None

    async def wait_joined(self) -> None:
        """All follow and may be chosen."""
        for node in self._nodes:
            await self._wait(lambda node=node: self._says(node, "has_joined", True))

    async def _says(self, node: NodeDaemon, name: str, value: object) -> bool:
        if not node.is_running:
            return False
        try:
            return bool((await trio.to_thread.run_sync(node.standing)).get(name) == value)
        except OSError:
            return False

    async def _wait(self, find: Callable[[], Awaitable[T | None]]) -> T:
        with trio.fail_after(PATIENCE_S):
            while not (found := await find()):
                await trio.sleep(_LOOK_S)
            return found

    async def _start(self, node: NodeDaemon) -> None:
        await trio.to_thread.run_sync(node.start)

    async def _first_answer(self) -> None:
        await trio.sleep(_JUST_BEFORE_S)
        await self._goes_on(1)
        self.gaps_s[self._kind].append(trio.current_time() - self._struck_s)

    async def _goes_on(self, promises: int = PROMISES) -> None:
        wanted = self._ledger.promises + promises
        with trio.fail_after(PATIENCE_S):
            while self._ledger.promises < wanted:
                await trio.sleep(0.005)


def _said(node: NodeDaemon) -> object:
    if not node.is_running:
        return f"node {node.number} does not run"
    try:
        return node.standing()
    except OSError as error:
        return f"node {node.number}: {error}"
