"""Reading by Arrow Flight, against a server of a few lines that fails as real servers do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.support.run.cases import table
from tickwheel.arrow import network
from tickwheel.arrow.errors import DataError, PositionLost, SourceError
from tickwheel.arrow.network import Flights, Table
from tickwheel.errors import Forbidden, NotConnected, TickwheelError, TokenNeedsTls

SCHEMA = pa.schema([("id", pa.int64())])


class Server(fl.FlightServerBase):  # type: ignore[misc]
    """Answers with three tickets; what a ticket says is what goes wrong with it."""

    def __init__(self) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self.away = 0
        self.told: list[dict[str, Any]] = []

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        if self.away:
            self.away -= 1
            raise fl.FlightUnavailableError("being started")
        self.told.append(json.loads(descriptor.command))
        ends = [fl.FlightEndpoint(name, []) for name in (b"1", b"2", b"3")]
        return fl.FlightInfo(SCHEMA, descriptor, ends, -1, -1)

    def do_get(self, context: Any, ticket: Any) -> Any:
        return fl.GeneratorStream(SCHEMA, self.batches(ticket.ticket.decode()))

    def batches(self, what: str) -> Iterator[Any]:
        yield pa.record_batch([pa.array([1, 2])], schema=SCHEMA)
        if what.isdecimal():
            return
        if what == "defect":
            raise ValueError("strange")
        told = {"code": what, "message": "It went wrong.", "advice": "Do this.", "retryable": what == "busy"}
        raise fl.FlightServerError("no matter", extra_info=msgspec.json.encode(told))


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as found:
        yield found


@pytest.fixture
def flights(server: Server) -> Flights:
    return Flights(f"grpc://127.0.0.1:{server.port}", token="")


def test_a_table_is_all_its_parts(server: Server, flights: Flights) -> None:
    server.away = 2  # for a moment
    command = {"table": "messages", "columns": ["id"]}
    assert Table(flights, flights.plan(command)).reader().read_all().num_rows == 6
    assert server.told == [command]


@table(
    ("code", "cls"),
    [
        ("bad_source", SourceError),
        ("position_lost", PositionLost),
        ("forbidden", Forbidden),
        ("busy", TickwheelError),
        ("bad_ticket", TickwheelError),
    ],
)
def test_errors_are_ours_also_in_the_middle(flights: Flights, code: Any, cls: type[Exception]) -> None:
    found = flights.read(code.encode())
    assert next(found).num_rows == 2
    with pytest.raises(TickwheelError) as caught:
        next(found)
    assert isinstance(caught.value, cls)
    error = caught.value
    assert (error.code, error.message, error.advice) == (code, "It went wrong.", "Do this.")
    assert error.retryable == (code == "busy")


def test_what_is_no_error_of_ours(flights: Flights) -> None:
    with pytest.raises(DataError, match=r"Reading from grpc://127\.0\.0\.1:.* failed: .*strange"):
        list(flights.read(b"defect"))


def test_nobody_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "PATIENCE_S", 0.3)
    with pytest.raises(NotConnected, match=r"No tickwheel flight answers at grpc://127\.0\.0\.1:1:"):
        Flights("grpc://127.0.0.1:1", token="").plan({})


@table("url", ["http://a:1", "grpc://a", "grpc:a", "127.0.0.1:7416"])
def test_addresses_that_are_none(url: Any) -> None:
    with pytest.raises(SourceError, match="no address of Arrow Flight"):
        Flights(url, token="").plan({})


def test_a_token_goes_to_no_other_machine_in_plain_text() -> None:
    with pytest.raises(TokenNeedsTls):
        Flights("grpc://broker.example:7416", token="twk_x").plan({})
    assert "twk_x" not in repr(Flights("grpc://a:1", token="twk_x"))
