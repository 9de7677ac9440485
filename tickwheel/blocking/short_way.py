"""The short way of a single send while nothing else is under way: C writes it, waits, and compares the answer.

The usual way takes some 300 small steps of Python for that. This one knows the good end alone: a whole SEND_OK for this
message, and nothing else (`native/call.c`). At anything else, be it the bell, a signal, another frame, a full socket or
the time, the send goes on the usual way as if that had written it: it is pending from the beginning, what was read is
taken in, what was not written goes next. So one place knows what becomes of a send.

C writes and reads with the lock and waits without it, as everything here does: others may call and close meanwhile, and
so may a handler of a signal. A shield against Ctrl-C is put up only before something is handed over; how far the
send is stands in the memory of C, where an interruption leaves it.
"""

from __future__ import annotations

import math
import os
import select
from functools import partial
from types import BuiltinFunctionType
from typing import Any, Final

from tickwheel.blocking.interruptions import uninterrupted
from tickwheel.blocking.session import BlockingSession
from tickwheel.blocking.wire import Wire
from tickwheel.client.calls import FlightKey, SendFlight
from tickwheel.client.columns import Single
from tickwheel.client.link import Link
from tickwheel.client.results import SendResult
from tickwheel.protocol.frames import HEADER_BYTES, FrameType, encode_frame
from tickwheel.protocol.messages import SEND_COLUMN_BYTES_MAX, SEND_HEAD_BYTES, single_send_columns
from tickwheel_native import call as _call

LARGEST_BYTES: Final = 64 * 1024
"""Of a message: the steps of the usual way are little beside what a larger one costs, and sockets take less at once."""
_BESIDE_BYTES: Final = HEADER_BYTES + SEND_HEAD_BYTES + SEND_COLUMN_BYTES_MAX

is_open = os.environ.get("TICKWHEEL_TEST_SHORT_WAY") != "off"
"""For tests, which compare it with the usual way."""


class _Lone:
    """A send on the short way."""

    __slots__ = ("call", "correlation", "flight", "is_handed_over", "link", "message", "topic_id", "wire")

    def __init__(self, *, link: Link, wire: Wire, flight: SendFlight, message: Single, topic_id: int) -> None:
        self.link = link
        self.wire = wire
        self.flight = flight
        self.message = message
        self.topic_id = topic_id
        self.call: _call.Call | None = None
        """How far it is, once it was begun."""
        self.correlation = 0
        self.is_handed_over = False


class ShortWaySession(BlockingSession):
    """A conversation that knows the short way, too."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._call: _call.Call | None = None
        """Of one send after the other; its room is too much for each."""

    def is_alone(self, topic: str) -> bool:
        """Whether a send to this topic may go the short way, as far as that is seen without the lock."""
        return (
            not (self._live or self.holdings or self.monitor.is_read)
            and self.knows_topic(topic)
            and is_open
            # Where something makes blocking code cooperate, it has put something else in the place of this.
            and isinstance(getattr(select, "poll", None), BuiltinFunctionType)
        )

    def send_alone(self, topic: str, message: Single) -> SendResult | None:
        """Sends it, and waits for its answer. None: it has to go the usual way, and nothing was done. Raises as
        ``send``."""
        lock = self.monitor.lock
        if lock._is_owned():  # the usual way says what is wrong
            return None
        lone: _Lone | None = None
        try:
            with lock:
                lone = self._lone(topic, message)
                if lone is None:
                    return None
                if self._is_answered(lone):
                    return self._finish(lone)
                with uninterrupted():
                    self._hand_over_lone(lone)
            self.run(self._landed(lone.flight))
        except BaseException:
            if lone is not None and not lone.flight.done.is_set():
                self._break_off(lone)
            raise
        return lone.flight.stored(0)

    def _lone(self, topic: str, message: Single) -> _Lone | None:
        """What goes now. None: not by this way. Changes nothing. With the lock, as all that follows."""
        if self._open is None or self._terminal is not None or self._is_closing or self.monitor.is_read:
            return None
        if self._live or self._outbox or self.holdings or self._budget.taken:
            return None
        link, wire = self._open
        if link.pending or link.refused or not link.ready or link.draining or link.scope.cancelled_caught:
            return None
        if not wire.is_plain or wire.has_unwritten:
            return None
        now = self.waits.now()
        if now >= self._look_at or self._is_stale(now):
            return None
        assert self._limits is not None
        size_bytes, topic_id = len(message.body) + len(message.key), link.known_topic_id(topic)
        room_bytes = min(LARGEST_BYTES, self._limits.max_frame_bytes - _BESIDE_BYTES)
        if topic_id is None or size_bytes > room_bytes:
            return None
        key = FlightKey(topic, message.is_relative, bool(message.key), ordered=False, has_priority=False)
        flight = SendFlight(key, now + self.timeout_s)
        flight.add(
            message.body, message.key, b"", b"", message.time_ms, 0, auto_key=message.has_auto_key
        )  # fmt: skip
        flight.cost_bytes += size_bytes
        flight.goes_alone()
        flight.done = self.waits.event()
        return _Lone(link=link, wire=wire, flight=flight, message=message, topic_id=topic_id)

    def _is_answered(self, lone: _Lone) -> bool:
        """Writes it and waits. False: it is for the usual way, as far as it is now."""
        if self._call is None:
            self._call = _call.new()
        call, link, flight, message = self._call, lone.link, lone.flight, lone.message
        _call.begin(call)
        lone.call = call
        self._budget.taken += flight.cost_bytes
        self._live[flight] = None
        lone.correlation = link.machine.expect(FrameType.SEND)
        link.pending[lone.correlation] = flight
        flight.written = True
        columns = single_send_columns(
            lone.topic_id,
            body_bytes=len(message.body),
            key_bytes=len(message.key),
            time_ms=message.time_ms,
            relative=message.is_relative,
            tell_differences=link.tells_differences,
        )
        descriptor = lone.wire.fileno()
        if not _call.send(call, descriptor, lone.correlation, columns, message.key, message.body):
            return False
        left_s = min(flight.deadline, self._look_at) - self.waits.now()
        left_ms = math.ceil(max(0.0, left_s) * 1_000)
        wait = partial(_call.wait, descriptor, self._ear.fileno(), left_ms)
        return (
            self.monitor.wait_alone(wait)
            and self._is_unread(lone)
            and _call.answer(call, descriptor, lone.correlation)
        )

    def _is_unread(self, lone: _Lone) -> bool:
        """Whether nothing was read for it while the lock was away, and the connection is the same."""
        return (
            self._is_at(lone)
            and not lone.flight.done.is_set()
            and lone.link.pending.get(lone.correlation) is lone.flight
            and lone.link.machine.is_between_frames
        )

    def _is_at(self, lone: _Lone) -> bool:
        return self._open is not None and self._open[1] is lone.wire

    def _finish(self, lone: _Lone) -> SendResult:
        """The good end."""
        assert lone.call is not None
        link = lone.link
        link.pending.pop(lone.correlation, None)
        link.machine.withdraw(lone.correlation)
        self._turned_at, self._seen_at = self._seen_at, self.waits.now()
        link.heard_at = self._seen_at
        self._settle(lone.flight)
        return SendResult(lone.call.first_id)

    def _hand_over_lone(self, lone: _Lone) -> None:
        """From here on it is as if the usual way had written it. Once; the second time there is nothing to do."""
        call, link, flight = lone.call, lone.link, lone.flight
        if call is None or lone.is_handed_over:
            return
        lone.is_handed_over = True
        if not call.written_bytes:
            link.pending.pop(lone.correlation, None)
            link.machine.withdraw(lone.correlation)
            flight.written = False
            if flight in self._live:
                self._outbox.append(flight)
        elif call.written_bytes < call.frame_bytes:
            payload = flight.payload(link)
            assert payload is not None
            frame = encode_frame(FrameType.SEND, lone.correlation, payload)
            assert len(frame) == call.frame_bytes
            lone.wire.keep(frame[call.written_bytes :])
        came = _call.taken(call)
        if came and self._is_at(lone):
            self._turned_at, self._seen_at = self._seen_at, self.waits.now()
            self._lives_after(link, lambda: self._take_in(link, came))

    def _break_off(self, lone: _Lone) -> None:
        """An interruption came; the caller does not wait for it any more."""
        with uninterrupted(), self.monitor.lock:
            if lone.call is not None and lone.call.is_answered and not lone.is_handed_over:
                self._finish(lone)
            else:
                self._hand_over_lone(lone)
                self.leave(lone.flight, 0)

    async def _landed(self, flight: SendFlight) -> None:
        await flight.done.wait()
