"""Who a request is from: access keys with their secrets, and the token of Tickwheel that each stands for.

A request is signed with HMAC-SHA1 of the text of its date. No window of time can be asked for: clients write local time
or UTC and call both the same. So a signature that somebody has seen is good as long as its secret; TLS keeps it unseen.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import logging
import os
import re
import secrets
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from tickwheel.errors import ConfigError
from tickwheel.sharing.private_file import PrivateFile
from tickwheel_gateway.wire.codes import Code, Refused

AUTHORIZATION: Final = "authorization"
DATE_TIME: Final = "x-mq-date-time"
SESSION_TOKEN: Final = "x-mq-session-token"
SIGNED: Final = (AUTHORIZATION, DATE_TIME, SESSION_TOKEN)
"""All that decides about a token."""
ALGORITHM: Final = "MQv2-HMAC-SHA1"

_LOOK_S: Final = 1.0
"""So often it is looked whether the file has changed."""
_PRIVATE: Final = 0o600
_SECRET_BYTES: Final = 24
_ACCESS_KEY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,127}")
_TOKEN: Final = re.compile(r"[!-~]{1,1024}")
_ADVICE: Final = "On each line it has an access key, its secret key and a token of the broker."

_log = logging.getLogger("tickwheel.gateway.credentials")


class Pair(NamedTuple):
    """What a program of RocketMQ is given."""

    access_key: str
    secret_key: str


class _Known(NamedTuple):
    secret: bytes
    token: str


_NONE: Final = _Known(secrets.token_bytes(_SECRET_BYTES), "")


class Credentials:
    """As the file says; it is read again when it has changed. While it cannot be read, none is let in by it."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError."""
        self._file = _file(path)
        self._known = _read(self._file)
        self._looked_s = time.monotonic()

    def token_of(self, metadata: Mapping[str, str]) -> str:
        """The token of who has sent these headers. A token of Tickwheel itself may be in `SESSION_TOKEN`; the broker
        says what it is worth. Raises Refused."""
        own = metadata.get(SESSION_TOKEN, "")
        if own:
            if _TOKEN.fullmatch(own) is None:
                raise _unauthorized(f"{SESSION_TOKEN} is no token")
            return own
        self._look()
        access_key, signature = _parts(metadata.get(AUTHORIZATION, ""))
        known = self._known.get(access_key, _NONE)
        # An access key that is not known takes as long.
        good = _signature(known.secret, metadata.get(DATE_TIME, ""))
        if not hmac.compare_digest(good, signature.lower().encode(errors="replace")) or not known.token:
            raise _unauthorized(
                "the access key is not known here, or the signature is not that of its secret key"
            )
        return known.token

    def _look(self) -> None:
        now_s = time.monotonic()
        if now_s < self._looked_s + _LOOK_S:
            return
        self._looked_s = now_s
        try:
            if self._file.has_changed():
                self._known = _read(self._file)
        except ConfigError as error:
            self._known = {}
            self._file.forget()
            _log.error("%s", error)


def sign(pair: Pair, date_time: str) -> str:
    """The `AUTHORIZATION` of a request with this `DATE_TIME`."""
    signature = _signature(pair.secret_key.encode(), date_time).decode().upper()
    return f"{ALGORITHM} Credential={pair.access_key}, SignedHeaders={DATE_TIME}, Signature={signature}"


def add(path: Path, access_key: str, token: str) -> Pair:
    """A new pair, which stands for a token of the broker from now on. The file is made when it is not there, and is
    replaced as a whole. Raises ConfigError, OSError."""
    path = path.resolve()
    file = _file(path)
    if _ACCESS_KEY.fullmatch(access_key) is None:
        raise file.wrong(
            f"cannot have the access key {access_key!r}: letters, digits and any of ._@-, at most 128"
        )
    if _TOKEN.fullmatch(token) is None:
        raise file.wrong("cannot have what is no token of a broker")
    pair = Pair(access_key, secrets.token_urlsafe(_SECRET_BYTES))
    with _alone_in(path.parent) as directory:
        text = ""
        if path.exists():
            if access_key in _read(file):
                raise file.wrong(f"has the access key {access_key} already")
            text = path.read_text("utf-8")
        if text and not text.endswith("\n"):
            text += "\n"
        _replace(path, f"{text}{pair.access_key} {pair.secret_key} {token}\n")
        os.fsync(directory)
    return pair


@contextmanager
def _alone_in(directory: Path) -> Iterator[int]:
    """Others that want to add to a file there wait."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _replace(path: Path, text: str) -> None:
    descriptor, scratch = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "w", encoding="utf-8") as new:
            os.fchmod(new.fileno(), _PRIVATE)
            new.write(text)
            new.flush()
            os.fsync(new.fileno())
        os.replace(scratch, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(scratch)
        raise


def _file(path: Path) -> PrivateFile:
    return PrivateFile(path, "file of credentials", ("an access key", "a secret key", "a token"), _ADVICE)


def _read(file: PrivateFile) -> dict[str, _Known]:
    found: dict[str, _Known] = {}
    for number, (access_key, secret, token) in file.lines():
        if access_key in found:
            raise file.wrong(f"names {access_key} twice (line {number})")
        found[access_key] = _Known(secret.encode(), token)
    return found


def _parts(text: str) -> tuple[str, str]:
    """The access key and the signature; empty ones where there is none.

    >>> _parts("MQv2-HMAC-SHA1 Credential=shop/cn/RocketMQ, SignedHeaders=x-mq-date-time, Signature=0AF1")
    ('shop', '0AF1')
    >>> _parts("Bearer twk_1")
    ('', '')
    """
    algorithm, _, rest = text.strip().partition(" ")
    if algorithm != ALGORITHM:
        return "", ""
    parts = dict(part.strip().partition("=")[::2] for part in rest.split(","))
    return parts.get("Credential", "").partition("/")[0], parts.get("Signature", "")


def _signature(secret: bytes, date_time: str) -> bytes:
    return hmac.new(secret, date_time.encode(errors="replace"), hashlib.sha1).hexdigest().encode()


def _unauthorized(text: str) -> Refused:
    return Refused(Code.UNAUTHORIZED, text)
