"""Who has logged in: a record here, and in the browser a cookie with its number. The token itself never leaves."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import anyio
from starlette.requests import Request
from starlette.responses import Response

MAX_LOGIN_S: Final = 12 * 60 * 60
IDLE_S: Final = 60 * 60
MAX_LOGINS: Final = 1_000
MAX_OF_TOKEN: Final = 100
"""So many browsers may use the same token; who logs in without end ends logins of that token alone."""
_BYTES: Final = 32
_ID: Final = re.compile(r"twk_[0-9a-f]{12}(?=_)")


@dataclass(eq=False)
class Login:
    """Somebody who has given a token."""

    token: str
    address: str
    since_s: float
    used_s: float
    key: bytes
    """Under which it is kept."""
    person: str = ""
    """Whom a proxy has let in; empty: the token was typed."""
    may_watch: bool = False
    """Whether it may look at the broker's figures, as far as is known."""

    @property
    def name(self) -> str:
        """Of the person, or what may be shown of the token: its id, and nothing of its secret."""
        if self.person:
            return self.person
        found = _ID.match(self.token)
        return found[0] if found else "a token"


class Logins:
    """All of them, in memory: they end with the process, after half a day, or when they are not used for an hour."""

    def __init__(
        self,
        *,
        max_s: float = MAX_LOGIN_S,
        idle_s: float = IDLE_S,
        most: int = MAX_LOGINS,
        most_of_token: int = MAX_OF_TOKEN,
    ) -> None:
        self._max_s = max_s
        self._idle_s = idle_s
        self._most = most
        self._most_of_token = most_of_token
        self._of: OrderedDict[bytes, Login] = OrderedDict()  # the one that was used last comes last

    def __len__(self) -> int:
        return len(self._of)

    def __iter__(self) -> Iterator[Login]:
        """Those that have not ended, the last used first."""
        self._end_old()
        return reversed(self._of.values())

    def begin(self, token: str, address: str) -> str:
        """Of a token that the broker has let in. What is returned is for the cookie."""
        number = secrets.token_urlsafe(_BYTES)
        self._begin(_digest(number), token, address)
        return number

    def of_person(self, person: str, token: str, address: str) -> Login:
        """Of somebody whom a proxy has let in, with each request."""
        key = _digest(f"person {person} {token}")
        return self._use(key) or self._begin(key, token, address, person)

    def _begin(self, key: bytes, token: str, address: str, person: str = "") -> Login:
        self._end_old()
        same = [key for key, login in self._of.items() if login.token == token]
        if len(same) >= self._most_of_token:
            del self._of[same[0]]
        elif len(self._of) >= self._most:
            self._of.popitem(last=False)
        now_s = anyio.current_time()
        self._of[key] = Login(token, address, now_s, now_s, key, person)
        return self._of[key]

    def find(self, number: str) -> Login | None:
        """By what the cookie says; it is in use then."""
        return self._use(_digest(number))

    def use(self, login: Login) -> bool:
        """It is in use; false: it has ended."""
        return self._use(login.key) is login

    def _use(self, key: bytes) -> Login | None:
        self._end_old()
        login = self._of.get(key)
        if login is not None:
            login.used_s = anyio.current_time()
            self._of.move_to_end(key)
        return login

    def end(self, number: str) -> None:
        """It counts no longer."""
        self._of.pop(_digest(number), None)

    def _end_old(self) -> None:
        now_s = anyio.current_time()
        for key, login in list(self._of.items()):
            if now_s >= min(login.since_s + self._max_s, login.used_s + self._idle_s):
                del self._of[key]


def _digest(number: str) -> bytes:
    return hashlib.sha256(number.encode()).digest()


def cookie_name(request: Request) -> str:
    """Browsers keep a name with ``__Host-`` for TLS and for this host alone. Without TLS, as on this machine, there are
    several ports to tell apart, which cookies do not by themselves."""
    if request.url.scheme == "https":
        return "__Host-tw"
    return f"tw-{request.url.port or 80}"


def cookie_of(request: Request) -> str:
    """What the browser has sent; empty: nothing."""
    return request.cookies.get(cookie_name(request), "")


def set_cookie(request: Request, response: Response, number: str) -> None:
    """Empty: the browser forgets it."""
    response.set_cookie(
        cookie_name(request),
        number,
        max_age=MAX_LOGIN_S if number else 0,
        path="/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
