"""How much one connection may take, hold and ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FRAME_BYTES: Final = 16_384
"""The largest frame that is taken: what every HTTP/2 peer may send without asking."""
READ_BYTES: Final = 64 << 10
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Counts are for one connection, unless said otherwise."""

    connections: int = 10_000
    """Of the whole server."""
    streams: int = 4_096
    message_bytes: int = 8 * _MIB
    """One request message, after inflating. More is status 8."""
    pending_bytes: int = 32 * _MIB
    """Requests in work: with so much, reading stops. As much again may have arrived of requests that are not whole,
    and of answers that wait for the peer's windows; beyond that calls fail with status 8."""
    header_list_bytes: int = 16 << 10
    """Of one request. More is status 8 for that call."""
    header_block_bytes: int = 64 << 10
    """Over all frames of one request. More is abuse, as is a header list of that size."""
    stream_window_bytes: int = _MIB
    connection_window_bytes: int = 16 * _MIB
    resets_a_second: int = 200
    control_answers: int = 1_000
    """Not yet written: acks of PING and SETTINGS, resets of streams that were none."""
    empty_frames: int = 1_000
    """DATA without data that do not end a stream."""
    send_timeout_s: float = 30.0
    """Without a window for what waits, or without the socket taking anything."""
    idle_s: float = 120.0
    """Without a stream."""
    handshake_s: float = 10.0
    """Until the first byte, and the end of the TLS handshake."""
    farewell_s: float = 5.0
    """For writing the last bytes of a connection, GOAWAY among them."""
    stop_s: float = 30.0
    """For the calls that are running when the server stops."""
