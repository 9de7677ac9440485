"""What systemd is told: that the broker is ready, that it lives, that it reloads or stops (sd_notify(3)).

Without a service manager nothing is sent. A message that cannot be sent is no reason to end.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress

import trio

from tickwheel_broker.monitoring.watched import Sight

_STATUS_EVERY_S = 10.0
_US_PER_S = 1_000_000


class ServiceManager:
    """The socket that `NOTIFY_SOCKET` names, and the interval of `WATCHDOG_USEC`."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        self._address = _address(environment.get("NOTIFY_SOCKET", ""))
        self.watchdog_s = _watchdog_s(environment) if self._address else None
        """Within this time it wants to hear that we live; None: it does not."""

    @property
    def is_there(self) -> bool:
        """Whether there is a service manager."""
        return bool(self._address)

    def tell(self, **fields: str | int) -> None:
        """Send fields such as `READY=1`. It never waits."""
        if not self._address:
            return
        message = "\n".join(f"{name}={value}" for name, value in fields.items())
        with (
            suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock,
        ):
            sock.setblocking(False)
            sock.sendto(message.encode(), self._address)

    def reloading(self) -> None:
        """Configuration is being read again; `tell(READY=1)` says that it was."""
        self.tell(RELOADING=1, MONOTONIC_USEC=time.monotonic_ns() // 1_000)

    async def attend(self, sight: Sight) -> None:
        """Feed the watchdog twice in each of its intervals, while the event loop turns and everything else moves; say
        now and then what is going on."""
        if not self._address:
            return
        pause_s = _STATUS_EVERY_S if self.watchdog_s is None else min(self.watchdog_s / 2, _STATUS_EVERY_S)
        status_due_s = trio.current_time()
        while True:
            if self.watchdog_s is not None and sight.is_alive:
                self.tell(WATCHDOG=1)
            if trio.current_time() >= status_due_s:
                status_due_s = trio.current_time() + _STATUS_EVERY_S
                self.tell(STATUS=_status(sight))
            await trio.sleep(pause_s)


def _address(name: str) -> str:
    """A name that begins with `@` is in the abstract namespace. Other kinds of sockets (vsock) are not ours."""
    if name.startswith("@"):
        return "\0" + name[1:]
    return name if name.startswith("/") else ""


def _watchdog_s(environment: Mapping[str, str]) -> float | None:
    """The interval, unless it is meant for another process."""
    try:
        interval_us = int(environment.get("WATCHDOG_USEC", "0"))
        process = int(environment.get("WATCHDOG_PID", str(os.getpid())))
    except ValueError:
        return None
    return interval_us / _US_PER_S if interval_us > 0 and process == os.getpid() else None


def _status(sight: Sight) -> str:
    watched, standing = sight.watched, sight.standing
    if watched is None:
        return "starting" if standing is None else f"{standing.role.value}, term {standing.term}"
    if watched.vitals.hanging:
        return f"hanging: {', '.join(watched.vitals.hanging)}"
    if watched.lifetime.is_draining:
        return "stopping"
    if not watched.vitals.is_confirmed:
        return "the cluster has not confirmed that this node owns the log"
    return (
        f"{watched.counters.connections} connections, {watched.engine.wheel.pending} timers, "
        f"{watched.engine.enqueue_get.pending} messages to take in"
    )
