"""`kill -9` of the web process, and of the broker under it, in the middle of polls, streams and settles: no message is
lost, and none is acked that its consumer did not receive and ask to be acked."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, Final

import tickwheel
from tests.support.processes.cli_harness import Shell
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tests.support.processes.web_process import Web, started
from tests.support.run.profile import amount

TOPIC: Final = "orders"
GROUP: Final = f"/v1/topics/{TOPIC}/groups/g"
LEASE: Final = "2s"
MESSAGES_A_KILL: Final = 40
MAX_DELAY_MS: Final = 1_500
SPARED: Final = 8
"""Each of so many is never acked, but given back."""
JSON: Final = {"Content-Type": "application/json"}


class Consumers:
    """One that polls and one that has a stream. What they were told, and what they asked for."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.received: set[int] = set()
        self.asked: set[int] = set()
        self.confirmed: set[int] = set()
        self.is_over = threading.Event()
        self._failed: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._go_on, args=(one,)) for one in (self._poll, self._stream)
        ]

    def __enter__(self) -> Consumers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.is_over.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        if self._failed:
            raise self._failed[0]

    def until(self, numbers: set[int], count: int) -> None:
        """Until so many numbers are there."""
        deadline = time.monotonic() + PATIENCE_S
        while len(numbers) < count:
            assert time.monotonic() < deadline, f"{len(numbers)} of {count}"
            assert not self._failed
            time.sleep(0.005)

    def _go_on(self, consume: Callable[[], None]) -> None:
        try:
            while not self.is_over.is_set():
                try:
                    consume()
                except (OSError, HTTPException):
                    time.sleep(0.02)  # it was killed, and comes again
        except BaseException as error:
            self._failed.append(error)

    def _connection(self, timeout_s: float = 10.0) -> closing[HTTPConnection]:
        return closing(HTTPConnection("127.0.0.1", self.port, timeout=timeout_s))

    def _post(self, what: str, body: Any) -> Any:
        """None: it failed, and may be tried again."""
        with self._connection() as connection:
            connection.request("POST", f"{GROUP}/{what}", json.dumps(body), JSON)
            answer = connection.getresponse()
            found = json.loads(answer.read())
            assert answer.status in (200, 503, 504), found
            if answer.status != 200:
                time.sleep(0.02)
            return found if answer.status == 200 else None

    def _poll(self) -> None:
        found = self._post("receive", {"max": 7, "wait": "1s", "lease": LEASE})
        if found and found["items"]:
            self._settle(found["items"])

    def _stream(self) -> None:
        with self._connection(1.5) as connection:  # one that is silent for longer is opened anew
            connection.request("GET", f"{GROUP}/stream?credit=5&lease={LEASE}")
            answer = connection.getresponse()
            if answer.status != 200:
                assert answer.status in (503, 504)
                return
            for item in _events(answer):
                self._settle([item])
                if self.is_over.is_set():
                    return

    def _settle(self, items: list[Any]) -> None:
        """Again and again, until it is known."""
        numbers = [item["body"] for item in items]
        self.received.update(numbers)
        acks = [(item["body"], item["receipt"]) for item in items if item["body"] % SPARED]
        nacks = [item["receipt"] for item in items if not item["body"] % SPARED]
        what = {
            "ack": [receipt for _, receipt in acks],
            "nack": [{"receipt": receipt, "delay": "300ms"} for receipt in nacks],
        }
        self.asked.update(number for number, _ in acks)
        while not self.is_over.is_set():
            try:
                found = self._post("settle", what)
            except (OSError, HTTPException):
                time.sleep(0.02)
                continue
            if found is not None:
                results = zip(acks, found["ack"], strict=True)
                self.confirmed.update(
                    number for (number, _), result in results if result in ("acked", "already_acked")
                )
                return


def _events(answer: HTTPResponse) -> Iterator[Any]:
    """The messages of a stream, to its end."""
    while line := answer.readline():
        if line.startswith(b"data: ") and b'"receipt"' in line:
            yield json.loads(line[6:])


def test_kills_of_web_and_broker(tmp_path: Path) -> None:
    kills = amount("web_kills")
    count = MESSAGES_A_KILL * (kills + 1)
    to_ack = {number for number in range(count) if number % SPARED}
    chance = random.Random(kills)
    with Daemon(tmp_path / "data") as first:
        port = int(first.url.rpartition(":")[2])
        with tickwheel.sync.Client(first.url) as client:
            client.create_topic(TOPIC)
            client.create_group(TOPIC, "g")
            delays = [chance.randrange(MAX_DELAY_MS) for _ in range(count)]
            bodies = [b"%d" % number for number in range(count)]
            headers = {"content-type": "application/json"}
            client.send_many(TOPIC, bodies, delay_ms=delays, headers=headers).raise_for_errors()
    shell = Shell(tmp_path, f"tickwheel://127.0.0.1:{port}")
    daemon = Daemon(tmp_path / "data", listen_port=port).start()
    web = started(shell)
    try:
        with Consumers(web.port) as consumers:
            for kill in range(kills):
                consumers.until(consumers.confirmed, len(to_ack) * (kill + 1) // (kills + 1))
                time.sleep(chance.random() * 0.05)
                if kill % 3 == 1:
                    daemon.kill()
                    daemon.start()
                else:
                    ended(web)
                    web = started(shell)
                    consumers.port = web.port
            consumers.until(consumers.confirmed, len(to_ack))
            consumers.until(consumers.received, count)
        with tickwheel.sync.Client(daemon.url) as client:
            states = {int(one.body): [group["state"] for group in one.groups] for one in browse(client)}
    finally:
        ended(web)
        daemon.kill()
    assert consumers.confirmed == consumers.asked == to_ack
    assert consumers.received == set(range(count)), "none is lost"
    acked = {number for number, state in states.items() if state == ["acked"]}
    assert acked == to_ack, "what was not to be acked is not"


def browse(client: tickwheel.sync.Client) -> Iterator[tickwheel.BrowsedMessage]:
    """All messages."""
    after_id = 0
    while found := client.browse(TOPIC, after_id=after_id, limit=1_000):
        yield from found
        after_id = found[-1].id


def ended(web: Web) -> None:
    web.process.kill()
    web.process.communicate(timeout=PATIENCE_S)
