"""Programs that somebody writes after the README alone: what means something else is refused with advice."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import tickwheel.sync
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tests.support.processes.web_process import Web

PYTHON = """\
import sys, time, tickwheel.sync
with tickwheel.sync.Client(sys.argv[1]) as client:
    client.send("first-python", b"call Ada", deliver_at={moment})
"""


def messages_in(daemon: Daemon, topic: str) -> int:
    with tickwheel.sync.Client(daemon.url) as client:
        return sum(one.topic == topic for one in client.topics())


@pytest.mark.parametrize(
    "words", [["-d"], ["-F"], ["-H", "Content-Type:", "-d"]], ids=["form", "multipart", "none"]
)
def test_curl_is_told_to_say_the_content_type(web: Web, daemon: Daemon, words: list[str]) -> None:
    target = f"{web.url}/v1/topics/first-curl/messages"
    given = "text=hi" if words == ["-F"] else '{"text": "hi", "delay": "1h"}'
    done = subprocess.run(
        ["curl", "-sS", *words, given, target], capture_output=True, timeout=PATIENCE_S, check=True
    )
    refused = json.loads(done.stdout)
    assert (refused["status"], refused["code"]) == (415, "unsupported_media_type")
    assert "curl: -H 'Content-Type: application/json'" in refused["detail"]
    assert "application/octet-stream" in refused["detail"]
    assert messages_in(daemon, "first-curl") == 0


@pytest.mark.parametrize("moment", ["int(time.time()) + 3600", "time.time() + 3600"])
def test_seconds_are_told_to_be_a_datetime(daemon: Daemon, moment: str) -> None:
    program = PYTHON.format(moment=moment)
    done = subprocess.run(
        [sys.executable, "-c", program, daemon.url],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode != 0
    assert "BadTime" in done.stderr
    assert "Use an aware datetime" in done.stderr
    assert messages_in(daemon, "first-python") == 0
