"""The audit log: who came in, who was refused what, who changed what. One JSON line each, without secrets and bodies.

Lines of refusals are limited, so that a stranger cannot fill the disk with them; what is left out is counted and told.
The last lines are kept in memory as well, for administrators who ask for them.
"""

from __future__ import annotations

import os
import time
from collections import deque
from itertools import islice, takewhile
from typing import Any, Final, NamedTuple

import structlog
import trio

from tickwheel.protocol.errors import ConfigError
from tickwheel_broker import logs

REFUSED_PER_S: Final = 20.0
REFUSED_AT_ONCE: Final = 200
DONE_PER_S: Final = 200.0
DONE_AT_ONCE: Final = 2_000
KEPT_LINES: Final = 10_000
_MAX_FIELD_CHARS: Final = 200

_log = logs.get_logger("audit")


class Tail(NamedTuple):
    """Lines, each with its number, the oldest first."""

    lines: list[tuple[int, bytes]]
    has_gap: bool
    """There may have been lines before these that are not kept any more."""


class Audit:
    """Writes to a file of its own, or without one to the broker's log, as `tickwheel.broker.audit`."""

    def __init__(self, path: str = "") -> None:
        """Raises ConfigError."""
        self._path = path
        self._descriptor = -1
        self._refused = logs.Bucket(REFUSED_PER_S, REFUSED_AT_ONCE, trio.current_time)
        self._done = logs.Bucket(DONE_PER_S, DONE_AT_ONCE, trio.current_time)
        self.suppressed = 0
        """Lines that were left out since the last one that was written."""
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=KEPT_LINES)
        self._last_number = self._last_gone = _now_us()
        self._render = structlog.processors.JSONRenderer()
        self._stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
        if path:
            try:
                self._descriptor = _open(path)
            except OSError as error:
                raise ConfigError(
                    f"audit_log {path} cannot be written: {error.strerror}.",
                    advice="Name a file in a directory that the broker's user can write to.",
                ) from error

    def done(self, action: str, **fields: Any) -> None:
        """Something was allowed, and done."""
        self._record(self._done, action, "ok", fields)

    def refused(self, action: str, **fields: Any) -> None:
        """Something was refused."""
        self._record(self._refused, action, "refused", fields)

    def tail(self, after: int | None, limit: int, room_bytes: int) -> Tail:
        """At most so many lines that came after the one with a number, or (None) the last ones. The numbers are
        microseconds since 1970: they ascend also when the broker starts anew, or another node takes over."""
        if after is None:
            found = list(islice(reversed(self._kept), limit))[::-1]
            while found and sum(len(line) for _, line in found) > room_bytes:
                del found[0]
            return Tail(found, has_gap=False)
        newer = list(takewhile(lambda kept: kept[0] > after, reversed(self._kept)))[::-1]
        found = newer[:limit]
        while len(found) > 1 and sum(len(line) for _, line in found) > room_bytes:
            del found[len(found) // 2 :]
        return Tail(found, has_gap=after < self._last_gone)

    def reopen(self) -> None:
        """Go on in a new file if the old one was moved away; if that fails, in the old one."""
        if not self._path:
            return
        try:
            descriptor = _open(self._path)
        except OSError as error:
            _log.error("the audit log cannot be opened anew", path=self._path, reason=error.strerror)
            return
        os.close(self._descriptor)
        self._descriptor = descriptor

    def tell_of_suppressed(self) -> None:
        """Write down how many lines were left out, if any; for when no other line comes that could say so."""
        if self.suppressed and self._done.take():
            self._tell()

    def _tell(self) -> None:
        self._write({"event": "suppressed", "outcome": "refused"})

    def close(self) -> None:
        """Nothing more comes."""
        if self.suppressed:
            self._tell()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _record(self, bucket: logs.Bucket, action: str, outcome: str, fields: dict[str, Any]) -> None:
        if not bucket.take():
            self.suppressed += 1
            return
        self._write({"event": action, "outcome": outcome, **{k: _short(v) for k, v in fields.items()}})

    def _write(self, event: dict[str, Any]) -> None:
        if self.suppressed:
            event["suppressed"] = self.suppressed
            self.suppressed = 0
        rendered = self._render(None, "", self._stamp(None, "", {**event}))
        line = rendered.encode() if isinstance(rendered, str) else rendered
        self._keep(line)
        if self._descriptor < 0:
            _log.info(str(event.pop("event")), **event)
            return
        try:
            os.write(self._descriptor, line + b"\n")
        except OSError as error:
            _log.error(
                "the audit log cannot be written", path=self._path, reason=error.strerror, line=rendered
            )

    def _keep(self, line: bytes) -> None:
        if len(self._kept) == KEPT_LINES:
            self._last_gone = self._kept[0][0]
        self._last_number = max(self._last_number + 1, _now_us())
        self._kept.append((self._last_number, line))


def _now_us() -> int:
    return time.time_ns() // 1_000


def _open(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def _short(value: Any) -> Any:
    return value[:_MAX_FIELD_CHARS] if isinstance(value, str) else value
