"""`tickwheel serve --flight` and `tickwheel flight`: tables by Arrow Flight, whatever is killed, stopped or missing."""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import tickwheel.arrow
from tests.integration.flight.conftest import Served
from tests.support.flight.calling import Caller, calling, flight_url, told
from tests.support.processes.cli_harness import Shell
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon, is_refused
from tests.support.processes.piped import Piped
from tickwheel import sync
from tickwheel.arrow.columns import COLUMNS
from tickwheel.arrow.message_table import read_messages, split_messages
from tickwheel.arrow.network import Flights
from tickwheel.arrow.places import describe
from tickwheel.arrow.predicates import parse_conditions
from tickwheel.errors import TickwheelError, TokenRevoked
from tickwheel_bench.processes import is_gone, wait_until

BODY = bytes(1_000_000)
BODIES = 70
"""More than two batches, which end at 32 MiB."""


def with_flight(directory: Path, **settings: Any) -> Daemon:
    return Daemon(directory, **{"flight": True, "flight_listen": "127.0.0.1:0", **settings})


def fill_with_bodies(url: str) -> None:
    with sync.Client(url) as client:
        client.send_many("large", [BODY] * BODIES)


def rest_of(reader: pa.RecordBatchReader) -> TickwheelError:
    """What reading on ends with."""
    with pytest.raises(TickwheelError) as caught:
        for _ in reader:
            pass
    return caught.value


@pytest.mark.parametrize(
    ("niceness", "policy", "more"), [(0, os.SCHED_OTHER, 0), (7, os.SCHED_OTHER, 7), (20, os.SCHED_IDLE, 0)]
)
def test_how_far_it_stands_back(tmp_path: Path, niceness: int, policy: int, more: int) -> None:
    """All of its threads, also those that answer."""
    with with_flight(tmp_path / "data", flight_niceness=niceness) as daemon:
        with calling(flight_url(daemon)) as caller:
            assert caller.rows(columns=["id"]) == []
        own = os.getpriority(os.PRIO_PROCESS, daemon.process.pid)
        threads = [int(name) for name in os.listdir(f"/proc/{daemon.child_pids[-1]}/task")]
        assert len(threads) > 1
        assert {os.sched_getscheduler(thread) for thread in threads} == {policy}
        assert {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads} == {min(own + more, 19)}


def test_readers_go_on_when_it_was_killed(tmp_path: Path) -> None:
    with with_flight(tmp_path / "data") as daemon:
        fill_with_bodies(daemon.url)
        url = flight_url(daemon)
        with calling(url) as caller:
            (ticket,) = caller.tickets(columns=["id", "topic"])
            before = caller.get(ticket)
        assert before.num_rows == BODIES
        reader = tickwheel.arrow.messages(daemon.url, columns=["id", "body"])
        assert reader.read_next_batch().num_rows < BODIES
        os.kill(daemon.child_pids[-1], signal.SIGKILL)
        assert rest_of(reader).code in ("not_connected", "data")
        # This waits until it was started anew.
        again = tickwheel.arrow.messages(daemon.url, columns=["id", "topic"])
        assert again.read_all() == before
        assert len(daemon.child_pids) == 2
        with sync.Client(daemon.url) as client:
            client.send("large", b"later")
        with calling(url) as caller:
            assert caller.get(ticket) == before
            assert len(caller.rows(columns=["id"])) == BODIES + 1
        ended = [event for event in daemon.events() if event["event"] == "process ended"]
        assert [event["how"] for event in ended] == ["SIGKILL"]
    assert daemon.process.wait() == 0
    assert all(is_gone(pid) for pid in daemon.child_pids)
    assert is_refused(url)


def test_the_data_directory_may_be_deeper_than_a_socket(tmp_path: Path) -> None:
    deep = tmp_path / ("deep" * 25)
    deep.mkdir()
    with with_flight(deep / "data", unix_socket=str(tmp_path / "socket")) as daemon:
        with sync.Client(daemon.url) as client:
            client.send("tea", b"1")
        with calling(flight_url(daemon)) as caller:
            assert caller.rows(columns=["topic"]) == [{"topic": "tea"}]
        assert len(daemon.child_pids) == 1


def test_nothing_is_left_of_a_broker_that_was_killed(tmp_path: Path) -> None:
    daemon = with_flight(tmp_path / "data").start()
    url = flight_url(daemon)
    (pid,) = daemon.child_pids
    daemon.kill()
    # The next one has the port at once.
    with with_flight(tmp_path / "data", flight_listen=url.rpartition("//")[2]) as following:
        assert flight_url(following) == url
        with sync.Client(following.url) as client:
            client.send("tea", b"x")
        assert tickwheel.arrow.messages(following.url, columns=["topic"]).read_all().to_pylist() == [
            {"topic": "tea"}
        ]
        wait_until(lambda: is_gone(pid))
        (second,) = following.child_pids
        following.kill()
        wait_until(lambda: is_gone(second))
        assert is_refused(url)


def test_it_ends_in_order_though_a_reader_stands_still(tmp_path: Path) -> None:
    with with_flight(tmp_path / "data", unix_socket="") as daemon:
        fill_with_bodies(daemon.url)
        url = flight_url(daemon)
        assert f"{tmp_path}/data/flight.sock" in " ".join(daemon.urls)
        caller = Caller(url)
        (ticket,) = caller.tickets(columns=["body"])
        stream = caller.begin(ticket)
        assert stream.read_chunk().data.num_rows < BODIES
        assert daemon.stop() == 0
        assert told(stream.read_all)[0] != ""
        caller.close()
    (pid,) = daemon.child_pids
    assert is_gone(pid)
    assert is_refused(url)
    assert not [event for event in daemon.events() if event["level"] == "error"]


def test_revoked_tokens_are_refused_soon(served: Served) -> None:
    token = served.place.create("leaver", "query:a.*")
    flights = Flights(served.url, token=token)
    with calling(served.url, token) as leaver:
        (ticket,) = leaver.tickets(columns=["id"])
        assert leaver.get(ticket).num_rows > 0
        served.place.tokens("revoke", "leaver", "--yes")
        for call in (lambda: leaver.info({}), lambda: leaver.get(ticket)):
            wait_until(lambda call=call: told(call)[0])  # type: ignore[misc]
            assert told(call)[0] == "token_revoked"
    with pytest.raises(TokenRevoked):
        flights.plan({"table": "messages"})
    assert served.all.info({})


@pytest.mark.parametrize(
    ("prelude", "code"),
    [("sys.modules['pyarrow'] = None", "extra_missing"), ("", "address_in_use")],
    ids=["pyarrow", "port"],
)
def test_what_the_broker_cannot_begin_with(tmp_path: Path, prelude: str, code: str) -> None:
    patience = "import tickwheel_broker.children.beside as beside; beside.TAKEN_S = 0.1"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        daemon = with_flight(tmp_path / "data", flight_listen=place, prelude=f"{patience}\n{prelude}")
        daemon.launch()
        assert daemon.wait_exit() != 0
    (event,) = [event for event in daemon.events() if event["event"] == "stopped"]
    assert event["code"] == code
    assert "flight" in event["advice"]
    assert not daemon.child_pids
    assert not (tmp_path / "data").exists()


def refusal(shell: Shell, *words: str) -> dict[str, Any]:
    """The typed error that `tickwheel flight` ends with. It does not wait long for a broker."""
    process = Piped(
        "import tickwheel_flight.process as process; process._CONNECT_S = 0.5; "
        "from tickwheel_cli.main import main; main()",
        "--json",
        *words,
        modules=("tickwheel_cli.main", "tickwheel.client", "tickwheel_broker.config.load", "numpy"),
        folder=shell.directory,
        environment=shell.environment,
    )
    try:
        process.wait(PATIENCE_S)
    finally:
        process.kill()
        _, errors = process.communicate()
    assert process.returncode is not None
    assert process.returncode > 0, errors.decode()
    error: dict[str, Any] = msgspec.json.decode(errors.splitlines()[-1])["error"]
    return error


def test_what_the_command_cannot_begin_with(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    with Daemon(other):
        pass
    with Daemon(mine) as daemon, socket.create_server(("127.0.0.1", 0)) as taken:
        shell = Shell(tmp_path, daemon.url)
        flight = ("flight", "--listen", "127.0.0.1:0", "--data")
        wrong = refusal(shell, *flight, str(other))
        assert wrong["code"] == "bad_config"
        assert str(other) in wrong["message"]
        assert refusal(shell, *flight, str(tmp_path / "none"))["code"] == "no_data_directory"
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        in_use = refusal(shell, "flight", "--listen", place, "--data", str(mine))
        assert in_use["code"] == "address_in_use"
        assert "--listen" in in_use["advice"]
    gone = refusal(shell, *flight, str(mine))
    assert gone["code"] == "not_connected"


SEED = 20_311
CONDITIONS = 25


def in_place(directory: Path, columns: list[str], filters: list[list[Any]]) -> list[dict[str, Any]]:
    offline = describe(directory, time.time_ns() // 1_000_000)
    predicates = list(parse_conditions(msgspec.json.encode(filters).decode(), COLUMNS["messages"]))
    return [
        row
        for part in split_messages([offline], None, predicates, 1)
        for batch in read_messages(offline, part, columns, predicates)
        for row in batch.to_pylist()
    ]


def test_rows_in_place_and_by_flight_are_equal(served: Served) -> None:
    """For conditions of each operator, with values that are there and others."""
    columns = [name for name in COLUMNS["messages"] if name != "directory"]
    chosen = random.Random(SEED)
    rows = in_place(served.place.data, columns, [])
    assert served.all.rows(columns=columns) == rows
    found = []
    for _ in range(CONDITIONS):
        filters = [condition(chosen, rows) for _ in range(chosen.randint(1, 2))]
        shown = chosen.sample(columns, chosen.randint(1, len(columns)))
        expected = in_place(served.place.data, shown, filters)
        assert served.all.rows(columns=shown, filters=filters) == expected, filters
        found.append(len(expected))
    assert any(0 < count < len(rows) for count in found)


def condition(chosen: random.Random, rows: list[dict[str, Any]]) -> list[Any]:
    name = chosen.choice(
        ["id", "topic", "shard", "group", "key", "state", "attempts", "deliver_at", "headers"]
    )
    value = chosen.choice(rows)[name]
    if value is None:
        return [name, chosen.choice(["is null", "is not null"])]
    if name == "deliver_at":
        return [name, chosen.choice(["<", ">="]), value.isoformat()]
    operators = ["=", "!=", "<", ">=", "in"]
    if isinstance(value, str):
        operators += ["starts with", "contains"]
    operator = chosen.choice(operators)
    if operator == "in":
        return [name, operator, [value, chosen.choice(rows)[name] or value]]
    return [name, operator, value[: chosen.randint(1, 4)] if " " in operator else value]
