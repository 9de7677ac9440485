"""Nodes that follow know where clients reach the owner: it says so in what it writes to the shared log."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
import trio

from tests.support.clients.waiting import until
from tests.support.cluster.replicas import GENESIS, SETTINGS
from tests.support.native.driver import NOW_MS
from tickwheel_broker.clock.clock import TrioClock
from tickwheel_broker.sharedlog.known_owner import Comparison, KnownOwner, OwnWords
from tickwheel_broker.sharedlog.node import HOUSEKEEPING_S, Node, replica_opener
from tickwheel_broker.sharedlog.replicator import BEAT_S, Replicator
from tickwheel_simulation.cluster.assigner import Assigner
from tickwheel_simulation.cluster.partition import Line, Partition
from timerlog.files.disk import FileDisk
from timerlog.replication.follower import Follower
from timerlog.replication.genesis import genesis_record
from timerlog.replication.record import Kind, Writer, fence, unpack
from timerlog.replication.rule import Reader, Said
from timerlog.store import Store


class Hearing:
    """A reader, and what it has heard."""

    def __init__(self) -> None:
        self.reader, self.known = Reader(SETTINGS.segment_bytes), KnownOwner()

    def take(self, record: bytes) -> str:
        found, said = unpack(record), Said.PASSED_OVER
        if found is not None:
            said = self.reader.take(*found).said
            self.known.hear(said, found[1])
        return self.known.url


def test_fences_and_beats_tell_and_those_of_former_owners_do_not() -> None:
    one = Hearing()
    assert one.take(fence(1, 1, NOW_MS, b"tickwheel://one")) == "tickwheel://one"
    former = Writer(1, 1, 0)
    assert one.take(former.beat(NOW_MS, b"tickwheel://one-b")) == "tickwheel://one-b"
    assert one.take(b"something else") == "tickwheel://one-b"
    assert one.take(fence(2, 2, NOW_MS, b"tickwheel://two")) == "tickwheel://two"
    assert one.take(former.beat(NOW_MS, b"tickwheel://one")) == "tickwheel://two"
    assert one.take(fence(3, 2, NOW_MS, b"tickwheel://three")) == "tickwheel://two"
    assert one.take(former.data([(64, b"bytes")], NOW_MS)[0]) == "tickwheel://two"
    assert one.take(fence(3, 3, NOW_MS)) == ""  # one that has no URL for clients
    assert one.take(fence(4, 4, NOW_MS, b"x" * 5_000)) == ""
    assert one.take(fence(4, 5, NOW_MS, b"\xff")) == "\N{REPLACEMENT CHARACTER}"


def test_words_of_a_later_version_are_passed_over() -> None:
    one = Hearing()
    assert one.take(fence(1, 1, NOW_MS, OwnWords("tickwheel://one", "2025b").now())) == "tickwheel://one"
    assert one.known.zones == "2025b"
    assert one.take(fence(2, 2, NOW_MS, b"tickwheel://two\nmood=good\nzones=2026a\n")) == "tickwheel://two"
    assert one.known.zones == "2026a"
    assert one.take(fence(3, 3, NOW_MS, OwnWords("", "2025b").now())) == ""
    assert one.known.zones == "2025b"
    assert one.take(fence(4, 4, NOW_MS, OwnWords("tickwheel://two").now())) == "tickwheel://two"
    assert one.known.zones == ""


def test_other_tokens_of_the_owner_are_told_once_and_when_they_are_equal_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "tickwheel.broker.cluster")
    here, owner = ["a"], KnownOwner()
    comparison = Comparison(OwnWords("tickwheel://one", "2025b", tokens=lambda: here[0]))
    told: list[tuple[str, str]] = []
    for ours, theirs in (
        ("a", ""),
        ("a", "a"),
        ("a", "b"),
        ("a", "b"),
        ("b", "b"),
        ("b", "c"),
        ("b", ""),
        ("", "c"),
    ):
        here[0], owner.tokens = ours, theirs
        caplog.clear()
        comparison.look(owner)
        told += [(one.levelname, one.getMessage().split(":")[0]) for one in caplog.records]
    other = ("WARNING", "the owner has other tokens")
    assert told == [other, ("INFO", "the owner has the same tokens again"), other]


async def test_all_nodes_know_the_owner_through_every_change(
    tmp_path: Path, autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    async with trio.open_nursery() as nursery:
        log = Partition(random.Random(1))
        log.put(genesis_record(GENESIS, 0))
        clock = TrioClock(NOW_MS)
        assigners = [Assigner() for _ in range(2)]
        tokens = ["same", "same"]

        def node(number: int) -> Node:
            directory = tmp_path / f"node-{number}"
            directory.mkdir(exist_ok=True)
            disk = FileDisk(directory)

            def open_store(follower: Follower) -> Store:
                return Store.of(follower.promote(), disk, SETTINGS, clock.now_ms())

            async def serve(
                _store: Store, _replicator: Replicator, until: Callable[[], Awaitable[None]]
            ) -> None:
                await until()

            line, url = Line(log, nursery), f"tickwheel://node-{number}:7411"
            opener = replica_opener(directory, disk, SETTINGS, clock)
            own = OwnWords(url, ("2025b", "2026a")[number], tokens=lambda: tokens[number])
            return Node(
                number=number,
                shared=line,
                membership=assigners[number],
                clock=clock,
                open_replica=opener,
                open_store=open_store,
                serve=serve,
                own=own,
            )

        nodes = [node(0), node(1)]
        for one in nodes:
            nursery.start_soon(one.run)
        for owner in (0, 1, 0):
            for number, assigner in enumerate(assigners):
                assigner.choose(number == owner)
            await until(partial(_all_know, nodes, f"tickwheel://node-{owner}:7411"))
            await trio.sleep(2 * HOUSEKEEPING_S)
        tokens[0] = "other"
        await until(lambda: nodes[1].known_owner.tokens == "other")
        await trio.sleep(2 * BEAT_S)
        nursery.cancel_scope.cancel()
    beats = [found for record in log.records if (found := unpack(record)) and found[0].kind is Kind.BEAT]
    assert bytes(beats[-1][1]) == b"tickwheel://node-0:7411\nzones=2025b\ntokens=other"
    warned = [one for one in caplog.records if "rules of the time zones" in one.getMessage()]
    assert len(warned) == 2, "each node when it first hears of another version"
    assert len([one for one in caplog.records if "other tokens" in one.getMessage()]) == 1


def _all_know(nodes: list[Node], url: str) -> bool:
    return all(node.known_owner.url == url for node in nodes)
