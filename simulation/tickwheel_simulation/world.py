"""What all tasks of a run share: the seed's randomness, the clock, the network, the machine, the oracle, the trace."""

from __future__ import annotations

import hashlib
from collections import deque
from random import Random
from typing import Any

import trio

from tickwheel import Client
from tickwheel_broker.config.settings import Settings
from tickwheel_simulation.cancelling import Cancels
from tickwheel_simulation.claims import Claims
from tickwheel_simulation.clock import WallClock
from tickwheel_simulation.determinism import stream
from tickwheel_simulation.disk import NO_LIMIT
from tickwheel_simulation.machine import NOWHERE, Machine
from tickwheel_simulation.network import Network, NetworkFaults
from tickwheel_simulation.oracle import Given, Message, Oracle
from tickwheel_simulation.profile import Profile
from timerlog.errors import DiskFull, LogFailed, StoreError

START_MS = 1_800_000_000_000
PLAIN, ORDERED, MORTAL, SCRATCH = "plain", "ordered", "mortal", "scratch"
GROUPS: dict[str, tuple[str, ...]] = {
    PLAIN: ("red", "blue"),
    ORDERED: ("red",),
    MORTAL: ("red",),
    SCRATCH: (),
}
UNDERTAKERS = "undertakers"
_TRACE_LINES = 40
_CALM = NetworkFaults(0.001, 0.0, 0.0, 0.0, 0.0, 0.0)


class World:
    """One run."""

    def __init__(self, seed: int, *, replays: float) -> None:
        """`replays`: at how many starts the state is compared with that of a replay."""
        self.seed = seed
        self.replays = replays
        self.profile = Profile.draw(stream(seed, "profile"))
        self.clock = WallClock(START_MS)
        self.cancels = Cancels()
        self.network = Network(self.random("network"), self.profile.network)
        self.oracle = Oracle(GROUPS, self.profile.ack_wait_ms, MORTAL, self.profile.max_attempts)
        self.given: dict[int, tuple[bytes, list[Given]]] = {}
        """Frames that have not left the broker, by what identifies the object."""
        self.claims = Claims(self)
        self.counts: dict[str, int] = {}
        self.lines: deque[str] = deque(maxlen=_TRACE_LINES)
        self.is_calm = False
        self._digest = hashlib.sha256()
        self._last_token = 0
        self._forgiven: dict[str, int] = {}
        self._full_until_s = -1.0
        self.machine = Machine(self, self._settings())

    def random(self, purpose: str) -> Random:
        """Randomness for one purpose."""
        return stream(self.seed, purpose)

    def _settings(self) -> Settings:
        profile = self.profile
        return Settings(
            data_dir=NOWHERE,
            segment_bytes=5 << 20,
            max_frame_bytes=128 << 10,
            max_body_bytes=64 << 10,
            disk_reserve_bytes=1 << 20,
            max_topics=profile.max_topics,
            max_groups=32,
            ack_wait_ms=profile.ack_wait_ms,
            max_backoff_ms=profile.max_backoff_ms,
            purge_after_ms=profile.purge_after_ms,
            drain_timeout_ms=2_000,
        )

    # -- what happens --

    def trace(self, *what: object) -> None:
        """One line of what happens; the hash of all lines is the same whenever the seed is."""
        line = f"{trio.current_time():.6f} {' '.join(map(str, what))}"
        self._digest.update(line.encode() + b"\n")
        self.lines.append(line)

    def note(self, what: str, **details: object) -> None:
        """A line with names."""
        self.trace(what, *(f"{name}={value}" for name, value in details.items()))

    def count(self, what: str, by: int = 1) -> None:
        """For the totals."""
        self.counts[what] = self.counts.get(what, 0) + by

    @property
    def trace_hash(self) -> str:
        """Of everything until now."""
        return self._digest.hexdigest()

    # -- messages --

    def message(self, topic: str, *, size_bytes: int = 0, **fields: Any) -> Message:
        """A new one, which somebody is about to send."""
        self._last_token += 1
        token = f"t{self._last_token}"
        self.count("messages")
        return self.oracle.sending(Message(token=token, topic=topic, size_bytes=size_bytes, **fields))

    @staticmethod
    def body_of(message: Message) -> bytes:
        """Its token, then filling that follows from it."""
        head = f"{message.token} ".encode()
        return head + head * (message.size_bytes // len(head))

    @staticmethod
    def token_of(body: bytes) -> str:
        """Which message a body belongs to, if it is whole."""
        head, _, rest = body.partition(b" ")
        whole = (head + b" ") * (len(rest) // (len(head) + 1))
        return head.decode(errors="replace") if rest == whole else "a damaged body"

    def client(self, rng: Random) -> Client:
        """A client that reaches the broker through the simulated network."""
        return Client(
            "tickwheel://simulated:1",
            name="simulated",
            dial=self.network.dial,
            timeout=rng.choice((2.0, 10.0, 30.0)),
            connect_timeout=rng.choice((1.0, 20.0)),
            keepalive=rng.choice((4.0, 20.0)),
        )

    # -- faults --

    def fill_disk(self, free_bytes: int) -> None:
        """Somebody else takes all space but so much."""
        self.machine.disk.free_bytes = free_bytes
        self.count("disk full")

    def empty_disk(self) -> None:
        """There is space again."""
        if self.machine.disk.free_bytes < NO_LIMIT:
            self.machine.disk.free_bytes = NO_LIMIT
            self._full_until_s = trio.current_time()

    def was_full(self, since_s: float) -> bool:
        """Whether the disk was full at some time since."""
        return self.machine.disk.free_bytes < NO_LIMIT or self._full_until_s >= since_s

    def may_fail(self, error: BaseException) -> bool:
        """Whether the broker may end because of what was done to its disk. Each fault is an excuse once."""
        if isinstance(error, DiskFull):
            return self.machine.disk.free_bytes < NO_LIMIT
        counts = self.machine.disk.counts
        for fault in ("sync error", "write error", "read error"):
            if counts.get(fault, 0) > self._forgiven.get(fault, 0):
                self._forgiven[fault] = counts[fault]
                return isinstance(error, StoreError) is isinstance(error, LogFailed)
        return False

    def calm_down(self) -> None:
        """No more faults: what is left must heal by itself."""
        self.is_calm = True
        self.network.faults = _CALM
        self.empty_disk()
        faults = self.machine.disk.faults
        faults.kill_in, faults.write_fails, faults.sync_fails, faults.read_fails = 0, False, False, False
        self.note("calm")
