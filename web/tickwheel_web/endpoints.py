"""What a row of the table of endpoints is, what its function is given, and how its path is taken apart."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias
from urllib.parse import unquote

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from tickwheel import Client
from tickwheel.errors import BadArgument
from tickwheel_web.credit import Credits
from tickwheel_web.ending import Ending
from tickwheel_web.limits import Limits
from tickwheel_web.shapes import JSON, MAX_ID_DIGITS, NoQuery, encode, text_of

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]


@dataclass(frozen=True)
class Shared:
    """What the requests of one application share."""

    limits: Limits
    ending: Ending
    credits: Credits


@dataclass(frozen=True)
class Asked:
    """A request: everything about it that its function needs."""

    request: Request
    client: Client
    query: Any
    """Of the row's ``query``."""
    body: bytes
    caller: str
    """Whose limits count: the token, or the address of who has none."""
    shared: Shared

    def path(self, name: str) -> str:
        """A part of the path. Raises Refused (400)."""
        return text_of(str(self.request.path_params[name]), name, f"/{{{name}}}")

    def confirmed(self, name: str) -> str:
        """A part of the path, which the query parameter `confirm` says once more. Raises BadArgument."""
        found = self.path(name)
        if self.query.confirm != found:
            raise BadArgument(
                f"This cannot be taken back, and confirm is not {found!r}.",
                advice=f"Add ?confirm={found} if it is meant.",
            )
        return found

    @property
    def id(self) -> int:
        """The id of the message in the path. Raises BadArgument."""
        return self.number("id", "message")

    def number(self, name: str, of: str) -> int:
        """The id in a part of the path. Raises BadArgument."""
        text = self.path(name)
        if not (text.isascii() and text.isdecimal() and len(text) <= MAX_ID_DIGITS):
            raise BadArgument(f"{text!r} is no id of a {of}.", advice="Use one that was answered.")
        return int(text)


Answering: TypeAlias = Callable[[Asked], Awaitable[Response]]


@dataclass(frozen=True)
class Endpoint:
    """One method of one path. From these rows come the routes, the OpenAPI document and the table in the docs."""

    method: Method
    path: str
    answering: Answering
    summary: str
    right: str
    """What a token needs, as ``tickwheel tokens grant`` has it; ``{topic}``: of that topic."""
    answers: dict[int, type[msgspec.Struct]]
    problems: tuple[int, ...]
    """Statuses that it has besides those that all have."""
    query: type[msgspec.Struct] = NoQuery
    requests: dict[str, type[msgspec.Struct] | list[type[msgspec.Struct]] | None] | None = None
    """By content type what the body is; None: any bytes. Without: the body is not read."""
    headers: dict[str, str] | None = None
    """Headers that it reads, and what for."""
    other_forms: tuple[str, ...] = ()
    """Content types that its answer may have besides JSON."""
    example: object = None
    media_type: str = JSON
    """Of its answers."""
    leads_to: tuple[Answering, ...] = ()
    """What can be asked next, about what its path names, or by the `id` that it answers."""

    @property
    def name(self) -> str:
        """For programs that are generated: `operationId`."""
        return self.answering.__name__


def json(answer: msgspec.Struct, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """An answer."""
    return Response(encode(answer), status, headers, JSON)


class Parts(Route):
    """A path is taken apart before its parts are decoded, so a key may have any characters, also slashes."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """As Starlette has it."""
        raw = scope.get("raw_path")
        if raw is None:
            return super().matches(scope)
        match, child = super().matches({**scope, "path": raw.decode("ascii", "replace")})
        if match is not Match.NONE:
            parts = child["path_params"]
            decoded = {name: unquote(parts[name], errors="surrogateescape") for name in self.param_convertors}
            child = {**child, "path_params": parts | decoded}
        return match, child
