"""Reads tables from a ``tickwheel flight`` by Arrow Flight. What Spark's tasks need fits into a few texts, none of
which is a secret.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from tickwheel import sync
from tickwheel.arrow.errors import DataError, PositionLost, SourceError
from tickwheel.arrow.event_table import Offset
from tickwheel.client.security import Security, security_of
from tickwheel.client.url import TcpAddress
from tickwheel.protocol.errors import NotConnected, TickwheelError, error_class

FIRST_OFFSET: Final = "first_offset"
LAST_OFFSET: Final = "last_offset"
OUTLINE: Final = "outline"
"""Actions of a `tickwheel flight`."""
PATIENCE_S: Final = 20.0
"""So long a process that is started anew is waited for."""

_RETRY_S: Final = 0.2
_CALL_S: Final = 60.0
_OURS: Final = {cls.code: cls for cls in (SourceError, PositionLost)}

T = TypeVar("T")


class NoAnswerInTime(NotConnected):
    """The process was reached, and is still at it for all that is known."""


class _Told(msgspec.Struct):
    """What comes with an error of a `tickwheel flight`."""

    code: str
    message: str
    advice: str = ""
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class Planned:
    """A reading: its schema, and a ticket for each part of it."""

    schema: Any
    tickets: list[bytes]


@dataclass(frozen=True, slots=True)
class Flights:
    """Where tables are read. ``url``: grpc://host:port, or grpc+tls://…. The files are on each machine that reads;
    what is None is taken from the environment there, as ``tickwheel.Client`` does."""

    url: str
    token_file: str | None = None
    ca_file: str | None = None
    token: str | None = field(default=None, repr=False)

    @classmethod
    def of_broker(
        cls,
        url: str | None,
        *,
        token: str | None = None,
        token_file: str | None = None,
        ca_file: str | None = None,
    ) -> Flights:
        """Where the broker at ``url`` says that its tables are read. Raises what connecting raises, ``SourceError``."""
        with sync.Client(url, name="arrow", token=token, token_file=token_file, ca_file=ca_file) as client:
            found = client.flight_url
            if not found:
                raise SourceError(
                    f"The broker at {client.url} has no Arrow Flight.",
                    advice="Start it with `tickwheel serve --flight`, or set flight_advertise where it runs.",
                )
        return cls(found, token_file, ca_file, token)

    def schema(self, command: Mapping[str, Any]) -> Any:
        """The columns of what a command asks for. Raises ``SourceError``, Forbidden and what connecting raises."""
        # Not GetSchema: its errors come as texts of Python.
        return self.plan(command).schema

    def plan(self, command: Mapping[str, Any]) -> Planned:
        """The same, with tickets, which are good on all machines. Raises what `schema` raises."""
        descriptor = fl.FlightDescriptor.for_command(msgspec.json.encode(command))
        found = self._asked(lambda client, options: client.get_flight_info(descriptor, options))
        return Planned(found.schema, [endpoint.ticket.ticket for endpoint in found.endpoints])

    def offset(self, action: str, command: Mapping[str, Any]) -> Offset:
        """What an action answers. Raises what `schema` raises, ``PositionLost``."""
        return self.act(action, command, Offset)

    def act(self, action: str, asked: Any, answer: type[T], *, timeout_s: float = _CALL_S) -> T:
        """The same of any action. Raises what `schema` raises, and what the action does."""
        packed = msgspec.json.encode(asked)

        def ask(client: Any, options: Any) -> T:
            (result,) = client.do_action((action, packed), options)
            return msgspec.json.decode(result.body.to_pybytes(), type=answer)

        return self._asked(ask, timeout_s)

    def read(self, ticket: bytes) -> Iterator[Any]:
        """Record batches of one part. Raises what `schema` raises, ``PositionLost``; also in the middle."""
        return (batch for batch, _ in self.chunks(ticket))

    def chunks(self, ticket: bytes) -> Iterator[tuple[Any, bytes | None]]:
        """The same, each with what was told beside it."""
        with self.connected() as (client, headers), explaining(self.url):
            # How long a table takes to read is not known; who is gone is known by the connection.
            options = fl.FlightCallOptions(headers=headers)
            reader = _patiently(lambda: client.do_get(fl.Ticket(ticket), options))
            try:
                for chunk in reader:
                    told = chunk.app_metadata
                    yield chunk.data, None if told is None else told.to_pybytes()
            finally:
                reader.cancel()

    def _asked(self, ask: Callable[[Any, Any], T], timeout_s: float = _CALL_S) -> T:
        with self.connected() as (client, headers), explaining(self.url):
            options = fl.FlightCallOptions(headers=headers, timeout=timeout_s)
            return _patiently(lambda: ask(client, options))

    @contextmanager
    def connected(self) -> Iterator[tuple[Any, list[tuple[bytes, bytes]]]]:
        """A client of Arrow Flight, and the headers of each call. Raises BadConfig, BadCertificate, TokenNeedsTls."""
        security = security_of(
            ca_file=self.ca_file,
            certificate=None,
            key=None,
            token=self.token,
            token_file=self.token_file,
            plain_token=False,
        )
        security.check(_address(self.url))
        token = security.current_token()
        with fl.connect(self.url, **_tls(self.url, security)) as client:
            yield client, [(b"authorization", b"Bearer " + token.encode())] if token else []


def _address(url: str) -> TcpAddress:
    parts = urlsplit(url)
    if parts.scheme not in ("grpc", "grpc+tls") or not parts.hostname or parts.port is None:
        raise SourceError(
            f"{url!r} is no address of Arrow Flight.", advice="Use grpc://HOST:PORT or grpc+tls://…."
        )
    return TcpAddress(parts.hostname, parts.port, tls=parts.scheme == "grpc+tls")


def _tls(url: str, security: Security) -> dict[str, Any]:
    """Raises BadCertificate."""
    if not url.startswith("grpc+tls:"):
        return {}
    trusted = security.context().get_ca_certs(binary_form=True)
    found: dict[str, Any] = {"tls_root_certs": "".join(map(ssl.DER_cert_to_PEM_cert, trusted)).encode()}
    if security.certificate:
        found["cert_chain"] = Path(security.certificate).read_bytes()
        found["private_key"] = Path(security.key or security.certificate).read_bytes()
    return found


def _patiently(ask: Callable[[], T]) -> T:
    """What was asked for, perhaps once the process is back: it is started anew when it ends."""
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return ask()
        except fl.FlightUnavailableError:
            if time.monotonic() >= until_s:
                raise
        time.sleep(_RETRY_S)


@contextmanager
def explaining(url: str) -> Iterator[None]:
    """What went wrong at ``url``, as an error of ours."""
    try:
        yield
    except (fl.FlightError, pa.ArrowException) as error:
        raise _explained(url, error) from None


def _explained(url: str, error: Exception) -> TickwheelError:
    try:
        told = msgspec.json.decode(getattr(error, "extra_info", b""), type=_Told)
    except msgspec.MsgspecError:
        text = str(error).partition(". Detail:")[0].partition(" gRPC client debug context")[0].rstrip(". ")
        if isinstance(error, fl.FlightUnavailableError | fl.FlightTimedOutError):
            away = NoAnswerInTime if isinstance(error, fl.FlightTimedOutError) else NotConnected
            return away(
                f"No tickwheel flight answers at {url}: {text}.",
                advice="Check the address, that it runs (tickwheel serve --flight), and its certificate.",
            )
        return DataError(f"Reading from {url} failed: {text}.", advice="")
    cls: type[TickwheelError] = _OURS.get(told.code) or error_class(told.code)
    found = cls(told.message, advice=told.advice)
    found.code, found.retryable = told.code, told.retryable
    return found


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a broker, as `messages` and `events` read it."""

    flights: Flights
    planned: Planned

    def reader(self) -> Any:
        """A ``pyarrow.RecordBatchReader`` over all parts, one after the other."""
        return pa.RecordBatchReader.from_batches(self.planned.schema, self._batches())

    def _batches(self) -> Iterator[Any]:
        for ticket in self.planned.tickets:
            yield from self.flights.read(ticket)
