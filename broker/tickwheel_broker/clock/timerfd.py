"""Linux timers as file descriptors, through libc: the `os` module has them only from Python 3.13 on.

Why not `trio.sleep`: its timers end in `epoll_wait`, which counts whole milliseconds, so they are up to 1
ms late. A timerfd on CLOCK_REALTIME fires within some ten microseconds, and tells when someone sets the
clock.
"""

import ctypes
import errno
import os
import sys

_CLOCK_REALTIME = 0
_ABSOLUTE_AND_CANCEL_ON_SET = 1 | 2
_MS_PER_S = 1_000
_NS_PER_MS = 1_000_000
_FOREVER_MS = 253_402_300_799_999
"""Nothing due: still arm the timer, because only an armed one notices that the clock was set."""

AVAILABLE = sys.platform == "linux"


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class TimerFd:
    """One wall-clock timer. `fd` becomes readable when it fires or when the clock is set."""

    def __init__(self) -> None:
        """Raises OSError if the system gives no timer."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._spec = _TimerSpec()
        self.fd: int = self._libc.timerfd_create(_CLOCK_REALTIME, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def arm(self, due_ms: int | None) -> bool:
        """Fire at `due_ms` of the wall clock (None: only if the clock is set). False if it was set just
        now.
        """
        when_ms = _FOREVER_MS if due_ms is None else max(due_ms, 1)
        value = self._spec.value
        value.seconds, rest_ms = divmod(when_ms, _MS_PER_S)
        value.nanoseconds = rest_ms * _NS_PER_MS
        result = self._libc.timerfd_settime(
            self.fd, _ABSOLUTE_AND_CANCEL_ON_SET, ctypes.byref(self._spec), None
        )
        if result == 0:
            return True
        code = ctypes.get_errno()
        if code == errno.ECANCELED:
            return False
        raise OSError(code, os.strerror(code))

    def clear(self) -> None:
        """Take the firing, so that `fd` is no longer readable. Harmless if it has not fired."""
        try:
            os.read(self.fd, 8)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ECANCELED):
                raise

    def close(self) -> None:
        """Give the descriptor back; may be called twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
