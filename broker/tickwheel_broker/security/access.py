"""Who may come in: reads the tokens, notices when they change, and says who a connection is."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import msgspec
import trio

from tickwheel.protocol.errors import (
    ConfigError,
    ConnectionDenied,
    DirectoryReadOnly,
    InsecureListener,
    LoginRequired,
    TokensUnusable,
)
from tickwheel.protocol.grants import parse_grants
from tickwheel_broker import logs
from tickwheel_broker.clock.clock import Clock
from tickwheel_broker.config.load import exposed_host
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.security import tokens
from tickwheel_broker.security.audit import Audit
from tickwheel_broker.security.grants import ANYONE, NOBODY, OWNER, Identity
from tickwheel_broker.security.logins import Logins
from tickwheel_broker.security.tokens import FILE_NAME, Token

WATCH_S: Final = 0.5
"""A look at the file's state costs a system call."""

_FINGERPRINT_DIGITS: Final = 16

_log = logs.get_logger("access")


class Peer(Protocol):
    """What is asked of the transport of a connection."""

    @property
    def peer(self) -> str:
        """Who is at the other end."""

    @property
    def is_owner(self) -> bool:
        """Whether the other side is a process of the user who owns the broker, or of root."""


@dataclass(frozen=True)
class Proxied:
    """Whom a proxy speaks for: a stranger, whatever the proxy is."""

    peer: str
    is_owner: bool = False


def real_peer(named: str, peer: Peer) -> Peer:
    """Who is at the other end. Of the owner, who may do all anyway, it is believed that it speaks for another one."""
    return Proxied(f"{named}:0") if named and peer.is_owner else peer


class Access:
    """All tokens of a broker. Without any, everybody who can connect may do everything."""

    def __init__(self, clock: Clock, path: Path | None = None, audit: Audit | None = None) -> None:
        """`path`: the file of tokens, which need not exist; None: there will never be any. Raises TokensUnusable."""
        self.audit = audit or Audit()
        self._clock = clock
        self._path = path
        self._logins = Logins(clock)
        self._seen = self._signature()
        self._is_new = False
        self._tokens = {} if path is None else tokens.load(path)
        self._fingerprint: str | None = None
        """See `fingerprint`; None: it was not asked for since the file was read."""
        self._identities: dict[tuple[str, str], Identity] = {}

    @property
    def is_open(self) -> bool:
        """Whether there are no tokens. One that was revoked is one, so that nothing opens when the last one is."""
        return not self._tokens

    def fingerprint(self) -> str:
        """Of all tokens as they are now: equal where two brokers let in the same clients; empty: there will never be
        any. It tells nothing of a token."""
        if self._path is None:
            return ""
        self._look()
        if self._fingerprint is None:
            packed = msgspec.json.encode([self._tokens[token_id] for token_id in sorted(self._tokens)])
            self._fingerprint = hashlib.sha256(packed).hexdigest()[:_FINGERPRINT_DIGITS]
        return self._fingerprint

    async def log_in(self, text: str, peer: Peer) -> Identity:
        """Who a new connection is. Raises ConnectionDenied; both are audited."""
        if self._path is None:
            return ANYONE
        if not text and peer.is_owner:
            return OWNER
        self._look()
        if self.is_open:
            return ANYONE
        try:
            if not text:
                raise LoginRequired
            token_id, proof = await self._logins.judge(text, self._tokens, peer.peer)
            identity = self._identity(token_id, proof)
        except ConnectionDenied as error:
            parsed = tokens.parse(text)
            self.audit.refused("login", peer=peer.peer, token=parsed[0] if parsed else "", code=error.code)
            raise
        self.audit.done("login", peer=peer.peer, token=identity.login, token_name=identity.name)
        return identity

    async def lets_in(
        self, authorization: str, peer: str, permissions: Sequence[str] = ("query", "admin")
    ) -> bool:
        """Whether who sent this Authorization header (empty: there was none) has one of these permissions for all
        topics; those that it has by default let read metrics, and why a broker is not ready. A token is given as
        `Bearer twk_…`; that it was wrong is audited."""
        self._look()
        if self.is_open:
            return True
        kind, _, text = authorization.partition(" ")
        if kind.lower() != "bearer" or not text:
            return False
        try:
            token_id, proof = await self._logins.judge(text.strip(), self._tokens, peer)
            identity = self._identity(token_id, proof)
        except ConnectionDenied as error:
            self.audit.refused("metrics", peer=peer, code=error.code)
            return False
        return any(identity.may_everywhere(permission) for permission in permissions)

    def renewed(self, identity: Identity) -> Identity:
        """Who a connection is by now: the same object if nothing has changed. Raises ConnectionDenied."""
        if identity is NOBODY or identity is OWNER or (identity is ANYONE and self.is_open):
            return identity
        if identity is ANYONE:
            error = LoginRequired("The broker wants a token from now on.")
            error.retryable = True  # the client may have one
            raise error
        return self._identity(identity.login, identity.proof)

    def reload(self) -> bool:
        """Read the file anew. If it is damaged or gone, the tokens stay as they are; False then."""
        if self._path is None:
            return True
        self._seen = self._signature()
        try:
            found = tokens.load(self._path)
            if self._tokens and not found:
                raise TokensUnusable(f"{self._path} is gone, or empty.", advice="Revoke tokens to end them.")
        except TokensUnusable as error:
            _log.error(
                "the new tokens are not used; the old ones stay", reason=error.message, advice=error.advice
            )
            return False
        before, self._tokens, self._is_new = self._tokens, found, True
        self._fingerprint = None
        self._identities.clear()
        self._logins.forget_bad()
        self._tell_of_changes(before)
        return True

    async def watch(self, changed: Callable[[], None]) -> None:
        """Until cancelled: call `changed` when the file has changed, or a token has expired."""
        while True:
            next_ms = self._next_end_ms()
            await trio.sleep(WATCH_S)
            self.audit.tell_of_suppressed()
            logs.LINES.tell()
            self._look()
            if self._is_new or (next_ms is not None and self._clock.now_ms() >= next_ms):
                self._is_new = False
                changed()

    def _look(self) -> None:
        """Read the file if it is another one: also at each log-in, so that a token counts from when it was made."""
        if self._path is not None and self._signature() != self._seen:
            self.reload()

    def _identity(self, token_id: str, proof: str) -> Identity:
        """Shared by all connections of a token. Raises ConnectionDenied."""
        token = self._logins.admit(self._tokens.get(token_id), proof)
        identity = self._identities.get((token_id, proof))
        if identity is None:
            identity = Identity(token_id, token.name, parse_grants(token.grants), proof)
            self._identities[token_id, proof] = identity
        return identity

    def _next_end_ms(self) -> int | None:
        """When the next token, or the time of one that was rotated, is over."""
        now_ms = self._clock.now_ms()
        ends = (end for token in self._tokens.values() for end in (token.expires_ms, token.previous_until_ms))
        return min((end_ms for end_ms in ends if end_ms > now_ms), default=None)

    def _signature(self) -> tuple[int, int, int] | None:
        """Another one means another file."""
        if self._path is None:
            return None
        try:
            state = os.stat(self._path)
        except OSError:
            return None
        return state.st_ino, state.st_mtime_ns, state.st_size

    def _tell_of_changes(self, before: dict[str, Token]) -> None:
        for token_id, token in self._tokens.items():
            old = before.get(token_id)
            if old is None:
                what = "created"
            elif token.revoked_ms and not old.revoked_ms:
                what = "revoked"
            elif token.hash != old.hash:
                what = "rotated"
            elif token != old:
                what = "changed"
            else:
                continue
            self.audit.done(
                f"token {what}", token=token_id, token_name=token.name, grants=" ".join(token.grants)
            )
        for token_id in before.keys() - self._tokens.keys():
            self.audit.done("token removed", token=token_id, token_name=before[token_id].name)


def _is_closed_to_us(directory: str) -> bool:
    """Whether we may not even look into it: then it is not its tokens that are wrong."""
    try:
        os.stat(os.path.join(directory, FILE_NAME))
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def open_access(settings: Settings, clock: Clock, *, verifies_clients: bool) -> Access:
    """What the settings say. Raises ConfigError, TokensUnusable, ServerExtraMissing, InsecureListener."""
    path = Path(settings.tokens_file or os.path.join(settings.data_dir, FILE_NAME))
    if settings.tokens_file and not os.path.exists(path):
        raise ConfigError(
            f"tokens_file {path} does not exist.",
            advice="Make a first token: `tickwheel tokens create NAME --tokens-file FILE --grant all:*`.",
        )
    if not settings.tokens_file and _is_closed_to_us(settings.data_dir):
        raise DirectoryReadOnly(f"{settings.data_dir} cannot be opened.")
    access = Access(clock, path, Audit(settings.audit_log))
    if access.is_open:
        name = exposed_host(settings)
        if name and not settings.insecure and not verifies_clients:
            raise InsecureListener(f"{name} is {getattr(settings, name)!r}, and there is no token in {path}.")
    elif settings.listen_tcp:
        tokens.require_argon2()
    return access
