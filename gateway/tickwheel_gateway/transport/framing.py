"""What gRPC adds to HTTP/2: the prefix of messages, their compression, time-outs and texts of errors."""

from __future__ import annotations

import re
import zlib
from typing import Final

from tickwheel_gateway.transport.call import Status
from tickwheel_gateway.transport.verdicts import BAD_FLAG, BAD_TIMEOUT, large_message

PREFIX_BYTES: Final = 5
_GZIP: Final = 16 + zlib.MAX_WBITS
_TIMEOUT: Final = re.compile(r"([0-9]{1,8})([HMSmun])")
_SECONDS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_UNSAFE: Final = re.compile(rb"[^\x20-\x24\x26-\x7e]")


class Malformed(Exception):
    """A request that ends with `status`."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class UnknownCompression(Malformed):
    """The answer says which compressions there are."""

    def __init__(self, encoding: str) -> None:
        super().__init__(Status.UNIMPLEMENTED, f"compression {encoding or 'identity'!r} is not supported")


class MessageReader:
    """Takes the bytes of one stream apart."""

    __slots__ = ("_buffer", "_encoding", "_most_bytes")

    def __init__(self, encoding: str, most_bytes: int) -> None:
        """``encoding``: grpc-encoding of the request. ``most_bytes``: of one message."""
        self._encoding = encoding
        self._most_bytes = most_bytes
        self._buffer = bytearray()

    @property
    def partial_bytes(self) -> int:
        """Of a message that is not whole."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are whole now. Raises Malformed, of a message that is too long as soon as it says so."""
        buffer = self._buffer
        if not buffer and len(data) >= PREFIX_BYTES:
            length = int.from_bytes(data[1:PREFIX_BYTES], "big")
            if len(data) == PREFIX_BYTES + length:  # the usual case: one frame, one message
                self._check(data[0], length)
                return [self._open(data[0], data[PREFIX_BYTES:])]
        buffer += data
        found = []
        start = 0
        while len(buffer) - start >= PREFIX_BYTES:
            flag, length = buffer[start], int.from_bytes(buffer[start + 1 : start + PREFIX_BYTES], "big")
            self._check(flag, length)
            end = start + PREFIX_BYTES + length
            if len(buffer) < end:
                break
            found.append(self._open(flag, bytes(memoryview(buffer)[start + PREFIX_BYTES : end])))
            start = end
        if start:
            del buffer[:start]
        return found

    def drop(self) -> None:
        """Forget what has arrived."""
        self._buffer = bytearray()

    def _check(self, flag: int, length: int) -> None:
        if length > self._most_bytes:
            raise Malformed(*large_message(length, self._most_bytes))
        if flag > 1:
            raise Malformed(*BAD_FLAG)
        if flag and self._encoding != "gzip":
            raise UnknownCompression(self._encoding)

    def _open(self, flag: int, data: bytes) -> bytes:
        return inflate(data, self._most_bytes) if flag else data


def inflate(data: bytes, most_bytes: int) -> bytes:
    """What gzip made small; never makes more than ``most_bytes`` of it. Raises Malformed."""
    unzip = zlib.decompressobj(_GZIP)
    try:
        found = unzip.decompress(data, most_bytes + 1)
    except zlib.error as error:
        raise Malformed(Status.INTERNAL, "a message that is not gzip") from error
    if len(found) > most_bytes:
        raise Malformed(Status.RESOURCE_EXHAUSTED, f"a message of more than {most_bytes} bytes, inflated")
    if not unzip.eof or unzip.unused_data:
        raise Malformed(Status.INTERNAL, "a message that is not one piece of gzip")
    return found


def framed(message: bytes) -> bytes:
    """A message with its prefix; never compressed."""
    return b"\0" + len(message).to_bytes(4, "big") + message


def timeout_s(text: str) -> float:
    """Of grpc-timeout. Raises Malformed."""
    match = _TIMEOUT.fullmatch(text)
    if match is None:
        raise Malformed(*BAD_TIMEOUT)
    return int(match[1]) * _SECONDS[match[2]]


def percent_encoded(text: str) -> bytes:
    """A text for grpc-message: printable ASCII stays, except the percent sign."""
    return _UNSAFE.sub(lambda found: b"%%%02X" % found[0][0], text.encode("utf-8", "replace"))
