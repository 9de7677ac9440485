"""Is this token genuine? Asked at each connection, also by those who guess.

A hash takes some 30 ms of a core on purpose, so it is computed in a thread, few at a time, and once for each token:
what was found is remembered under a keyed hash whose key dies with the process. Reconnecting thousands cost nothing
then.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict, deque
from typing import Final

import trio

from tickwheel.protocol.errors import BadToken, TokenExpired, TokenRevoked, TooManyAttempts
from tickwheel_broker.clock.clock import Clock
from tickwheel_broker.security import tokens
from tickwheel_broker.security.addresses import network_of
from tickwheel_broker.security.tokens import Token

MAX_AT_ONCE: Final = 2
"""So many hashes are computed beside each other, each in 19 MiB."""
MAX_WAITING: Final = 64
MAX_FAILURES: Final = 10
WINDOW_S: Final = 60.0
"""So many failures within so long, then an address has to wait."""

_MAX_ADDRESSES: Final = 10_000
_MAX_REMEMBERED: Final = 10_000


class Logins:
    """Judges tokens, and remembers what it found."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._turns = trio.CapacityLimiter(MAX_AT_ONCE)
        self._good: OrderedDict[str, list[tuple[bytes, str]]] = OrderedDict()
        self._bad: OrderedDict[bytes, None] = OrderedDict()
        self._changes = 0
        self.attempts = Attempts()

    async def judge(self, text: str, known: dict[str, Token], address: str) -> tuple[str, str]:
        """Which token `text` is, and which of its hashes it has. Raises BadToken, TooManyAttempts."""
        digest = hmac.digest(self._key, text.encode(), hashlib.sha256)
        parsed = tokens.parse(text)
        if parsed is None:
            # It tells nothing about tokens, so the answer need not wait; but it counts as an attempt, once.
            if digest not in self._bad:
                self.attempts.begin(address)
                _remember(self._bad, digest, None)
            raise BadToken("The token does not have the form of one: twk_…_….")
        token = known.get(parsed[0])
        proof = "" if token is None else self._known_proof(token, digest)
        return parsed[0], proof or await self._verify(token, parsed[1], digest, address)

    def admit(self, token: Token | None, proof: str) -> Token:
        """The token, if it is valid now by the hash that was found. Raises BadToken, TokenExpired, TokenRevoked."""
        if token is None:
            raise TokenRevoked("The token was removed.")
        now_ms = self._clock.now_ms()
        state = token.state(now_ms)
        if state == "revoked":
            raise TokenRevoked
        if state == "expired":
            raise TokenExpired
        if proof not in token.hashes(now_ms):
            raise BadToken("The token was rotated, and the old one is not valid any more.")
        return token

    def forget_bad(self) -> None:
        """The tokens have changed: what was wrong may be right now, also what is being computed at this moment."""
        self._bad.clear()
        self._changes += 1

    def _known_proof(self, token: Token, digest: bytes) -> str:
        valid = token.hashes(self._clock.now_ms())
        for seen, proof in self._good.get(token.id, ()):
            if hmac.compare_digest(seen, digest) and proof in valid:
                return proof
        return ""

    async def _verify(self, token: Token | None, secret: str, digest: bytes, address: str) -> str:
        if digest in self._bad:
            raise BadToken  # the same again: it tells a guesser nothing, and a stale client locks no other one out
        if self._turns.statistics().tasks_waiting >= MAX_WAITING:
            raise TooManyAttempts("Too many are logging in at this moment.")
        attempt = self.attempts.begin(address)
        hashes = [] if token is None else token.hashes(self._clock.now_ms())
        changes = self._changes
        proof = await trio.to_thread.run_sync(tokens.matching, secret, hashes, limiter=self._turns)
        if token is None or not proof:
            if changes == self._changes:
                _remember(self._bad, digest, None)
            raise BadToken
        self.attempts.succeeded(address, attempt)
        seen = [(digest, proof), *self._good.get(token.id, ())][:2]
        _remember(self._good, token.id, seen)
        return proof


def _remember(memory: OrderedDict, key: object, value: object) -> None:  # type: ignore[type-arg]
    memory[key] = value
    memory.move_to_end(key)
    if len(memory) > _MAX_REMEMBERED:
        memory.popitem(last=False)


class Attempts:
    """Failed log-ins by address. One that is not decided yet counts as failed, so that many at once gain nothing."""

    def __init__(self) -> None:
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def begin(self, address: str) -> float:
        """A log-in begins. Raises TooManyAttempts."""
        now_s = trio.current_time()
        network = network_of(address)
        failures = self._failures.get(network)
        if failures is None:
            failures = deque()
        while failures and failures[0] <= now_s - WINDOW_S:
            failures.popleft()
        if len(failures) >= MAX_FAILURES:
            wait_s = failures[0] + WINDOW_S - now_s
            raise TooManyAttempts(
                f"There were {MAX_FAILURES} failed log-ins from {network}; wait {wait_s:.0f} s."
            )
        failures.append(now_s)
        self._failures[network] = failures
        self._failures.move_to_end(network)
        if len(self._failures) > _MAX_ADDRESSES:
            self._failures.popitem(last=False)
        return now_s

    def succeeded(self, address: str, attempt: float) -> None:
        """It was no failure."""
        failures = self._failures.get(network_of(address))
        if failures is not None and attempt in failures:
            failures.remove(attempt)
