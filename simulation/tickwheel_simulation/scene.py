"""What the parts of a simulated world share: randomness, clock, network, disk, oracle and trace; what is wrong now."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Mapping
from random import Random
from typing import Protocol

import trio

from tickwheel_simulation.clock import WallClock
from tickwheel_simulation.determinism import stream
from tickwheel_simulation.disk import NO_LIMIT, Disk, DiskFaults
from tickwheel_simulation.network import Network, NetworkFaults
from tickwheel_simulation.oracle import Given, Lease, Message, Oracle, Violation
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
RESTORED = "restored"
"""The topic of clients whose log is set back. `restores` has an oracle of its own for it."""
PUSHED = "pushed"
"""The topic of an endpoint; it has no messages."""
STOOD_STILL = "clients that stood still"
"""What is counted."""
_TRACE_LINES = 40
_NOTICED_S = 3.0
CALM = NetworkFaults(0.001, 0.0, 0.0, 0.0, 0.0, 0.0)


class Others(Protocol):
    """Clients of another kind, with topics of their own."""

    @property
    def groups(self) -> Mapping[str, tuple[str, ...]]:
        """Of each of their topics; their names are those of no other topic."""

    def leased(self, lease: Lease, attempt: int) -> None:
        """A message is given to a group; the oracle knows of it already."""

    def is_dead_letter(self, topic: str) -> bool:
        """Whether this is a topic of dead letters that these clients have."""

    def dead_letter(self, topic: str, token: str, message_id: int) -> None:
        """One is given out."""


class Scene:
    """Before there is a machine in it."""

    def __init__(self, seed: int, *, replays: float) -> None:
        """`replays`: at how many starts the state is compared with that of a replay."""
        self.seed = seed
        self.replays = replays
        self.profile = Profile.draw(stream(seed, "profile"))
        self.clock = WallClock(START_MS)
        self.network = Network(self.random("network"), self.profile.network)
        self.disks = [Disk(self.random("disk"))]
        """Of each machine."""
        self.clock_lag_ms = self.clock_lead_ms = 0
        """By how much the clock of some machine may be behind `clock`, and before it."""
        self.oracle = Oracle(GROUPS, self.profile.ack_wait_ms, MORTAL, self.profile.max_attempts)
        self.longest_lease_ms = self.profile.ack_wait_ms
        """The longest first lease that anybody was given or asked for."""
        self.others: Others | None = None
        """Who else sees what the broker gives out."""
        self.given: dict[int, tuple[bytes, list[Given] | None]] = {}
        """Frames that have not left the broker, by what identifies the object. None: of a node that was replaced."""
        self.violation: Violation | None = None
        """The first one within a broker, which may take it for an error of a request."""
        self.lives = 0
        """How often a broker was started."""
        self.is_shared = False
        """Whether several machines share the log."""
        self.counts: dict[str, int] = {}
        self.lines: deque[str] = deque(maxlen=_TRACE_LINES)
        self.is_calm = False
        self._digest = hashlib.sha256()
        self._full_until_s = -1.0
        self._went_back: list[tuple[float, int]] = []

    def random(self, purpose: str) -> Random:
        """Randomness for one purpose."""
        return stream(self.seed, purpose)

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

    # -- faults --

    def fill_disk(self, disk: Disk, free_bytes: int) -> None:
        """Other programs take all space but so much."""
        disk.free_bytes = free_bytes
        self.count("disk full")

    def empty_disks(self) -> None:
        """There is space again."""
        for disk in self.disks:
            if disk.free_bytes < NO_LIMIT:
                disk.free_bytes = NO_LIMIT
                self._full_until_s = trio.current_time()

    def was_full(self, since_s: float) -> bool:
        """Whether a disk was full at some time since."""
        return any(disk.free_bytes < NO_LIMIT for disk in self.disks) or self._full_until_s >= since_s

    @staticmethod
    def may_fail(error: BaseException, disk: Disk) -> bool:
        """Whether the broker may end because of what was done to its disk. Each fault is an excuse once."""
        if isinstance(error, DiskFull):
            return disk.free_bytes < NO_LIMIT
        counts = disk.counts
        for fault in ("sync error", "write error", "read error"):
            if counts.get(fault, 0) > disk.forgiven.get(fault, 0):
                disk.forgiven[fault] = counts[fault]
                return isinstance(error, StoreError) is isinstance(error, LogFailed)
        return False

    def clock_went_back(self, by_ms: int) -> None:
        """The clock of the machines was set."""
        self._went_back.append((trio.current_time(), by_ms))
        self.oracle.clock_went_back(by_ms, self.clock.now_ms() + by_ms)

    def is_surely_kept(self, lease_ms: int) -> bool:
        """Whether a lease that is given now is not taken for one of a clock that was ahead: a broker notices later that
        it went back, and shortens those that are longer than by how much."""
        now = trio.current_time()
        self._went_back = [one for one in self._went_back if now - one[0] < _NOTICED_S]
        by_ms = sum(by_ms for _, by_ms in self._went_back)
        return not by_ms or lease_ms < by_ms - _NOTICED_S * 1_000

    def calm_down(self) -> None:
        """No more faults: what is left must heal by itself."""
        self.is_calm = True
        self.network.faults = CALM
        self.empty_disks()
        for disk in self.disks:
            disk.faults = DiskFaults()
        self.note("calm")
