"""Calls a `tickwheel flight` as any program does: with pyarrow alone, and whatever bytes a test makes up."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from tests.support.processes.daemon_harness import Daemon
from tickwheel_bench.processes import wait_until
from tickwheel_flight.tickets import open_ticket

_CALL_S = 60.0
_TICKET = ("version", "moment", "table", "first", "end", "columns", "filters", "events", "archive")
_MOMENT = ("log", "now_ms", "next_id", "position", "groups", "is_committed")


class Caller:
    """Somebody with a token, or with none."""

    def __init__(self, url: str, token: str = "", **tls: Any) -> None:
        self.client = fl.connect(url, **tls)
        headers = [(b"authorization", b"Bearer " + token.encode())] if token else []
        self.options = fl.FlightCallOptions(headers=headers, timeout=_CALL_S)

    def info(self, command: Any = None, **fields: Any) -> Any:
        """GetFlightInfo; `command`: bytes, or else its fields."""
        return self.client.get_flight_info(_descriptor(command, fields), self.options)

    def schema(self, command: Any = None, **fields: Any) -> Any:
        """GetSchema."""
        return self.client.get_schema(_descriptor(command, fields), self.options).schema

    def tickets(self, command: Any = None, **fields: Any) -> list[bytes]:
        """Those of a plan."""
        return [endpoint.ticket.ticket for endpoint in self.info(command, **fields).endpoints]

    def get(self, ticket: bytes) -> Any:
        """All rows of a ticket, as a table."""
        return self.client.do_get(fl.Ticket(ticket), self.options).read_all()

    def begin(self, ticket: bytes) -> Any:
        """A stream of which nothing was read yet."""
        return self.client.do_get(fl.Ticket(ticket), self.options)

    def rows(self, command: Any = None, **fields: Any) -> list[dict[str, Any]]:
        """All rows of what a command asks for."""
        return [row for ticket in self.tickets(command, **fields) for row in self.get(ticket).to_pylist()]

    def act(self, action: str, command: Any = None, **fields: Any) -> Any:
        """What an action answers."""
        packed = command if isinstance(command, bytes) else json.dumps(command or fields).encode()
        (result,) = self.client.do_action((action, packed), self.options)
        return json.loads(result.body.to_pybytes())

    def close(self) -> None:
        self.client.close()


def _descriptor(command: Any, fields: dict[str, Any]) -> Any:
    packed = command if isinstance(command, bytes) else json.dumps(command or fields).encode()
    return fl.FlightDescriptor.for_command(packed)


def wait_for_flight(url: str, report: Callable[[], object] = lambda: "", **tls: Any) -> None:
    """Wait until `tickwheel flight` answers, if only that it wants a token. ``report``: what is told when it does
    not."""

    def answers() -> bool:
        with fl.connect(url, **tls) as client:
            try:
                client.get_flight_info(
                    fl.FlightDescriptor.for_command(b"{}"), fl.FlightCallOptions(timeout=_CALL_S)
                )
            except fl.FlightUnavailableError:
                return False
            except fl.FlightError:
                return True
            return True

    wait_until(answers, report)


def flight_url(daemon: Daemon, **tls: Any) -> str:
    """Where its Arrow Flight is, once that answers."""
    url = str(daemon.wait_for_event("started", exactly=True)["flight"])
    wait_for_flight(url, daemon.log, **tls)
    return url


def defects(daemon: Daemon) -> list[dict[str, Any]]:
    """What the process says are defects of its own."""
    return [event for event in daemon.events() if event["event"] == "a call ended by a defect"]


def told(call: Callable[[], Any]) -> tuple[str, str]:
    """The code and the whole text of the error that a call ends with; ("", "") without. Raises what is no error of
    ours, and what no client can tell from others."""
    try:
        call()
    except (fl.FlightError, pa.ArrowException) as error:
        found = json.loads(getattr(error, "extra_info", b"") or b"{}")
        return str(found.get("code", f"?{type(error).__name__}")), f"{error} {found}"
    return "", ""


def signed(parts: Any) -> bytes:
    """A ticket with a digest that is right, whatever is in it."""
    packed = parts if isinstance(parts, bytes) else msgspec.msgpack.encode(parts)
    return hashlib.sha256(packed).digest()[:16] + packed


def forged(ticket: bytes, **changes: Any) -> bytes:
    """A ticket with some fields, of it or of its moment, replaced by anything."""
    parts = list(msgspec.to_builtins(open_ticket(ticket)))
    parts[1] = list(parts[1])
    for name, value in changes.items():
        if name in _TICKET:
            parts[_TICKET.index(name)] = value
        else:
            parts[1][_MOMENT.index(name)] = value
    return signed(parts)


def rss_mib(pid: int, field: str = "VmRSS") -> float:
    """Memory that a process has now (VmRSS) or has had at most (VmHWM)."""
    (line,) = [one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith(field)]
    return int(line.split()[1]) / 1024


def descriptors(pid: int) -> int:
    """How many files, sockets and pipes a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def mapped(pid: int, directory: Path) -> list[str]:
    """Files of a directory that a process has mapped, once for each mapping."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return [line.split()[-1] for line in lines if str(directory) in line]


@contextmanager
def calling(url: str, token: str = "") -> Iterator[Caller]:
    found = Caller(url, token)
    try:
        yield found
    finally:
        found.close()
