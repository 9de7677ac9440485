"""Receipts as texts, for programs that hold no connection: a delivery of a group, to be settled by whoever has it."""

import base64
import binascii
import struct
import zlib
from typing import Final, NamedTuple

_FIELDS: Final = struct.Struct("<BIQI")
_SUM: Final = struct.Struct("<I")
_VERSION: Final = 1
_CHARACTERS: Final = (_FIELDS.size + _SUM.size) * 4 // 3


class Receipt(NamedTuple):
    """One delivery of a message to a group."""

    group_id: int
    id: int
    epoch: int


def encode_receipt(topic: str, group: str, receipt: Receipt) -> str:
    """As a text of letters, digits, `-` and `_`.

    >>> encode_receipt("mails", "senders", Receipt(7, 1042, 1))
    'AQcAAAASBAAAAAAAAAEAAACS-qZ6'
    """
    fields = _FIELDS.pack(_VERSION, *receipt)
    return base64.urlsafe_b64encode(fields + _SUM.pack(_sum(topic, group, fields))).decode()


def decode_receipt(topic: str, group: str, text: str) -> Receipt:
    """Raises ValueError for a text that was changed on its way, and for the receipt of another group. It protects from
    mistakes, not from attacks: what one may settle is a matter of rights.

    >>> decode_receipt("mails", "senders", "AQcAAAASBAAAAAAAAAEAAACS-qZ6")
    Receipt(group_id=7, id=1042, epoch=1)
    """
    try:
        packed = base64.b64decode(text, b"-_", validate=True) if len(text) == _CHARACTERS else b""
    except (binascii.Error, ValueError):
        packed = b""
    fields, checksum = packed[: _FIELDS.size], packed[_FIELDS.size :]
    if not packed or fields[0] != _VERSION or checksum != _SUM.pack(_sum(topic, group, fields)):
        raise ValueError("is no receipt of this group")
    _, group_id, message_id, epoch = _FIELDS.unpack(fields)
    return Receipt(group_id, message_id, epoch)


def _sum(topic: str, group: str, fields: bytes) -> int:
    return zlib.crc32(f"{topic}\n{group}\n".encode() + fields)
