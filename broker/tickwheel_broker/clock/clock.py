"""The clock seam: what time it is, and sleeping until a millisecond of the wall clock.

`SystemClock` is the real one. `ManualClock` stands still until a test advances it, also from another thread.
`TrioClock` follows `trio.current_time()`, so that a simulation under trio's MockClock controls it.
"""

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

import trio

from tickwheel.protocol.errors import BadTime, NaiveDatetime, TickwheelError
from tickwheel.protocol.limits import MAX_TIME_MS
from tickwheel_broker.bell import Bell
from tickwheel_broker.clock import timerfd

_NS_PER_MS = 1_000_000
_MS_PER_S = 1_000


class Alarm(Protocol):
    """One task's alarm clock."""

    async def sleep_until(self, due_ms: int | None) -> None:
        """Return at `due_ms`, or when rung, or when the wall clock was set; None sleeps until rung or set."""

    def ring(self) -> None:
        """Wake the sleeper at once, or spare it the next sleep. In the trio thread only."""

    def close(self) -> None:
        """Free what the alarm holds."""


class Clock(Protocol):
    """What the broker knows of time."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, UTC."""

    def alarm(self) -> Alarm:
        """A new alarm on this clock; call it inside trio."""

    def take_step_back_ms(self) -> int:
        """By how much the clock was set back since the last call; 0 normally."""


class SystemClock:
    """The machine's wall clock."""

    def __init__(self) -> None:
        self._offset_ms = _wall_minus_monotonic_ms()

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, rounded down: nothing is due before its millisecond began."""
        return time.time_ns() // _NS_PER_MS

    def alarm(self) -> Alarm:
        """A precise alarm where the system has timerfd; elsewhere one on trio's timers, up to 1 ms late."""
        return TimerFdAlarm() if timerfd.AVAILABLE else SleepAlarm(self)

    def take_step_back_ms(self) -> int:
        """Compare with the monotonic clock, which cannot be set. Slow drift is forgotten at each call."""
        offset_ms = _wall_minus_monotonic_ms()
        back_ms = max(0, self._offset_ms - offset_ms)
        self._offset_ms = offset_ms
        return back_ms


def _wall_minus_monotonic_ms() -> int:
    return (time.time_ns() - time.monotonic_ns()) // _NS_PER_MS


class TimerFdAlarm:
    """An alarm on a Linux timerfd: some ten microseconds late, and awake when the clock is set."""

    def __init__(self) -> None:
        self._timer = timerfd.TimerFd()
        self._rung = False
        self._asleep = False

    async def sleep_until(self, due_ms: int | None) -> None:
        """See `Alarm`."""
        is_past = due_ms is not None and due_ms * _NS_PER_MS <= time.time_ns()
        if self._rung or is_past or not self._timer.arm(due_ms):
            await trio.lowlevel.checkpoint()
        else:
            self._asleep = True
            try:
                await trio.lowlevel.wait_readable(self._timer.fd)
            finally:
                self._asleep = False
            self._timer.clear()
        self._rung = False

    def ring(self) -> None:
        """See `Alarm`. The sleeper is woken by making its own timer fire: one system call, no second wait."""
        if not self._rung:
            self._rung = True
            if self._asleep:
                self._timer.arm(1)

    def close(self) -> None:
        """See `Alarm`."""
        self._timer.close()


class SleepAlarm:
    """An alarm on trio's own timers, for systems without timerfd and for simulated time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._bell = Bell()

    async def sleep_until(self, due_ms: int | None) -> None:
        """See `Alarm`."""
        if due_ms is None:
            await self._bell.wait()
            return
        wait_s = (due_ms - self._clock.now_ms()) / _MS_PER_S
        with trio.move_on_after(max(0.0, wait_s)):
            await self._bell.wait()

    def ring(self) -> None:
        """See `Alarm`."""
        self._bell.ring()

    def close(self) -> None:
        """See `Alarm`."""


class TrioClock:
    """Time as trio's clock tells it, from `start_ms` on. Under MockClock it is simulated time."""

    def __init__(self, start_ms: int) -> None:
        self._start_ms = start_ms

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return self._start_ms + round(trio.current_time() * _MS_PER_S)

    def alarm(self) -> Alarm:
        """An alarm on trio's timers."""
        return SleepAlarm(self)

    def take_step_back_ms(self) -> int:
        """Simulated time never runs back."""
        return 0


class ManualClock:
    """A clock that stands still until it is moved; safe to move from any thread.

    It starts at `start`, by default the real time of its making, rounded down to a millisecond.
    """

    def __init__(self, start: datetime | None = None) -> None:
        self._now_ms = time.time_ns() // _NS_PER_MS if start is None else _to_ms(start)
        self._step_back_ms = 0
        self._lock = threading.Lock()
        self._alarms: list[_ManualAlarm] = []

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return self._now_ms

    def now(self) -> datetime:
        """The same as an aware datetime in UTC."""
        return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=self._now_ms)

    def advance(self, by: timedelta) -> None:
        """Move forward. What became due is delivered soon after; the caller does not wait for it. Raises BadTime."""
        if not isinstance(by, timedelta):
            raise BadTime(f"The clock is to be advanced by a {type(by).__name__}.", advice="Use a timedelta.")
        if by < timedelta(0):
            raise BadTime("advance() goes forward.", advice="Use set() to jump back.")
        with self._lock:
            self._now_ms = _checked_ms(self._now_ms + by // timedelta(milliseconds=1))
        self._wake_all()

    def set(self, now: datetime) -> None:
        """Jump to `now`, forward or back, as when the machine's clock is set. Raises BadTime, NaiveDatetime."""
        now_ms = _to_ms(now)
        with self._lock:
            self._step_back_ms += max(0, self._now_ms - now_ms)
            self._now_ms = now_ms
        self._wake_all()

    def next_ms(self) -> int | None:
        """When the next alarm goes off; now, while something that it woke is still at work. None: there is none."""
        with self._lock:
            times = [alarm.due_ms(self._now_ms) for alarm in self._alarms]
        return min((due_ms for due_ms in times if due_ms is not None), default=None)

    def alarm(self) -> Alarm:
        """An alarm that goes off when the clock is moved far enough."""
        alarm = _ManualAlarm(self)
        with self._lock:
            self._alarms.append(alarm)
        return alarm

    def take_step_back_ms(self) -> int:
        """By how much `set` went back since the last call."""
        with self._lock:
            back_ms, self._step_back_ms = self._step_back_ms, 0
        return back_ms

    def forget(self, alarm: "_ManualAlarm") -> None:
        """An alarm was closed."""
        with self._lock:
            self._alarms.remove(alarm)

    def _wake_all(self) -> None:
        with self._lock:
            alarms = list(self._alarms)
        for alarm in alarms:
            alarm.ring_from_thread()


class _ManualAlarm:
    """Sleeps on a bell; each move of the clock rings it, and the sleeper looks at the time again."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._bell = Bell()
        self._token = trio.lowlevel.current_trio_token()
        self._is_open = True
        self._is_asleep = False
        self._due_ms: int | None = None

    def due_ms(self, now_ms: int) -> int | None:
        """When its sleeper wakes up; now if it is awake."""
        return self._due_ms if self._is_asleep else now_ms

    async def sleep_until(self, due_ms: int | None) -> None:
        """See `Alarm`. May return before `due_ms` when the clock was moved: the caller asks for the time
        anyway.
        """
        if due_ms is not None and due_ms <= self._clock.now_ms():
            await trio.lowlevel.checkpoint()
            return
        self._due_ms, self._is_asleep = due_ms, True
        try:
            await self._bell.wait()
        finally:
            self._is_asleep = False

    def ring(self) -> None:
        """See `Alarm`."""
        self._bell.ring()

    def ring_from_thread(self) -> None:
        """Ring from any thread; nothing happens when the broker's loop has ended."""
        try:
            self._token.run_sync_soon(self._bell.ring, idempotent=True)
        except trio.RunFinishedError:
            return

    def close(self) -> None:
        """See `Alarm`."""
        if self._is_open:
            self._is_open = False
            self._clock.forget(self)


def _to_ms(moment: datetime) -> int:
    if not isinstance(moment, datetime):
        raise BadTime(
            f"The clock is to be set to a {type(moment).__name__}.", advice="Use an aware datetime."
        )
    try:
        if moment.utcoffset() is None:
            raise NaiveDatetime
        return _checked_ms((moment - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1))
    except (TypeError, ValueError, OverflowError) as error:  # NaT of pandas is a datetime
        if isinstance(error, TickwheelError):
            raise
        raise BadTime(f"The clock cannot be set to {moment!r}.", advice="Use an aware datetime.") from None


def _checked_ms(time_ms: int) -> int:
    if not 0 <= time_ms <= MAX_TIME_MS:
        raise BadTime("The clock would be set to a time outside of the years 1970 to 9999.")
    return int(time_ms)
