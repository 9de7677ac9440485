"""What nodes do when Kafka has lost their log, or part of it, or may lose it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

import tickwheel
from tests.support.clients.waiting import until
from tests.unit.broker.node.test_node_process import OneNode, run
from tickwheel.errors import TickwheelError
from tickwheel_broker.exit_codes import exit_code_for
from tickwheel_broker.node import process as node_process
from tickwheel_broker.sharedlog import log_loss
from tickwheel_broker.sharedlog.log_loss import LogLost
from tickwheel_simulation.cluster.partition import Partition
from timerlog.replication.record import Kind, unpack


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (Partition.delete, "The topic of this cluster in Kafka was deleted"),
        (Partition.begin_anew, r"has read the cluster's log up to record \d+, and Kafka has it up to -?\d+"),
    ],
)
def test_a_lost_log_ends_all_nodes_with_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Callable[[Partition], None], words: str
) -> None:
    monkeypatch.setattr(log_loss, "LOST_S", 1.5)

    async def scenario(nodes: list[OneNode], log: Partition) -> None:
        one, two = nodes
        one.assigner.choose(True)
        await one.wait_role("owner")
        await two.wait_role("follower")
        harm(log)
        for node in nodes:
            await node.ended.wait()
            assert isinstance(node.error, LogLost)
            assert re.search(words, str(node.error))
            assert "cluster init URL --from" in node.error.advice
        if not log.is_deleted:  # what stands there now is another log, in which no term of this one begins
            heads = [unpack(record) or pytest.fail("it is a record") for record in log.records]
            assert Kind.FENCE not in {head.kind for head, _ in heads}

    run(tmp_path, scenario)


@pytest.mark.parametrize("is_all_deleted", [False, True])
def test_a_complete_replica_starts_where_kafka_has_deleted_the_log(
    tmp_path: Path, is_all_deleted: bool
) -> None:
    """As by a retention that somebody has set. A replica that is not complete says what is wrong."""

    async def scenario(nodes: list[OneNode], log: Partition) -> None:
        one, two, old = nodes
        await old.wait_role("follower")
        await old.stop()
        one.assigner.choose(True)
        await one.wait_role("owner")
        async with tickwheel.Client(one.url) as client:
            await client.send_many("t", [b"x" * 1_000] * 10, keys=[f"{number}" for number in range(10)])
        one.assigner.choose(False)
        for node in (one, two):
            await node.wait_role("follower")
            await node.stop()
        log.first_offset = len(log.records) - (0 if is_all_deleted else 1)
        for node in (one, two):
            node.ended = trio.Event()
            await node.start()
        two.assigner.choose(True)
        await two.wait_role("owner")
        await one.wait_role("follower")
        async with tickwheel.Client(two.url) as client:
            found = [await client.message("t", key=f"{number}") for number in range(10)]
            assert all(message is not None for message in found)
            await client.send("t", b"y", key="y")
        with pytest.raises(TickwheelError, match="begins in the middle") as incomplete:
            await old.serve()
        assert old.directory.joinpath("replica").exists(), "it keeps what it has"
        shutil.rmtree(old.directory)
        two.assigner.choose(False)
        with pytest.raises(TickwheelError, match="cannot be read from offset") as empty:
            await old.serve()
        for raised in (incomplete, empty):
            assert exit_code_for(raised.value.code) == 65
            assert "cluster status says which differ" in raised.value.advice

    run(tmp_path, scenario, nodes=3)


def test_settings_of_the_topic_that_endanger_the_log_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At the start, and when they change."""
    monkeypatch.setattr(node_process, "SETTINGS_S", 0.05)

    async def scenario(nodes: list[OneNode], log: Partition) -> None:
        (one,) = nodes

        async def wait_codes(codes: list[str]) -> dict[str, Any]:
            while True:
                found = await one.wait_role("owner")
                if [reason["code"] for reason in found["reasons"]] == codes:
                    return found
                await trio.sleep(0.02)

        one.assigner.choose(True)
        await wait_codes([])
        assert "tickwheel_cluster_log_dangers 0.0" in (await one.get("/metrics")).text
        one.dangers = ["retention.ms is 1000, not -1"]
        found = await wait_codes(["log_not_safe"])  # and it serves
        assert "retention.ms is 1000, not -1" in found["reasons"][0]["text"]
        assert "tickwheel_cluster_log_dangers 1.0" in (await one.get("/metrics")).text
        one.dangers = []
        await wait_codes([])
        told = [record.message for record in caplog.records if "settings" in record.message]
        assert len(told) == 2, "once each"

    caplog.set_level("INFO", "tickwheel.broker.cluster")
    run(tmp_path, scenario, nodes=1)


def test_a_twin_that_follows_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It writes nothing that this node could hear."""
    monkeypatch.setattr(node_process, "SETTINGS_S", 0.05)

    async def scenario(nodes: list[OneNode], log: Partition) -> None:
        (one,) = nodes
        await one.wait_role("follower")
        for one.twins, words in ((1, "another process follows"), (0, "no other process follows")):
            await until(lambda words=words: any(words in record.message for record in caplog.records))  # type: ignore[misc]

    caplog.set_level("INFO", "tickwheel.broker.cluster")
    run(tmp_path, scenario, nodes=1)
    told = [record for record in caplog.records if "number of this node" in record.message]
    assert [record.levelname for record in told] == ["ERROR", "INFO"], "once each"
