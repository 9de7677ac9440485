"""One request and its answer, over connections that are kept for the next ones. There are no redirects, and no proxy
that an environment names; what an answer has beyond a limit is not read, and the whole of it ends in time."""

from __future__ import annotations

import errno
import ssl
from contextlib import aclosing
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final

import anyio
import httpcore2
from anyio.lowlevel import checkpoint

from tickwheel_push.http.addresses import AddressRefused, Allowed, Origin
from tickwheel_push.http.answer import EXCERPT_BYTES, Answer, NoAnswer, Reason, Result
from tickwheel_push.http.connections import KEEP_ALIVE_S, Connections
from tickwheel_push.http.connector import Connector, NameUnknown
from tickwheel_push.http.request import Request
from tickwheel_push.http.resolver import Resolver

MOST_ANSWER_BYTES: Final = 64 * 1024
_CHUNKS_AT_ONCE: Final = 100
"""Of an answer that come together and are read before others go on: a server may send each byte alone."""
_OWN_WANTS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})


class Exchange:
    """Makes requests for one endpoint: what another one's server does with its connections is no matter here."""

    def __init__(self, allowed: Allowed, resolver: Resolver, trusted: ssl.SSLContext) -> None:
        self._network = Connector(allowed, resolver)
        self._trusted = trusted
        self._connections = Connections(self._connection)

    def _connection(self, origin: Origin) -> httpcore2.AsyncHTTPConnection:
        scheme, host, port = origin
        return httpcore2.AsyncHTTPConnection(
            httpcore2.Origin(scheme.encode(), host.encode(), port),
            ssl_context=self._trusted,
            keepalive_expiry=KEEP_ALIVE_S,
            network_backend=self._network,
        )

    async def __aenter__(self) -> Exchange:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._connections.close()

    async def ask(self, request: Request, timeout_s: float) -> Result:
        """The answer. It never takes longer than ``timeout_s``, however slowly it comes."""
        reading = _Reading()
        with anyio.CancelScope(deadline=anyio.current_time() + timeout_s):
            failed = await self._ask(request, reading)
            return reading.answer() or failed
        # Where the status came in time, that is what counts; the rest of it did not.
        return reading.answer() or NoAnswer("timeout", f"no answer within {timeout_s:g} s")

    async def _ask(self, request: Request, reading: _Reading) -> NoAnswer:
        """Why there is no answer, unless it was read."""
        try:
            await self._once(request, reading)
        except AddressRefused as error:
            return NoAnswer("refused", str(error))
        except NameUnknown as error:
            return NoAnswer("dns", str(error))
        except httpcore2.ConnectError as error:
            cause = error.__cause__ or error.__context__
            reason: Reason = "tls" if isinstance(cause, ssl.SSLError) else "connection"
            return NoAnswer(reason, _text(error), is_ours=_is_ours(error))
        except ssl.SSLError as error:  # after the handshake, where httpcore lets it through
            return NoAnswer("tls", _text(error))
        except httpcore2.TimeoutException as error:
            return NoAnswer("timeout", _text(error))
        except httpcore2.NetworkError as error:
            return NoAnswer("connection", _text(error))
        except (httpcore2.ProtocolError, httpcore2.UnsupportedProtocol) as error:
            return NoAnswer("protocol", _text(error))
        return NoAnswer("protocol", "no answer")

    async def _once(self, request: Request, reading: _Reading) -> None:
        sent, origin = _sent(request), request.location.origin
        while True:
            connection, was_used = await self._connections.take(origin)
            try:
                await _read(await connection.handle_async_request(sent), reading)
                return
            except (httpcore2.RemoteProtocolError, httpcore2.ReadError, httpcore2.WriteError):
                if not was_used or reading.status is not None:
                    raise
                # A kept connection, which the server closed just then: that says nothing about this request.
            finally:
                await self._connections.give(origin, connection)


def _sent(request: Request) -> httpcore2.Request:
    """As httpcore has it."""
    location = request.location
    url = httpcore2.URL(
        scheme=location.scheme.encode(),
        host=location.host.encode(),
        port=location.port,
        target=location.target.encode(),
    )
    return httpcore2.Request(request.method, url, headers=request.headers, content=request.body or None)


async def _read(response: httpcore2.Response, reading: _Reading) -> None:
    reading.begin(response)
    try:
        async with aclosing(response.aiter_stream()) as chunks:
            count = 0
            async for chunk in chunks:
                if reading.takes_no_more(chunk):
                    return
                count += 1
                if count % _CHUNKS_AT_ONCE == 0:
                    await checkpoint()
    finally:
        with anyio.CancelScope(shield=True):
            await response.aclose()


@dataclass
class _Reading:
    """An answer that arrives."""

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    excerpt: bytearray = field(default_factory=bytearray)
    read_bytes: int = 0

    def begin(self, response: httpcore2.Response) -> None:
        """Its head is there."""
        self.status = response.status
        self.headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers
        }

    def takes_no_more(self, chunk: bytes) -> bool:
        """Some of its body came. Whether that is enough."""
        self.read_bytes += len(chunk)
        self.excerpt += chunk[: EXCERPT_BYTES - len(self.excerpt)]
        return self.read_bytes > MOST_ANSWER_BYTES

    def answer(self) -> Answer | None:
        """None: there was no head."""
        return None if self.status is None else Answer(self.status, self.headers, bytes(self.excerpt))


def _is_ours(error: BaseException | None) -> bool:
    """Whether what has failed, or what made it fail, is a want of our own."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _OWN_WANTS:
            return True
        error = error.__cause__ or error.__context__
    return False


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
