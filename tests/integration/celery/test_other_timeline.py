"""A worker's connection lives on while its broker's log becomes another one: its tags ack nothing of others."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import kombu
import pytest

import tickwheel.celery  # noqa: F401  it registers the transport
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tickwheel import sync
from tickwheel_bench.processes import free_port
from timerlog.maintenance.backup import back_up, restore

SENT = 3


def acked(client: sync.Client) -> int:
    (topic,) = [one for one in client.topics() if one.name == "tasks"]
    (group,) = topic.groups
    return group.acked


@pytest.mark.parametrize("how", ["restored", "empty"])
def test_tags_of_before_ack_nothing(tmp_path: Path, how: str) -> None:
    port = free_port()
    with (
        Daemon(tmp_path / "data", listen_port=port, ack_wait="60s") as daemon,
        kombu.Connection(daemon.url) as connection,
        connection.SimpleQueue("tasks") as queue,
    ):
        back_up(tmp_path / "data", tmp_path / "copy", round(time.time() * 1_000))
        for number in range(SENT):
            queue.put({"lost": number})
        held = [queue.get(timeout=PATIENCE_S) for _ in range(SENT)]
        daemon.kill()
        if how == "restored":
            restore(tmp_path / "copy", tmp_path / "again", 77)
        with Daemon(tmp_path / "again", listen_port=port, ack_wait="60s") as again:
            with kombu.Connection(again.url) as other, other.SimpleQueue("tasks") as others:
                for number in range(SENT):
                    others.put({"new": number})
            new: list[Any] = [queue.get(timeout=PATIENCE_S) for _ in range(SENT)]
            assert [one.payload for one in new] == [{"new": number} for number in range(SENT)]
            for message in held:
                message.ack()
            with sync.Client(again.url) as client:
                assert acked(client) == 0
                for message in new:
                    message.ack()
                end_s = time.monotonic() + PATIENCE_S
                while acked(client) < SENT:
                    assert time.monotonic() < end_s
                    time.sleep(0.02)
