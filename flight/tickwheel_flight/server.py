"""Arrow Flight: answers GetSchema, GetFlightInfo and DoGet for the tables, DoPut for files of bulk jobs, and actions
for both, each with the rights of the token that came with the call (``authorization: Bearer …``).
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, get_args

import msgspec
import pyarrow.flight as fl

from tickwheel.arrow.columns import TableName
from tickwheel.arrow.errors import SourceError
from tickwheel.arrow.network import FIRST_OFFSET, LAST_OFFSET, OUTLINE
from tickwheel.errors import BadToken, ConnectionDenied, Forbidden, TickwheelError
from tickwheel.protocol.grants import Granted
from tickwheel_flight.bulk.jobs import ACTIONS as JOB_ACTIONS
from tickwheel_flight.bulk.jobs import Jobs, check_writer
from tickwheel_flight.bulk.putting import put_chunks
from tickwheel_flight.bulk.staged_names import BadPut, parse_path
from tickwheel_flight.callers import Callers
from tickwheel_flight.commands import ArchiveCommand, Command, parse_command, parse_table
from tickwheel_flight.reading import Reading, readable
from timerlog.errors import StoreError

_QUESTIONS: Final = {
    FIRST_OFFSET: "Where a new query of events begins: a command in, an offset out, both JSON.",
    LAST_OFFSET: "How far events may be read from `start` of a command: a command in, an offset out, both JSON.",
    OUTLINE: "The topics and groups that the reader may see: a command in, an object out, both JSON.",
}
_LOGIN: Final = "login"

_log = logging.getLogger("tickwheel.flight")

P = ParamSpec("P")
T = TypeVar("T")


class _Login(fl.ServerMiddleware):  # type: ignore[misc]
    """The token of one call."""

    def __init__(self, token: str) -> None:
        self.token = token


class _Logins(fl.ServerMiddlewareFactory):  # type: ignore[misc]
    """Takes the token out of each call's headers."""

    def start_call(self, info: Any, headers: Mapping[str, Sequence[str | bytes]]) -> _Login:
        values = headers.get("authorization") or ("",)
        value = values[0]
        text = value.decode(errors="replace") if isinstance(value, bytes) else value
        kind, _, token = text.partition(" ")
        if text and kind.lower() != "bearer":
            raise _as_flight_error(
                BadToken("The authorization header is not of the kind Bearer.", advice="Send: Bearer twk_….")
            )
        return _Login(token.strip())


def _told(
    method: Callable[Concatenate[FlightServer, P], T],
) -> Callable[Concatenate[FlightServer, P], T]:
    """A method whose errors readers understand."""

    @wraps(method)
    def call(self: FlightServer, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            raise _explained(error) from None

    return call


class FlightServer(fl.FlightServerBase):  # type: ignore[misc]
    """Listens from its making on, in threads of its own."""

    def __init__(self, url: str, reading: Reading, callers: Callers, jobs: Jobs, **tls: Any) -> None:
        """``url``: grpc://host:port, or grpc+tls://…, then with ``tls`` as `fl.FlightServerBase` has it. Raises
        OSError."""
        self._reading, self._callers, self._jobs = reading, callers, jobs
        super().__init__(url, middleware={_LOGIN: _Logins()}, **tls)

    @_told
    def get_schema(self, context: Any, descriptor: Any) -> Any:
        """The columns of what a command asks for."""
        command, granted = _command(descriptor), self._granted(context)
        if isinstance(command, ArchiveCommand):
            return fl.SchemaResult(self._reading.plan_archive(command, granted).schema)
        return fl.SchemaResult(self._reading.schema(command, granted))

    @_told
    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        """Its schema, and a ticket for each part. They are answered at the place that was asked: an endpoint without
        locations says that."""
        command, granted = _command(descriptor), self._granted(context)
        if isinstance(command, ArchiveCommand):
            plan = self._reading.plan_archive(command, granted)
        else:
            plan = self._reading.plan(command, granted)
        endpoints = [fl.FlightEndpoint(ticket, []) for ticket in plan.tickets]
        return fl.FlightInfo(plan.schema, descriptor, endpoints, -1, -1)

    @_told
    def do_get(self, context: Any, ticket: Any) -> Any:
        """The record batches of one part."""
        schema, batches = self._reading.stream(
            ticket.ticket, partial(self._judge, context), context.is_cancelled, _reader(context)
        )
        return fl.GeneratorStream(schema, _explaining(batches))

    @_told
    def do_action(self, context: Any, action: Any) -> Any:
        """Offsets of events, topics and groups, and what a bulk job asks."""
        packed, granted = action.body.to_pybytes(), self._granted(context)
        found: Any
        if action.type in JOB_ACTIONS:
            check_writer(granted)
            found = self._jobs.act(action.type, packed, *_caller(context))
        elif action.type in _QUESTIONS:
            reading = self._reading
            ask = {
                FIRST_OFFSET: reading.first_offset,
                LAST_OFFSET: reading.last_offset,
                OUTLINE: reading.outline,
            }[action.type]
            found = ask(parse_command(packed), granted)
        else:
            known = ", ".join([*_QUESTIONS, *JOB_ACTIONS])
            raise SourceError(f"There is no action {action.type!r}: use {known}.", advice="")
        return iter([fl.Result(msgspec.json.encode(found))])

    def list_actions(self, context: Any) -> list[Any]:
        """Those of `do_action`."""
        return [fl.ActionType(name, text) for name, text in (_QUESTIONS | JOB_ACTIONS).items()]

    @_told
    def list_flights(self, context: Any, criteria: bytes) -> Any:
        """The two tables, as far as the reader may see them."""
        for table in get_args(TableName):
            descriptor = fl.FlightDescriptor.for_command(msgspec.json.encode({"table": table}))
            yield self.get_flight_info(context, descriptor)

    @_told
    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """A file of a bulk job. Answers with its length and checksum, when it is on the disk."""
        if descriptor.descriptor_type != fl.DescriptorType.PATH:
            raise BadPut("The descriptor is no path.", advice="Put to the path staging, JOB, FILE.")
        name = parse_path(descriptor.path)

        def judge(has_begun: bool = True) -> None:
            check_writer(self._judge(context, has_begun))

        judge(has_begun=False)
        stored = self._jobs.staging.put(name, put_chunks(reader), judge)
        writer.write(msgspec.json.encode(stored))

    def _granted(self, context: Any) -> Granted:
        return self._judge(context, has_begun=False)

    def _judge(self, context: Any, has_begun: bool) -> Granted:
        return self._callers.granted(*_caller(context), has_begun=has_begun)


def _caller(context: Any) -> tuple[str, str]:
    """Token and address."""
    return context.get_middleware(_LOGIN).token, address_of(context.peer())


def _reader(context: Any) -> str:
    """Whose call it is: the holder of a token, and without a token who has the address."""
    token, address = _caller(context)
    return token or address


def _command(descriptor: Any) -> Command | ArchiveCommand:
    """Raises ``SourceError``."""
    if descriptor.descriptor_type != fl.DescriptorType.CMD:
        raise SourceError(
            "The descriptor is no command.",
            advice='Ask with a command, a JSON object such as {"table": "messages", "columns": ["id", "topic"]}.',
        )
    return parse_table(descriptor.command or b"")


def _explaining(batches: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from batches
    except Exception as error:
        raise _explained(error) from None


def address_of(peer: str) -> str:
    """The IP address in what gRPC calls a peer, such as ``ipv4:127.0.0.1:40792`` and ``ipv6:%5B::1%5D:40792``."""
    kind, _, place = peer.partition(":")
    host = place.rpartition(":")[0].replace("%5B", "").replace("%5D", "").strip("[]").partition("%")[0]
    if kind not in ("ipv4", "ipv6"):
        return "unknown"
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "unknown"
    return str(getattr(address, "ipv4_mapped", None) or address)


def _explained(error: Exception) -> Exception:
    if isinstance(error, StoreError):
        error = readable(error)
    if isinstance(error, TickwheelError):
        return _as_flight_error(error)
    if isinstance(error, fl.FlightError):
        return error  # type: ignore[no-any-return]
    _log.error("a call ended by a defect", exc_info=error)
    defect: Exception = fl.FlightInternalError("This is a defect of tickwheel flight: its log says more.")
    return defect


def _as_flight_error(error: TickwheelError) -> Exception:
    told = {
        "code": error.code,
        "message": error.message,
        "advice": error.advice,
        "retryable": error.retryable,
    }
    if isinstance(error, Forbidden):
        kind = fl.FlightUnauthorizedError
    elif isinstance(error, ConnectionDenied):
        kind = fl.FlightUnauthenticatedError
    else:
        kind = fl.FlightUnavailableError if error.retryable else fl.FlightServerError
    found: Exception = kind(
        f"[{error.code}] {error.told(error.advice)}", extra_info=msgspec.json.encode(told)
    )
    return found
