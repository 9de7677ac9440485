"""Tokens: their file, and what is done to it. A client that shows a token may do what its grants say.

The file holds hashes (argon2id) alone: reading it is not enough to log in. It is written as a whole, to the side,
synced and then renamed: a reader sees the old one or the new one. Commands that change it take turns by a lock.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from tickwheel.protocol.errors import BadDirectory, TokensUnusable, UnknownToken
from tickwheel.protocol.grants import parse_grants
from tickwheel_broker.errors import ServerExtraMissing

if TYPE_CHECKING:
    from argon2 import PasswordHasher

FILE_NAME: Final = "tokens.json"
FORMAT: Final = 1
PREFIX: Final = "twk"
_ID_BYTES: Final = 6
_SECRET_BYTES: Final = 32
_TEXT: Final = re.compile(r"twk_([0-9a-f]{12})_([A-Za-z0-9_-]{27,128})")
_ID: Final = re.compile(r"[0-9a-f]{12}")

# What OWASP advises: 19 MiB, two passes, one lane; some 30 ms of one core.
_TIME_COST, _MEMORY_KIB, _LANES = 2, 19 * 1024, 1


class Token(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One token. Times in ms since the epoch; 0: never, or none."""

    id: str
    name: str
    hash: str
    grants: list[str]
    created_ms: int
    rotated_ms: int = 0
    previous_hash: str = ""
    previous_until_ms: int = 0
    expires_ms: int = 0
    revoked_ms: int = 0
    labels: dict[str, str] = {}

    def hashes(self, now_ms: int) -> list[str]:
        """Those that a secret may match now: the newest, and after a rotation for some time the one before."""
        return [self.hash, self.previous_hash] if now_ms < self.previous_until_ms else [self.hash]

    def state(self, now_ms: int) -> str:
        """`valid`, `revoked` or `expired`."""
        if self.revoked_ms:
            return "revoked"
        return "expired" if self.expires_ms and now_ms >= self.expires_ms else "valid"


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    tokens: list[Token]


def parse(text: str) -> tuple[str, str] | None:
    """Id and secret of a token's text; None if it is none."""
    found = _TEXT.fullmatch(text)
    return None if found is None else (found[1], found[2])


def _is_of_directory(path: Path, error: OSError) -> bool:
    """Whether the path of the directory is what is wrong: no file can be in it, whatever its name."""
    if error.errno == errno.ENAMETOOLONG:
        return path.name == FILE_NAME
    try:
        os.stat(path.parent)
    except OSError as of_directory:
        return of_directory.errno == error.errno == errno.ELOOP
    return False


def load(path: Path) -> dict[str, Token]:
    """All tokens by id; none if there is no file. Raises TokensUnusable, BadDirectory."""
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        if _is_of_directory(path, error):
            raise BadDirectory(f"{path.parent} cannot be used: {error.strerror}.") from error
        raise TokensUnusable(
            f"{path} cannot be read: {error.strerror}.", advice="Give the broker's user access to it."
        ) from error
    try:
        head = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        version = msgspec.json.decode(head.get("format", msgspec.Raw(b"0")), type=int)
        if version > FORMAT:
            raise TokensUnusable(
                f"{path} was written by a newer version (format {version}).",
                advice="Use that version, or a newer one.",
            )
        tokens = msgspec.json.decode(data, type=_File).tokens
        for token in tokens:
            parse_grants(token.grants)
            if not _ID.fullmatch(token.id) or not token.hash.startswith("$argon2id$"):
                raise ValueError(f"token {token.id!r} has no proper id or hash")
        if len({token.id for token in tokens}) != len(tokens):
            raise ValueError("an id is there twice")
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise TokensUnusable(f"{path} is damaged: {error}.") from error
    return {token.id: token for token in tokens}


@contextlib.contextmanager
def changing(path: Path) -> Iterator[dict[str, Token]]:
    """The tokens, to be changed: written when the block ends well. Raises TokensUnusable, OSError."""
    lock = _open_lock(path.with_name(path.name + ".lock"))
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        tokens = load(path)
        yield tokens
        _save(path, list(tokens.values()))
    finally:
        os.close(lock)


def _open_lock(path: Path) -> int:
    with contextlib.suppress(FileExistsError):
        return _create(path)
    return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)


def _create(path: Path) -> int:
    """A new file. Root may do this in a directory of the broker's user: what that user has put there, such as a link to
    another file, is neither written to nor given away."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    if os.geteuid() == 0:  # what root makes for a broker of another user is that user's
        owner = os.stat(path.parent)
        os.fchown(descriptor, owner.st_uid, owner.st_gid)
    return descriptor


def _save(path: Path, tokens: list[Token]) -> None:
    data = msgspec.json.format(msgspec.json.encode(_File(FORMAT, tokens)), indent=2) + b"\n"
    aside = path.with_name(f"{path.name}.{secrets.token_hex(8)}.new")
    descriptor = _create(aside)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            _keep_owner(path, file.fileno())
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(aside)
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _keep_owner(path: Path, descriptor: int) -> None:
    """A file that root writes anew stays readable to whom it belonged."""
    if os.geteuid() == 0 and path.exists():
        owner = os.stat(path)
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


# What is done to tokens ------------------------------------------------------------------------------------


def new_token(
    name: str,
    grants: Sequence[str],
    now_ms: int,
    *,
    expires_ms: int = 0,
    labels: dict[str, str] | None = None,
) -> tuple[Token, str]:
    """A token, and its text, which is known now and never again. Raises ValueError, ServerExtraMissing."""
    parse_grants(grants)
    secret = secrets.token_urlsafe(_SECRET_BYTES)
    token = Token(
        id=secrets.token_hex(_ID_BYTES),
        name=name,
        hash=_hash(secret),
        grants=list(grants),
        created_ms=now_ms,
        expires_ms=expires_ms,
        labels=labels or {},
    )
    return token, f"{PREFIX}_{token.id}_{secret}"


def rotated(token: Token, now_ms: int, grace_ms: int) -> tuple[Token, str]:
    """The token with a new secret, and its text; the old one stays valid for `grace_ms`."""
    secret = secrets.token_urlsafe(_SECRET_BYTES)
    changed = msgspec.structs.replace(
        token,
        hash=_hash(secret),
        rotated_ms=now_ms,
        previous_hash=token.hash if grace_ms else "",
        previous_until_ms=now_ms + grace_ms if grace_ms else 0,
    )
    return changed, f"{PREFIX}_{token.id}_{secret}"


def find(tokens: dict[str, Token], id_or_name: str) -> Token:
    """Raises UnknownToken; also for a name that several have."""
    if id_or_name in tokens:
        return tokens[id_or_name]
    named = [token for token in tokens.values() if token.name == id_or_name]
    named = [token for token in named if not token.revoked_ms] or named
    if len(named) > 1:
        ids = ", ".join(token.id for token in named)
        raise UnknownToken(f"{len(named)} tokens are called {id_or_name!r}.", advice=f"Give an id: {ids}.")
    if not named:
        raise UnknownToken(f"There is no token {id_or_name!r}.")
    return named[0]


# Hashes ----------------------------------------------------------------------------------------------------

NO_HASH: Final = "$argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHRzYWx0c2FsdA$" + "A" * 43
"""Of nothing: verifying it takes as long as verifying any other."""


def require_argon2() -> None:
    """Raises ServerExtraMissing."""
    if find_spec("argon2") is None:
        raise ServerExtraMissing(
            "Tokens need the package argon2-cffi, which is not installed.",
            advice="Install it: pip install 'tickwheel[server]'.",
        )


def matching(secret: str, hashes: Sequence[str]) -> str:
    """Which of these hashes a secret has; empty: none. A no takes as long whatever they are, some 60 ms of one core."""
    from argon2.exceptions import InvalidHashError, VerificationError

    hasher = _hasher()
    for known in (*hashes, NO_HASH, NO_HASH)[:2]:
        with contextlib.suppress(VerificationError, InvalidHashError):
            if hasher.verify(known, secret) and known is not NO_HASH:
                return known
    return ""


def _hash(secret: str) -> str:
    require_argon2()
    return str(_hasher().hash(secret))


def _hasher() -> PasswordHasher:
    from argon2 import PasswordHasher

    return PasswordHasher(time_cost=_TIME_COST, memory_cost=_MEMORY_KIB, parallelism=_LANES)
