"""The wall clock of the simulated machine: it goes with trio's simulated time, and may be set."""

from __future__ import annotations

from tickwheel_broker.clock.clock import Alarm, SleepAlarm, TrioClock


class WallClock(TrioClock):
    """Starts at `start_ms`. A task that sleeps until a time is woken when the clock is set, as by a timerfd."""

    def __init__(self, start_ms: int) -> None:
        super().__init__(start_ms)
        self._set_by_ms = 0
        self._stepped_back_ms = 0
        self._alarms: list[_Alarm] = []
        self.highest_ms = start_ms
        self.jumps = 0

    def now_ms(self) -> int:
        """See `Clock`."""
        now_ms = super().now_ms() + self._set_by_ms
        self.highest_ms = max(self.highest_ms, now_ms)
        return now_ms

    def jump(self, by_ms: int) -> None:
        """The clock is set."""
        self.now_ms()
        self.jumps += 1
        self._set_by_ms += by_ms
        self._stepped_back_ms += max(0, -by_ms)
        for alarm in list(self._alarms):
            alarm.ring()

    def take_step_back_ms(self) -> int:
        """See `Clock`."""
        back_ms, self._stepped_back_ms = self._stepped_back_ms, 0
        return back_ms

    def forget_step_back(self) -> None:
        """A broker that starts does not know what happened before."""
        self._stepped_back_ms = 0

    def alarm(self) -> Alarm:
        """See `Clock`."""
        alarm = _Alarm(self)
        self._alarms.append(alarm)
        return alarm

    def closed(self, alarm: _Alarm) -> None:
        """An alarm will not be used again."""
        self._alarms.remove(alarm)


class _Alarm(SleepAlarm):
    def __init__(self, clock: WallClock) -> None:
        super().__init__(clock)
        self._wall = clock
        self._is_open = True

    def close(self) -> None:
        """See `Alarm`."""
        if self._is_open:
            self._is_open = False
            self._wall.closed(self)
