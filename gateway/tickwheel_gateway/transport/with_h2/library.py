"""`h2` as this server uses it. No other module imports it."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable
from typing import Any, Final

import h2.connection
import h2.events
import h2.exceptions
import h2.settings
import h2.stream
import hpack
from h2.errors import ErrorCodes

from tickwheel_gateway.transport.engine import OK_TRAILERS, ErrorCode, Headers
from tickwheel_gateway.transport.limits import FRAME_BYTES, Limits

ProtocolError = h2.exceptions.ProtocolError
DataReceived = h2.events.DataReceived
PingAckReceived = h2.events.PingAckReceived
RemoteSettingsChanged = h2.events.RemoteSettingsChanged
RequestReceived = h2.events.RequestReceived
StreamEnded = h2.events.StreamEnded
StreamReset = h2.events.StreamReset
WindowUpdated = h2.events.WindowUpdated

OK_HEAD: Final[Headers] = [(b":status", b"200"), (b"content-type", b"application/grpc")]
_BLOCKS: Final = {
    id(OK_HEAD): b"\x88\x0f\x10\x10application/grpc",
    id(OK_TRAILERS): b"\x00\x0bgrpc-status\x010",
}
"""In HPACK, by the static table alone: they do not depend on what was sent before."""
_FRAME_HEAD: Final = struct.Struct("!BHBBI")
_HEADERS, _END_STREAM, _END_HEADERS = 1, 1, 4
_MOST_CLOSED: Final = 128
"""Streams that are remembered after their end, so that what was under way to them is no error: `h2` would keep 65,536,
which are 8 MiB for each client that stays long enough."""
_SWEEP_EVERY: Final = 8


class _Decoder(hpack.Decoder):
    """`h2` would lower its bound to what the peer was told, and end the connection for one large request."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        super().__init__()

    @property
    def max_header_list_size(self) -> int:
        return self._most_bytes

    @max_header_list_size.setter
    def max_header_list_size(self, _size: int) -> None:
        """It stays."""


class Library(h2.connection.H2Connection):
    """The server's side of one connection: bytes and events, no input or output."""

    MAX_CLOSED_STREAMS = _MOST_CLOSED

    def __init__(self, limits: Limits) -> None:
        super().__init__(
            h2.config.H2Configuration(
                client_side=False,
                header_encoding=None,
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
            )
        )
        self._sweep_at = _SWEEP_EVERY
        self.decoder = _Decoder(limits.header_block_bytes)
        self.local_settings = h2.settings.Settings(
            client=False,
            initial_values={
                h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: limits.streams,
                h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
                h2.settings.SettingCodes.MAX_FRAME_SIZE: FRAME_BYTES,
                h2.settings.SettingCodes.MAX_HEADER_LIST_SIZE: limits.header_list_bytes,
            },
        )
        self.initiate_connection()
        self.increment_flow_control_window(limits.connection_window_bytes - 65_535)

    @property
    def open_inbound_streams(self) -> int:
        """`h2` goes over all streams for each new one. It is not asked: too many are refused one by one, where `h2`
        would end the connection; but streams that are closed must go.
        """
        if len(self.streams) >= self._sweep_at:
            left = self._open_streams(1) and len(self.streams)
            self._sweep_at = left + max(_SWEEP_EVERY, left // 2)
        return 0

    @property
    def queued_bytes(self) -> int:
        """What `data_to_send` would give."""
        return len(self._data_to_send)

    def answer(self, stream_id: int, headers: Headers, *, last: bool = False) -> None:
        """Headers or trailers. Those that every call has are encoded once: `h2` takes a fifth of its time for them."""
        block = _BLOCKS.get(id(headers))
        if block is None or self.encoder.table_size_changes:  # the next block must tell of the change
            self.send_headers(stream_id, headers, end_stream=last)
            return
        stream_states = self.streams[stream_id].state_machine
        stream_states.process_input(h2.stream.StreamInputs.SEND_HEADERS)
        if last:
            stream_states.process_input(h2.stream.StreamInputs.SEND_END_STREAM)
        flags = _END_HEADERS | _END_STREAM if last else _END_HEADERS
        self._data_to_send += _FRAME_HEAD.pack(0, len(block), _HEADERS, flags, stream_id) + block

    def room(self, stream_id: int) -> int:
        """How many bytes of DATA the peer takes now, of this stream and in all."""
        return self.local_flow_control_window(stream_id)

    def stream_room(self, stream_id: int) -> int:
        """How many it takes of this stream, whatever it takes in all."""
        return self.streams[stream_id].outbound_flow_control_window

    def widen(self, stream_id: int, size_bytes: int) -> None:
        """Let the peer send more on a stream, unless it has ended it since."""
        stream = self.streams.get(stream_id)
        if stream is not None and not stream.closed:
            self.increment_flow_control_window(size_bytes, stream_id)

    def reset(self, stream_id: int, code: ErrorCode) -> None:
        """End a stream whose other side may not have ended."""
        with contextlib.suppress(h2.exceptions.StreamClosedError):
            self.reset_stream(stream_id, ErrorCodes(code))


def size_of(headers: Iterable[tuple[Any, ...]]) -> int:
    """As SETTINGS_MAX_HEADER_LIST_SIZE counts."""
    return sum(len(name) + len(value) + 32 for name, value in headers)
