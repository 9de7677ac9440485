"""Many readers at once, a reader that stands still, and a ticket that is asked for again and again: the process of
Arrow Flight keeps a batch for each stream that has its turn, and no more."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.flight.calling import Caller, defects, flight_url, rss_mib
from tests.support.processes.daemon_harness import Daemon
from tickwheel import sync

MESSAGES = 40_000
"""Among 200 streams a batch has 1,024 rows: 40 turns for each stream."""
BODY = bytes(100)
READERS = 200
ASKED = 1_000
MEMORY_MIB = 300
"""What the process may take."""


def ids_by_new_connection(url: str, ticket: bytes) -> int:
    """How many rows a reader gets that comes with a connection of its own."""
    caller = Caller(url)
    try:
        return int(caller.get(ticket).num_rows)
    finally:
        caller.close()


def test_two_hundred_readers_beside_readers_that_stand_still(tmp_path: Path) -> None:
    with Daemon(tmp_path / "data", flight=True, flight_listen="127.0.0.1:0") as daemon:
        with sync.Client(daemon.url) as client:
            for _ in range(MESSAGES // 4_000):
                client.send_many("t", [BODY] * 4_000)
        url = flight_url(daemon)
        (pid,) = daemon.child_pids
        still = Caller(url)
        (ticket,) = still.tickets(columns=["id", "body"])
        streams = [still.begin(ticket) for _ in range(3)]
        for stream in streams:
            assert stream.read_chunk().data.num_rows > 0
        with ThreadPoolExecutor(READERS) as readers:
            counts = list(readers.map(ids_by_new_connection, [url] * READERS, [ticket] * READERS))
        assert counts == [MESSAGES] * READERS
        (narrow,) = still.tickets(columns=["id"], filters=[["id", "=", 1]])
        for _ in range(ASKED):
            assert still.get(narrow).num_rows == 1
        for stream in streams:
            assert sum(batch.num_rows for batch in stream.read_all().to_batches()) > 0
        assert rss_mib(pid, "VmHWM") < MEMORY_MIB
        assert not defects(daemon)
        still.close()
