"""A program of RocketMQ's own client for some language under servers that are killed, and what holds of what it was
answered.

It gets an endpoint, a topic and a group. It sends numbers until each is answered, receives and acks, and tells of each
with a line of JSON, until its standard input ends.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import tickwheel
from tests.support.clients.http_client import scrape
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tests.support.rocketmq.gateway_process import Gateway
from tickwheel_bench.processes import children_of, wait_until

TOPIC: Final = "orders"
GROUP: Final = "billing"
FLAGS: Final = ("--invisible-min", "1s")
ACKS_A_KILL: Final = 20


class Official:
    """The program's process, and what it was told."""

    def __init__(self, folder: Path, words: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                words,
                cwd=folder,
                env={**os.environ, **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self.said: list[dict[str, Any]] = []
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(b"")

    def until(self, what: str, count: int) -> None:
        """Until it has said it so many times more; with no such word, until it ends."""
        while count:
            line = self._lines.get(timeout=PATIENCE_S)
            if not line:
                assert not what, f"it ended with {self.process.wait(PATIENCE_S)}"
                return
            self.said.append(json.loads(line))
            count -= self.said[-1]["what"] == what

    def finish(self) -> None:
        """It sends no more, takes what is left, and goes."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.until("", -1)
        assert self.process.wait(PATIENCE_S) == 0

    def __enter__(self) -> Official:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self._reader.join()
        with self.process:
            pass  # closes its pipes


def kill_in_turn(
    start: Callable[[str], Official], folder: Path, kills: int, *, workers: int = 1
) -> list[dict[str, Any]]:
    """What a client was told meanwhile. One gateway is killed, its broker, both, and so on; of several workers one
    after the other. In the end what is stored is compared with it."""
    with Daemon(folder / "data") as daemon:
        flags = (*FLAGS, "--workers", str(workers))
        gateway = Gateway(daemon.unix_url, folder, *flags)
        address = gateway.address
        try:
            with start(address) as client:
                client.until("started", 1)
                for kill in range(kills):
                    client.until("acked", ACKS_A_KILL)
                    if workers > 1:
                        _kill_worker(gateway, kill)
                        continue
                    if kill % 3 != 1:
                        _end(gateway)
                    if kill % 3 != 0:
                        daemon.kill()
                        daemon.start()
                    if kill % 3 != 1:
                        gateway = Gateway(daemon.unix_url, folder, *flags, "--listen", address)
                client.until("acked", ACKS_A_KILL)
                client.finish()
        finally:
            _end(gateway)
        stored = Counter(_stored(daemon.url))
    check(client.said, stored)
    return client.said


def check(said: Sequence[Mapping[str, Any]], stored: Mapping[str, int]) -> None:
    """``stored``: how often messages are there, by RocketMQ's id of each."""
    acked: set[str] = set()
    received: set[str] = set()
    numbers: set[int] = set()
    for one in said:
        match one:
            case {"what": "received", "id": name, "number": number}:
                assert name not in acked, f"{number} comes again"
                received.add(name)
                numbers.add(number)
            case {"what": "acked", "id": name}:
                acked.add(name)
    sent = {one["number"]: one["id"] for one in said if one["what"] == "sent"}
    assert len(acked) >= ACKS_A_KILL
    assert set(sent.values()) <= received <= stored.keys()
    assert sent.keys() <= numbers
    assert set(stored.values()) == {1}, "stored twice"
    print(dict(Counter(one["what"] for one in said)), f"{len(stored)} stored")


def _kill_worker(gateway: Gateway, kill: int) -> None:
    """All of them were there, and are again."""
    base = gateway.metrics.removesuffix("/metrics")

    def is_whole() -> bool:
        found = scrape(base)
        return all(found.value("gateway_worker_ready", worker=worker) for worker in "01")

    before = sorted(children_of(gateway.process.pid))
    os.kill(before[kill % len(before)], signal.SIGKILL)
    wait_until(lambda: before != sorted(children_of(gateway.process.pid)) and is_whole(), lambda: str(before))


def _stored(url: str) -> list[str]:
    found, after_id = [], 0
    with tickwheel.sync.Client(url) as client:
        while page := client.browse(TOPIC, after_id=after_id, limit=1_000):
            found += [str(one.headers["rocketmq"]["id"]) for one in page]
            after_id = page[-1].id
    return found


def _end(gateway: Gateway) -> None:
    gateway.process.kill()
    gateway.process.communicate(timeout=PATIENCE_S)
