"""The identity of a request that changes something: by it the broker knows a repetition, and answers it again.

The header's flags say that the payload begins with it.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from tickwheel.protocol.errors import BadFrame
from tickwheel.protocol.frames import HAS_IDENTITY, IS_REPEATED, Buffer, FrameType

_NAME: Final = struct.Struct("<QQQ")
_SINCE: Final = struct.Struct("<Q")
IDENTITY_BYTES: Final = _NAME.size + _SINCE.size
"""What an identity takes at most."""

IDENTIFIED: Final[frozenset[FrameType]] = frozenset(
    {
        FrameType.CANCEL,
        FrameType.RESCHEDULE,
        FrameType.REDELIVER,
        FrameType.CHANGE,
        FrameType.NACK,
        FrameType.RETURN,
        FrameType.TRANSACTION,
        FrameType.PREPARE,
        FrameType.DECIDE,
        FrameType.REPLAY_DEAD,
        FrameType.SET_TOPIC,
        FrameType.DELETE_TOPIC,
        FrameType.SET_SCHEDULE,
        FrameType.DELETE_SCHEDULE,
        FrameType.TRIGGER_SCHEDULE,
        FrameType.SET_ENDPOINT,
        FrameType.DELETE_ENDPOINT,
        FrameType.ENABLE_ENDPOINT,
        FrameType.TEST_ENDPOINT,
        FrameType.PURGE,
        FrameType.DROP,
        FrameType.RESERVE_IDS,
        FrameType.CREATE_GROUP,
        FrameType.DELETE_GROUP,
        FrameType.SEEK_GROUP,
        FrameType.SET_GROUP,
    }
)
"""The requests that have an identity: all that change something and would do it twice. Of the others,

- SEND is known again by its keys, and ends in SendUncertain without; ACK by the epochs: the client takes
  ``already_acked`` for an ack that counted;
- OPEN_TOPIC and SUBSCRIBE open what is there already; SUBSCRIBE, UNSUBSCRIBE, CREDIT and RETURN of a subscription,
  which has no identity either, end with their connection;
- EXTEND moves the end of leases that it moved before, and is fenced by epochs, too;
- PLAN_JOB and ADOPT_JOB name their job, which is taken in once;
- the rest only look.
"""


class RequestIdentity(msgspec.Struct, frozen=True):
    """``session``: random, one for each client object; ``number``: ascending from 1 within it; ``unanswered_from``:
    the lowest number whose answer the client still waits for; what lies below may be forgotten. ``since``: of a
    repetition, a position at which the broker's log was when the request was made first; None: it is no repetition."""

    session: int
    number: int
    unanswered_from: int
    since: int | None = None

    @property
    def flags(self) -> int:
        """Those of the frame's header."""
        return HAS_IDENTITY if self.since is None else HAS_IDENTITY | IS_REPEATED

    def encode(self) -> bytes:
        """What stands before the request's own payload."""
        name = _NAME.pack(self.session, self.number, self.unanswered_from)
        return name if self.since is None else name + _SINCE.pack(self.since)


def split_identity(
    frame_type: FrameType, flags: int, payload: Buffer
) -> tuple[RequestIdentity | None, Buffer]:
    """The identity of a request whose header has these flags, and its own payload. Raises BadFrame."""
    if not flags:
        return None, payload
    if flags not in (HAS_IDENTITY, HAS_IDENTITY | IS_REPEATED):
        raise BadFrame("A frame has flags that version 1 of the protocol does not know.")
    if frame_type not in IDENTIFIED:
        raise BadFrame(f"{frame_type.name} has no identity: it is carried out as often as it comes.")
    end = _NAME.size + (_SINCE.size if flags & IS_REPEATED else 0)
    if len(payload) < end:
        raise BadFrame("A request is shorter than its identity.")
    session, number, unanswered_from = _NAME.unpack_from(payload)
    if not 1 <= unanswered_from <= number:
        raise BadFrame("The identity of a request does not add up.")
    since = _SINCE.unpack_from(payload, _NAME.size)[0] if flags & IS_REPEATED else None
    return RequestIdentity(session, number, unanswered_from, since), payload[end:]
