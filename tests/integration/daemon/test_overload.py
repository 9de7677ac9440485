"""Clients that misbehave, against the real daemon: its memory stays within bounds, others are served meanwhile, and it
needs no restart after. How late a healthy topic is meanwhile is measured by `python -m tickwheel_bench overload`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes.daemon_harness import Daemon
from tests.support.run.profile import amount
from tickwheel.sync import Client
from tickwheel_bench.load.soak import Sample, fit, soak, verdict
from tickwheel_bench.load.soak_load import Load

pytestmark = pytest.mark.alone

MIB = 1 << 20
SLOW_DISK = "from tickwheel_bench.load.slow_disk import slow_down; slow_down(0.1)"
SECONDS = amount("overload_s")
LONGEST_S = 60

# How many such clients, settings of the broker, what happens in its process first, how many refusals must be counted
# (so many that some of the clients must have read why), and how much its memory may grow at most: generously above what
# is needed, and far below what they try to take.
ABUSE: dict[str, tuple[int, dict[str, Any], str, dict[str, int], int]] = {
    "flood": (4, {"max_backlog_messages": 100_000}, SLOW_DISK, {}, 100),
    "sleep": (10, {"send_timeout": "500ms", "write_high_water_bytes": "1MiB"}, "", {"send_timeout": 1}, 150),
    "idle": (500, {"max_connections": 1_000}, "", {}, 60),
    "trickle": (
        60,
        {"handshake_timeout": "500ms", "frame_timeout": "500ms"},
        "",
        {"handshake_timeout": 61, "frame_timeout": 61},
        60,
    ),
    "storm": (20, {"max_connections_per_address": 10}, "", {"too_many_connections_from_address": 200}, 60),
}


def anon_mib(daemon: Daemon) -> float:
    """Memory of its own, without the files that it maps."""
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("RssAnon"))


def open_files(daemon: Daemon) -> int:
    return len(os.listdir(f"/proc/{daemon.process.pid}/fd"))


@pytest.mark.parametrize("name", ABUSE)
def test_others_are_served_and_memory_is_bounded(tmp_path: Path, name: str) -> None:
    count, settings, prelude, expected, most_mib = ABUSE[name]
    with Daemon(tmp_path / "data", prelude=prelude, log_level="info", **settings) as daemon:
        with Client(daemon.unix_url, timeout=60) as client, client.subscribe("healthy") as subscription:
            if name == "sleep":
                for _ in range(20):
                    client.send_many("abused", [bytes(1_000)] * 1_000).raise_for_errors()
            before_mib, most_seen_mib, served, has_begun = anon_mib(daemon), 0.0, 0, False
            command = [
                sys.executable,
                "-m",
                "tickwheel_bench.load.abuse",
                name,
                daemon.url,
                str(LONGEST_S),
                str(count),
            ]
            begun_s = time.monotonic()
            with subprocess.Popen(command, stdout=subprocess.PIPE) as abuser:
                refusals: dict[str, int] = {}
                while (
                    time.monotonic() < begun_s + SECONDS
                    or not has_begun
                    or any(refusals.get(code, 0) < least for code, least in expected.items())
                ):
                    assert abuser.poll() is None, "what must be refused was not, in all that time"
                    client.send("healthy", b"%d" % served)
                    message = subscription.receive(timeout=60)
                    assert message is not None
                    assert message.body == b"%d" % served
                    message.ack()
                    served += 1
                    stats = client.stats()
                    refusals = stats.refusals
                    # Each of them is connected or was refused; besides there is the client of this test.
                    has_begun = has_begun or stats.connections + sum(refusals.values()) > min(count, 10)
                    most_seen_mib = max(most_seen_mib, anon_mib(daemon))
                    time.sleep(0.01)  # what is measured is the broker, and not how fast this turns
                abuser.terminate()
                assert abuser.stdout is not None
                said = json.loads(abuser.stdout.read())
            assert abuser.returncode == 0
            assert said["connections"] >= min(count, 10)
            assert served > 0
            assert most_seen_mib - before_mib < most_mib
            assert expected.keys() - {"send_timeout"} <= said.keys(), "who is turned away is told why"
        with Client(daemon.url) as newcomer:
            newcomer.send("healthy", b"afterwards")
        assert not [event for event in daemon.events() if event["level"] == "error"]


def test_a_short_soak(tmp_path: Path) -> None:
    """As `make endurance`, for a moment. Growth by the hour means nothing yet; what is left after it must be little."""
    report = soak(tmp_path / "data", SECONDS * 4 / 3_600, rate=500, seed=7)
    figures, samples = report["figures"], report["samples"]
    assert report["wrong"] == []
    assert figures["messages"] > 500
    assert samples[-1]["anon_bytes"] - samples[len(samples) // 4]["anon_bytes"] < 20 * MIB
    assert samples[-1]["files"] < 100


def test_a_soak_notices_what_grows() -> None:
    def samples(anon_step: int, files_step: float) -> list[Sample]:
        return [
            Sample(
                at_s=n * 10.0,
                anon_bytes=(50 << 20) + n * anon_step,
                file_bytes=0,
                files=int(20 + n * files_step),
                disk_bytes=0,
                sent=n * 100,
                delivered=n * 100,
                late_p50_ms=1.0,
                late_p99_ms=2.0,
            )
            for n in range(100)
        ]

    load = Load("tickwheel://127.0.0.1:1", 1, 1)
    assert verdict(fit(samples(0, 0)), load) == []
    assert Counter(line.split()[0] for line in verdict(fit(samples(MIB // 2, 0.5)), load)) == {
        "memory": 1,
        "open": 1,
    }
    load.errors.append("send: disk_full: no")
    assert len(verdict(fit(samples(0, 0)), load)) == 1
