"""RocketMQ's own client for Python while the gateway and its broker are killed: what it was answered holds."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
from collections import Counter
from pathlib import Path
from typing import IO, Any, Final

import pytest

from tests.integration.daemon_harness import PATIENCE_S, Daemon
from tests.support.gateway_process import Gateway

HERE: Final = Path(__file__).parent
TOPIC, GROUP = "orders", "billing"
FLAGS: Final = ("--invisible-min", "1s")
ACKS_A_KILL: Final = 20
KILLS: Final = 6

pytestmark = pytest.mark.skipif("TICKWHEEL_ROCKETMQ" not in os.environ, reason="runs with make rocketmq")


class Official:
    """The client's process, and what it was told."""

    def __init__(self, address: str, log: IO[bytes]) -> None:
        words = [os.environ["TICKWHEEL_ROCKETMQ"], str(HERE / "python_kill.py"), address, TOPIC, GROUP]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
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


def test_what_it_was_answered_holds(tmp_path: Path) -> None:
    with (
        Daemon(tmp_path / "data") as daemon,
        (tmp_path / "client.log").open("wb") as log,
    ):
        gateway = Gateway(daemon.unix_url, tmp_path, *FLAGS)
        address = gateway.address
        try:
            with Official(address, log) as client:
                for kill in range(KILLS):
                    client.until("acked", ACKS_A_KILL)
                    if kill % 3 != 1:
                        gateway.process.kill()
                        gateway.process.communicate()
                    if kill % 3 != 0:
                        daemon.kill()
                        daemon.start()
                    if kill % 3 != 1:
                        gateway = Gateway(daemon.unix_url, tmp_path, *FLAGS, "--listen", address)
                client.until("acked", ACKS_A_KILL)
                client.finish()
        finally:
            gateway.process.kill()
            gateway.process.communicate()
    check(client.said)


def check(said: list[dict[str, Any]]) -> None:
    acked: dict[int, int] = {}
    received: set[int] = set()
    for one in said:
        match one:
            case {"what": "received", "number": number, "attempt": attempt}:
                assert attempt <= acked.get(number, attempt), f"{number} comes again"
                received.add(number)
            case {"what": "acked", "number": number, "attempt": attempt}:
                acked[number] = attempt
    sent = {one["number"] for one in said if one["what"] == "sent"}
    assert sent <= received
    assert len(acked) >= KILLS * ACKS_A_KILL
    print(Counter(one["what"] for one in said))
