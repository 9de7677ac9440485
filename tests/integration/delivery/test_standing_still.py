"""A subscriber's process that stands still (SIGSTOP), beside a process that runs: what the still process has comes to
the other after a lease, it is given nothing more until it runs again, and nothing becomes a dead letter unseen."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import tickwheel
from tests.support.processes.cli_harness import PROGRAM
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tickwheel_bench.processes import wait_until

ROUND = 20
"""How many messages are sent at a time."""

SUBSCRIBES = """
import sys, tickwheel, trio
async def main():
    async with tickwheel.Client(sys.argv[1]) as client, client.subscribe("t") as subscription:
        print("there", flush=True)
        async for message in subscription:
            print(message.body.decode(), flush=True)
            await message.ack()
trio.run(main)
"""
SUBSCRIBES_ON_ASYNCIO = SUBSCRIBES.replace(", trio", ", asyncio").replace(
    "trio.run(main)", "asyncio.run(main())"
)
SUBSCRIBES_IN_THREADS = """
import sys, tickwheel
with tickwheel.sync.Client(sys.argv[1]) as client, client.subscribe("t") as subscription:
    print("there", flush=True)
    for message in subscription:
        print(message.body.decode(), flush=True)
        message.ack()
"""
FETCHES = """
import sys, tickwheel
from datetime import timedelta
with tickwheel.sync.Client(sys.argv[1]) as client:
    print("there", flush=True)
    while True:
        fetched = client.fetch("t", count=10, wait=timedelta(minutes=1))
        for message in fetched:
            print(message.body.decode(), flush=True)
        fetched.ack()
"""
WORKS = """
import tickwheel
handlers = tickwheel.Handlers()
@handlers.on("t")
async def handle(message):
    print(message.body.decode(), flush=True)
"""
PROGRAMS = {
    "subscribe": SUBSCRIBES,
    "asyncio": SUBSCRIBES_ON_ASYNCIO,
    "threads": SUBSCRIBES_IN_THREADS,
    "fetch": FETCHES,
}


class Consumer:
    """A process that consumes `t`, and writes down what it is given."""

    def __init__(self, words: list[str], folder: Path, number: int) -> None:
        self._said = folder / f"consumer-{number}.txt"
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(words, cwd=folder, stdout=said)
        wait_until(lambda: self._said.read_text().count("\n") > 0)

    def bodies(self) -> set[str]:
        """What it was given."""
        return {line for line in self._said.read_text().splitlines() if line.isdigit()}

    def send_signal(self, number: int) -> None:
        self.process.send_signal(number)


@contextmanager
def consuming(kind: str, daemon: Daemon, folder: Path) -> Iterator[tuple[Consumer, Consumer]]:
    """Two processes of a kind."""
    if kind == "work":
        (folder / "app.py").write_text(WORKS)
        words = [*PROGRAM, "--url", daemon.url, "work", "app:handlers", "--json"]
    else:
        words = [sys.executable, "-c", PROGRAMS[kind], daemon.url]
    consumers: list[Consumer] = []
    try:
        consumers.extend(Consumer(words, folder, number) for number in range(2))
        yield consumers[0], consumers[1]
    finally:
        for one in consumers:
            one.process.kill()
            one.process.wait(PATIENCE_S)


@pytest.fixture(scope="module")
def daemon_settings() -> dict[str, Any]:
    """Leases end soon."""
    return {"ack_wait": "1500ms"}


class Sender:
    """Sends numbers to `t`, and waits until they are acked."""

    def __init__(self, client: tickwheel.sync.Client) -> None:
        self._client = client
        self.sent: set[str] = set()

    def send(self, count: int = ROUND) -> set[str]:
        """So many more numbers, a message each."""
        numbers = {str(len(self.sent) + n) for n in range(count)}
        for number in numbers:
            self._client.send("t", number.encode())
        self.sent |= numbers
        return numbers

    def until_acked(self) -> None:
        """All that was sent is acked."""
        wait_until(lambda: self._client.stats().acked >= len(self.sent), lambda: str(self._client.stats()))

    @property
    def again(self) -> int:
        """How many deliveries there were beyond the first delivery of each message."""
        return self._client.stats().delivered - len(self.sent)


@pytest.mark.promise("when-a-subscriber-stands-still")
@pytest.mark.parametrize(
    "kind", ["subscribe", *(pytest.param(kind, marks=pytest.mark.ci) for kind in (*PROGRAMS, "work")[1:])]
)
def test_what_a_still_process_has_goes_to_another_and_it_is_given_no_more(
    kind: str, fresh_daemon: Daemon, tmp_path: Path
) -> None:
    with (
        tickwheel.sync.Client(fresh_daemon.url) as client,
        consuming(kind, fresh_daemon, tmp_path) as (still, running),
    ):
        client.set_topic("t", max_attempts=1)
        sender = Sender(client)
        wait_until(lambda: sender.send(1) and still.bodies() and running.bodies())
        sender.until_acked()

        before = sender.again
        still.send_signal(signal.SIGSTOP)
        while sender.again == before:  # until the still process had a message that then went to the other
            sender.send()
            sender.until_acked()
        before = sender.again
        later = sender.send()
        sender.until_acked()
        assert sender.again == before, "the process that stands still was given nothing more"
        assert later <= running.bodies()

        still.send_signal(signal.SIGCONT)
        running.send_signal(signal.SIGSTOP)
        woken = sender.send()
        sender.until_acked()
        assert woken <= still.bodies() | running.bodies()
        assert woken & still.bodies(), "the process that runs again is given messages again"
        running.send_signal(signal.SIGCONT)
        assert sender.sent <= still.bodies() | running.bodies()
        assert [topic.name for topic in client.topics()] == ["t"], "there are no dead letters"
