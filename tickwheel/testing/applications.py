"""What answers instead of the network: applications of the test, by the hosts that they stand for."""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from ipaddress import ip_address
from types import TracebackType
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

import msgspec

from tickwheel.client.admin.endpoints import Endpoint
from tickwheel.errors import BadArgument
from tickwheel.testing.asgi import PORT_OF, Answered, Application, Asked, Receive, Scope, Send, carry
from tickwheel.testing.virtual_time import VirtualTime
from tickwheel_broker.clock.clock import ManualClock
from tickwheel_push.http.addresses import DEFAULT_PORTS, AddressRefused, Allowed, Location
from tickwheel_push.http.answer import EXCERPT_BYTES, Answer, NoAnswer, Result
from tickwheel_push.http.exchange import MOST_ANSWER_BYTES
from tickwheel_push.http.request import Request

Answering: TypeAlias = Application | Mapping[str, Application] | None
"""One for all hosts, or by the hosts that each stands for; None: all are answered 204."""

_ANY: Final = "*"

_log = logging.getLogger("tickwheel.testing")


@dataclass(eq=False)
class Posted:
    """A request that was made of a message."""

    endpoint: str
    method: str
    url: str
    headers: dict[str, str]
    """By names in small letters."""
    body: bytes
    at: datetime
    """When, by the clock of the test."""
    status: int | None = None
    """What was answered; None: nothing, or nothing yet."""
    error: str = ""
    """Why nothing was."""
    raised: Exception | None = field(default=None, repr=False)
    """What the application raised."""

    @property
    def attempt(self) -> int:
        """From 1."""
        return int(self.headers["tickwheel-attempt"])

    def json(self) -> Any:
        """The body."""
        return msgspec.json.decode(self.body)

    def is_signed_with(self, secret: str) -> bool:
        """Whether one of its signatures was made with this secret, as https://www.standardwebhooks.com has it. The time
        is the one of the request, and not compared with any other."""
        key = base64.b64decode(secret.removeprefix("whsec_"))
        told = f"{self.headers['webhook-id']}.{self.headers['webhook-timestamp']}."
        wanted = base64.b64encode(hmac.digest(key, told.encode() + self.body, hashlib.sha256)).decode()
        given = self.headers.get("webhook-signature", "").split()
        return any(hmac.compare_digest(f"v1,{wanted}", one) for one in given)


class Applications:
    """Who answers for which host."""

    def __init__(self, answering: Answering) -> None:
        """Raises BadArgument."""
        by_host = answering if isinstance(answering, Mapping) else {_ANY: answering or accept}
        self._by_host = {host if host == _ANY else _origin(host): app for host, app in by_host.items()}

    @property
    def allowed(self) -> Allowed:
        """As `tickwheel push` allows it by itself, and those origins that are named with a port, or http."""
        named = [urlsplit(host) for host in self._by_host if host != _ANY]
        ports = frozenset(parts.port for parts in named if parts.port is not None)
        return Allowed(http=any(parts.scheme == "http" for parts in named), ports=DEFAULT_PORTS | ports)

    def of(self, location: Location) -> Application | None:
        """Who answers there."""
        host = f"[{location.host}]" if ":" in location.host else location.host
        names = (f"{location.scheme}://{location.authority}", f"//{host}", _ANY)
        return next((self._by_host[name] for name in names if name in self._by_host), None)

    def items(self) -> list[tuple[str, Application]]:
        """Each with what it stands for."""
        return list(self._by_host.items())

    def replace(self, host: str, app: Application) -> None:
        """Another one stands for it."""
        self._by_host[host] = app


class Exchange:
    """Makes the requests of one endpoint, without a network. The time that each may take passes on the test's clock."""

    def __init__(
        self,
        *,
        endpoint: Endpoint,
        applications: Applications,
        allowed: Allowed,
        clock: ManualClock,
        time: VirtualTime,
        posted: list[Posted],
    ) -> None:
        self._endpoint = endpoint
        self._applications = applications
        self._allowed = allowed
        self._clock = clock
        self._time = time
        self._posted = posted

    async def __aenter__(self) -> Exchange:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    async def ask(self, request: Request, timeout_s: float) -> Result:
        """As `tickwheel push` has it."""
        location = request.location
        url = f"{location.scheme}://{location.authority}{location.target}"
        posted = Posted(
            self._endpoint.name, request.method, url, dict(request.headers), request.body, self._clock.now()
        )
        self._posted.append(posted)
        result = await self._ask(request, timeout_s, posted)
        if isinstance(result, Answer):
            posted.status = result.status
        else:
            posted.error = result.text
        return result

    async def _ask(self, request: Request, timeout_s: float, posted: Posted) -> Result:
        location = request.location
        app = self._applications.of(location)
        try:
            self._check(location.host)
        except AddressRefused as error:
            return NoAnswer("refused", str(error))
        if app is None:
            return NoAnswer("dns", f"{location.host}: no application of this test stands for it")
        asked = Asked(
            method=request.method,
            target=location.target,
            headers=request.headers,
            body=request.body,
            scheme=location.scheme,
            host=location.host,
            port=location.port,
        )
        answered = Answered()
        with self._time.until(self._time.now_s() + timeout_s):
            try:
                await carry(app, asked, answered, MOST_ANSWER_BYTES)
            except Exception as error:  # a server answers for its application
                _log.exception("the application that stands for %s raised", location.host)
                posted.raised = error
                answered.status = answered.status or 500
            if not answered.status:
                return NoAnswer("protocol", "no answer")
        if answered.status:
            return Answer(answered.status, answered.headers, answered.body[:EXCERPT_BYTES])
        return NoAnswer("timeout", f"no answer within {timeout_s:g} s")

    def _check(self, host: str) -> None:
        """What a name leads to is for the test to say; an address says it itself. Raises AddressRefused."""
        try:
            address = ip_address(host)
        except ValueError:
            return
        self._allowed.check([address])


async def accept(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that answers 204 to everything."""
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


def _origin(text: str) -> str:
    """As ``Applications`` compares them: with a scheme, or for all schemes and ports of a host."""
    parts = urlsplit(text if "//" in text else f"//{text}")
    has_more = parts.path not in ("", "/") or parts.query or parts.fragment or "@" in parts.netloc
    try:
        is_whole = bool(parts.hostname) and (bool(parts.scheme) or parts.port is None)
    except ValueError:
        is_whole = False
    if has_more or not is_whole or parts.scheme not in ("", "http", "https"):
        raise BadArgument(
            f"{text!r} is no host of an application.",
            advice="Name it as shop.example, or with scheme and port: http://shop.example:8080.",
        )
    authority = parts.netloc.lower()
    if parts.port is not None and parts.port == PORT_OF.get(parts.scheme):
        authority = authority.rpartition(":")[0]
    return f"{parts.scheme}://{authority}" if parts.scheme else f"//{authority}"
