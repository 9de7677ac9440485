"""Whether the program at the other end of a connection runs.

One that stands still (a paused machine, SIGSTOP, a debugger) keeps its connection: its kernel takes what arrives. So
who lets a lease end is given nothing more until it is heard again, and is asked for a sign of life; one that runs
answers at once. While it holds messages it is asked before, when a part of a lease has passed without a word of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import trio

from tickwheel.protocol.frames import FrameType, encode_frame

ASKED_AT: Final = 0.25
"""After so much of `ack_wait` without a word, who holds messages or waits for some is asked for a sign."""
_STILL_AT: Final = 0.5
"""After so much of it, who does not answer stands still."""
_AT_ONCE_S: Final = 0.1
"""Who answers so soon ran all the time."""
_STILL_AFTER_S: Final = 0.5
"""But not sooner: who runs on a busy machine needs time to answer."""
_PROBE: Final = encode_frame(FrameType.PROBE, 0)


class Pulse:
    """What is known of one connection. It is heard whenever bytes come, of whatever kind."""

    def __init__(self, put: Callable[[bytes], None]) -> None:
        """`put` sends a frame."""
        self._put = put
        self.silent_since_s: float | None = None
        """Since when nothing came; None: something is being taken just now."""
        self._expected_since_s = -math.inf
        """Since when it should say something."""
        self._lost_s = math.inf
        self._asked_s = -math.inf
        self.answers_probes = False
        """Its client knows PROBE."""
        self.is_missed = False
        """It is given nothing until it is heard again."""
        self.is_awaited = False
        """It matters when it is heard again."""
        self.receives = 0
        """How many times bytes came."""

    def _silence_s(self) -> float:
        if self.silent_since_s is None:
            return 0.0
        return min(trio.current_time(), self._lost_s) - max(self.silent_since_s, self._expected_since_s)

    def expect(self) -> None:
        """It has messages, or waits for some, and had none: who was idle need not have said anything."""
        if self.silent_since_s is not None and self._expected_since_s <= self.silent_since_s:
            self._expected_since_s = trio.current_time()

    def stands_still(self, ack_wait_s: float) -> bool:
        """Whether it should have answered by now, if it ran. Of a client that cannot be asked nothing is known."""
        return self.answers_probes and self._silence_s() >= max(_STILL_AT * ack_wait_s, _STILL_AFTER_S)

    def look(self, ack_wait_s: float) -> None:
        """It holds messages, or waits for some."""
        if self._silence_s() >= ASKED_AT * ack_wait_s:
            self._ask()
            self.is_missed = self.is_missed or self.stands_still(ack_wait_s)

    def lapsed(self) -> None:
        """It has let a lease end. A client that cannot be asked may have nothing to say, and is given messages."""
        if self.silent_since_s is not None and self.answers_probes:
            self.is_missed = True
            self._ask()

    def _ask(self) -> None:
        if not self.is_awaited and self.answers_probes:
            self._put(_PROBE)
            self._asked_s = trio.current_time()
        self.is_awaited = True

    def heard(self) -> bool:
        """Something came. Whether it was missed, and is to be given messages again: now, or if it stood still, soon."""
        self.is_awaited = False
        if self.is_missed and trio.current_time() < self._asked_s + _AT_ONCE_S:
            self.is_missed = False
            return True
        return self.is_missed

    def lost(self) -> None:
        """The connection is gone: its silence from now on says nothing."""
        self._lost_s = trio.current_time()
        self.is_awaited = True
