"""The bodies about fetching: messages that are asked for once, without a subscription."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from tickwheel.protocol.bodies.base import U32, Answer, Name, Request, TimeMs
from tickwheel.protocol.frames import FrameType
from tickwheel.protocol.limits import (
    MAX_CREDIT,
    MAX_FETCH_BYTES,
    MAX_FETCH_WAIT_MS,
    MAX_ORDERED_BATCH,
    MAX_TIME_MS,
)


class Fetch(Request, frozen=True):
    """FETCH: up to ``count`` messages of about ``max_bytes`` together, at once if some are ready, else when the first
    gets ready or ``wait_ms`` is over. ``count`` 0 only opens topic and group. ``lease_ms`` takes the place of the
    topic's ``ack_wait`` and backoff for this delivery. Of an ordering key at most ``ordered_batch`` that follow each
    other are given."""

    topic: Name
    group: Name
    count: Annotated[int, msgspec.Meta(ge=0, le=MAX_CREDIT)]
    max_bytes: Annotated[int, msgspec.Meta(ge=1, le=MAX_FETCH_BYTES)] = MAX_FETCH_BYTES
    wait_ms: Annotated[int, msgspec.Meta(ge=0, le=MAX_FETCH_WAIT_MS)] = 0
    start: Literal["earliest", "latest"] | TimeMs = "earliest"
    lease_ms: Annotated[int, msgspec.Meta(ge=1, le=MAX_TIME_MS)] | None = None
    ordered_batch: Annotated[int, msgspec.Meta(ge=1, le=MAX_ORDERED_BATCH)] = 1
    probes: bool = False  #: its client answers PROBE


class EndFetch(Request, frozen=True):
    """END_FETCH: a FETCH of this connection waits no longer."""

    correlation: U32


class EndFetchOk(Answer, frozen=True):
    """END_FETCH_OK. ``ended``: it still waited, and is answered without messages; else it has its answer."""

    ended: bool


REQUESTS: Final[dict[FrameType, type[Request]]] = {FrameType.FETCH: Fetch, FrameType.END_FETCH: EndFetch}
ANSWERS: Final[dict[FrameType, type[Answer]]] = {FrameType.END_FETCH_OK: EndFetchOk}
