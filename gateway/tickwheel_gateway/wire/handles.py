"""Handles: what a client is given to name a delivery, or a message that it has sent. They carry all that is needed, so
that any process of a gateway understands those of any other."""

from __future__ import annotations

import base64
import binascii
from typing import Final, NamedTuple

from tickwheel.protocol.limits import MAX_ID
from tickwheel_gateway.wire.codes import Code, Refused

_MOST: Final = 0xFFFF_FFFF_FFFF_FFFF
_RECEIPT: Final = "tw1"
_RECALL: Final = "v1"
_OWNER: Final = "tickwheel"
_FOREIGN: Final = "this recall handle is none of this server"


class _Numbers:
    """Of receipt handles: none comes twice."""

    def __init__(self) -> None:
        self.next = 1

    def take(self, count: int) -> int:
        """The first of so many that follow each other."""
        first, self.next = self.next, self.next + count
        return first


numbers: Final = _Numbers()


class Receipt(NamedTuple):
    """One delivery of a message to a group."""

    group_id: int
    id: int
    epoch: int
    until_ms: int
    """When its lease ends, by the clock of the gateway; 0: the gateway renews it."""

    @property
    def is_renewed(self) -> bool:
        """Whether the gateway keeps the lease for the client."""
        return self.until_ms == 0

    def has_expired(self, now_ms: int) -> bool:
        """Also where the message was given to none since: it is RocketMQ's rule."""
        return 0 < self.until_ms <= now_ms


def encode_receipt(receipt: Receipt) -> str:
    """Each time another text, as RocketMQ has it: a client may tell an older one from a newer one."""
    return ".".join(map(str, (_RECEIPT, *receipt, numbers.take(1))))


def decode_receipt(text: str) -> Receipt:
    """Raises Refused.

    >>> decode_receipt("tw1.7.1042.1.1900000000000.55")
    Receipt(group_id=7, id=1042, epoch=1, until_ms=1900000000000)
    """
    kind, *fields = text.split(".")
    if kind == _RECEIPT and len(fields) == 5 and all(map(_is_number, fields)):
        return Receipt(*map(int, fields[:4]))
    raise Refused(Code.INVALID_RECEIPT_HANDLE, "this receipt handle is none of this server")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 20 and int(text) <= _MOST


class Recall(NamedTuple):
    """A message that was scheduled."""

    topic: str
    """As RocketMQ has its name."""
    deliver_at_ms: int
    id: int
    """Tickwheel's: what was recalled has its key no more, and a second recall is to be told so."""
    message_id: str


def encode_recall(recall: Recall) -> str:
    """Base64 of words, as RocketMQ has it; clients do not look into it."""
    words = (_RECALL, recall.topic, _OWNER, str(recall.deliver_at_ms), str(recall.id), recall.message_id)
    return base64.urlsafe_b64encode(" ".join(words).encode()).decode()


def decode_recall(text: str) -> Recall:
    """Raises Refused.

    >>> decode_recall(encode_recall(Recall("orders", 1900000000000, 1042, "01AB")))
    Recall(topic='orders', deliver_at_ms=1900000000000, id=1042, message_id='01AB')
    """
    try:
        version, topic, owner, time, number, message_id = (
            base64.b64decode(text, b"-_", validate=True).decode().split(" ", maxsplit=5)
        )
    except (binascii.Error, ValueError):
        version = topic = owner = time = number = message_id = ""
    if (version, owner) != (_RECALL, _OWNER) or not (topic and message_id):
        raise Refused(Code.BAD_REQUEST, _FOREIGN)
    if not (_is_number(time) and _is_number(number) and int(number) <= MAX_ID):
        raise Refused(Code.BAD_REQUEST, _FOREIGN)
    return Recall(topic, int(time), int(number), message_id)
