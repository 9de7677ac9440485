"""Visits to the dashboard as a browser makes them, without one: cookies, forms, redirects."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import unescape
from typing import Final
from urllib.parse import urlencode

import trio
from starlette.types import ASGIApp

from tests.support.clients.asgi import HOST, Answer, Caller

_FORM: Final = "application/x-www-form-urlencoded"
_TAG: Final = re.compile(r"<[^>]*>")


@dataclass(frozen=True)
class Shown:
    """A page."""

    path: str
    answer: Answer

    @property
    def status(self) -> int:
        """Of the answer."""
        return self.answer.status

    @property
    def html(self) -> str:
        """As it was sent."""
        return self.answer.body.decode()

    @property
    def text(self) -> str:
        """What one reads, with single spaces."""
        return " ".join(unescape(_TAG.sub(" ", self.html)).split())


class Visitor:
    """A browser with its cookies."""

    def __init__(self, app: ASGIApp, *, scheme: str = "http", address: str = "127.0.0.1") -> None:
        self.app = app
        self._call = Caller(app, address=address, scheme=scheme)
        self.cookies: dict[str, str] = {}

    async def get(self, path: str, **headers: str) -> Shown:
        """A page, after all redirects."""
        return await self._follow(path, await self.ask("GET", path, **headers))

    async def post(self, path: str, fields: Mapping[str, str | list[str]], **headers: str) -> Shown:
        """What a form leads to."""
        answer = await self.ask("POST", path, urlencode(fields, doseq=True).encode(), **headers)
        return await self._follow(path, answer)

    async def listen(self, path: str, hears: Callable[[bytes], bool]) -> Answer:
        """To a stream, until it has heard enough."""
        enough = trio.Event()

        def heard(part: bytes) -> None:
            if hears(part):
                enough.set()

        return await self._call("GET", path, headers=self._headers("GET"), leaves=enough, hears=heard)

    async def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        """One request, without redirects. Underscores in names of headers stand for dashes; empty ones are left out."""
        named = self._headers(method) | {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {name: value for name, value in named.items() if value or name == "host"}
        answer = await self._call(method, path, body=body, headers=sent)
        if cookie := answer.headers.get("set-cookie"):
            name, _, rest = cookie.partition("=")
            value = rest.partition(";")[0].strip('"')
            self.cookies = {**self.cookies, name: value} if value else {}
        return answer

    def _headers(self, method: str) -> dict[str, str]:
        named = {"host": HOST, "accept": "text/html", "sec-fetch-site": "same-origin"}
        if method == "POST":
            named["content-type"] = _FORM
        if self.cookies:
            named["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        return named

    async def log_in(self, token: str) -> Shown:
        """With a token."""
        return await self.post("/login", {"token": token, "next": "/"})

    async def _follow(self, path: str, answer: Answer) -> Shown:
        while answer.status == 303:
            path = answer.headers["location"]
            answer = await self.ask("GET", path)
        return Shown(path, answer)
