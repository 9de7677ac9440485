"""What a dead letter holds, and what happens to those that cannot be written."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from tests.support.native.driver import NOW_MS, pump
from tests.support.native.frames import delivered
from tests.support.native.native_frames import HEADERS, Item, SendFrame
from tests.support.stores.full_disk import full_disk
from tests.support.stores.reader import Reader
from tickwheel.protocol.limits import dead_topic as dead_topic_by_protocol
from timerlog.commitlog.records import MessageView, Outbound, TopicRecord
from timerlog.engine.commit import Commit
from timerlog.engine.select import Filter
from timerlog.errors import BadName, DiskFull
from timerlog.layout import MAX_HEADERS_BYTES
from timerlog.names import DEAD_HEADER, dead_topic
from timerlog.settings import TopicSettings
from timerlog.store import Store


def letters(store: Store, topic: str = "t.dead") -> list[MessageView]:
    """The dead letters, oldest first."""
    (found,) = store.select.matching(store.topics.record(topic).topic_id, Filter(), NOW_MS)
    return [MessageView.read(store.tables.native, message_id) for message_id in found.tolist()]


def story_of(letter: MessageView) -> dict[str, Any]:
    return msgspec.msgpack.decode(letter.headers)[DEAD_HEADER]


def ready(store: Store, *messages: Outbound, name: str = "t", **settings: int) -> int:
    """A topic with messages that are due."""
    topic = store.topics.create(name, settings, 0, NOW_MS).topic_id
    store.commit.write_internal(topic, messages, [], NOW_MS)
    pump(store, NOW_MS)
    return topic


def test_a_delivery_that_nobody_looked_at_does_not_count(store: Store) -> None:
    reader = Reader(store, ready(store, Outbound(b"body"), max_attempts=2))
    reader.fetch()
    assert reader.nack((1, 1), delay_ms=0, error="first") == ["nacked"]
    reader.fetch()
    assert store.settle.return_unseen(reader.group, reader.holder, [1], [2], NOW_MS) == 1
    assert reader.fetch() == [(1, 3)]
    assert reader.nack((1, 3), error="second") == ["dead"]
    story = story_of(letters(store)[0])
    assert story["attempts"] == 2
    assert [(attempt, error) for attempt, _, error in story["history"]] == [(1, "first"), (2, "second")]


def test_a_letter_is_the_message_and_what_happened_to_it(store: Store) -> None:
    headers = msgspec.msgpack.encode({"own": 1})
    topic = ready(store, Outbound(b"body", b"key", headers, b"order", 50), max_attempts=3)
    reader = Reader(store, topic)
    reader.fetch()
    reader.nack((1, 1), error="first")
    reader.fetch()
    later_ms = NOW_MS + 8_000
    pump(store, later_ms)  # the second attempt was not answered
    assert reader.fetch(now_ms=later_ms) == [(1, 3)]
    assert reader.nack((1, 3), delay_ms=60_000, error="third", now_ms=later_ms) == ["dead"]
    (letter,) = letters(store)
    assert (letter.body, letter.order, letter.priority) == (b"body", b"order", 50)
    assert msgspec.msgpack.decode(letter.headers)["own"] == 1
    assert story_of(letter) == {
        "topic": "t",
        "group": "g",
        "id": 1,
        "key": "key",
        "attempts": 3,
        "error": "third",
        "deliver_at_ms": NOW_MS,
        "created_ms": NOW_MS,
        "dead_ms": later_ms,
        "history": [[1, NOW_MS, "first"], [3, later_ms, "third"]],
    }
    assert len(store.tables.failures) == 0, "who is done with a message needs its history no more"


def test_attempts_from_before_they_were_counted_again_have_number_0(store: Store) -> None:
    reader = Reader(store, ready(store, Outbound(b"x"), max_attempts=2))
    reader.fetch()
    reader.nack((1, 1), error="before")
    store.change.redeliver([1], None, None, NOW_MS)
    reader.fetch()
    store.change.redeliver([1], None, None, NOW_MS)  # held now, so its attempts are counted from 0 again
    for epoch in (3, 4):
        assert reader.fetch() == [(1, epoch)]
        reader.nack((1, epoch), error=f"epoch {epoch}")
    story = story_of(letters(store)[0])
    assert (story["attempts"], [attempt for attempt, _, _ in story["history"]]) == (2, [0, 1, 2])


def test_the_letter_of_a_shard_names_its_topic(store: Store) -> None:
    topic = store.topics.create("t", {"max_attempts": 1}, 2, NOW_MS).topic_id
    store.commit.write_internal(topic, [Outbound(b"x", b"key")], [], NOW_MS)
    pump(store, NOW_MS)
    reader = Reader(store, topic)
    held = [receipt for part in store.groups.parts_of(reader.group) for receipt in reader.fetch(part=part)]
    assert reader.nack(*held) == ["dead"]
    assert story_of(letters(store)[0])["topic"] == "t"


def test_a_story_that_does_not_fit_is_shortened(store: Store) -> None:
    full = msgspec.msgpack.encode({"own": "x" * (MAX_HEADERS_BYTES - 100)})
    half = msgspec.msgpack.encode({"own": "x" * (MAX_HEADERS_BYTES - 1_000)})
    messages = (Outbound(b"0", headers=full), Outbound(b"1", headers=half), Outbound(b"2", headers=b"\xc1"))
    reader = Reader(store, ready(store, *messages, max_attempts=1))
    while held := reader.fetch():  # two of them are more than one frame takes
        reader.nack(*held, error="e" * 500)
    fields = [msgspec.msgpack.decode(letter.headers) for letter in letters(store)]
    assert [sorted(one) for one in fields] == [[DEAD_HEADER], ["own", DEAD_HEADER], [DEAD_HEADER]]
    assert ["history" in one[DEAD_HEADER] for one in fields] == [False, False, True]
    assert [one[DEAD_HEADER]["id"] for one in fields] == [1, 2, 3]


def test_a_topics_name_has_room_for_that_of_its_letters(store: Store) -> None:
    longest = "n" * 123
    reader = Reader(store, ready(store, Outbound(b"x"), name=longest, max_attempts=1), "g" * 128)
    reader.fetch()
    assert reader.nack((1, 1)) == ["dead"]
    assert len(letters(store, longest + ".dead")) == 1
    for make in (
        lambda name: store.topics.create(name, {}, 0, NOW_MS),
        lambda name: store.topics.open(name, NOW_MS),
    ):
        with pytest.raises(BadName, match="123"):
            make("n" * 124)
    store.topics.create("m" * 123 + ".dead", {}, 0, NOW_MS)


def test_topics_with_longer_names_of_versions_before_share_their_letters_topic(store: Store) -> None:
    names = ["n" * 127 + "1", "n" * 127 + "2"]
    for name in names:
        record = TopicRecord(store.tables.last_topic_id + 1, name, NOW_MS, TopicSettings(max_attempts=1))
        store.topics._write([record])
        store.commit.write_internal(record.topic_id, [Outbound(name[-1].encode())], [], NOW_MS)
        pump(store, NOW_MS)
        reader = Reader(store, record.topic_id)
        assert reader.nack(*reader.fetch()) == ["dead"]
    shared = dead_topic(names[0])
    assert shared == dead_topic_by_protocol(names[1]) == "n" * 123 + ".dead"
    ids = [
        letter_id
        for part in store.select.matching(store.topics.record(shared).topic_id, Filter(), NOW_MS)
        for letter_id in part
    ]
    assert store.replay_dead.replay(names[1], ids, NOW_MS) == {"not_found": 1, "replayed": 1}
    assert store.replay_dead.replay(names[0], ids, NOW_MS) == {"not_found": 1, "replayed": 1}


def replay(store: Store, topic: str = "t") -> dict[str, int]:
    """All letters of a topic are replayed."""
    (ids,) = store.select.matching(store.topics.record(f"{topic}.dead").topic_id, Filter(), NOW_MS)
    return store.replay_dead.replay(topic, ids.tolist(), NOW_MS)


def test_what_is_not_dead_any_more_is_not_sent_again(store: Store) -> None:
    messages = [Outbound(b"alive", b"alive"), Outbound(b"done", b"done"), Outbound(b"dead", b"dead")]
    topic = ready(store, *messages, max_attempts=1)
    works, fails = Reader(store, topic, "works"), Reader(store, topic, "fails")
    works.ack(*works.fetch())
    assert fails.nack(*fails.fetch()) == ["dead"] * 3
    assert store.change.redeliver([1, 2], "fails", None, NOW_MS, acked=True) == ["redelivered"] * 2
    assert fails.fetch(1) == [(1, 2)]
    ((second, epoch),) = fails.fetch()
    assert (second, fails.ack((second, epoch))) == (2, (1, []))
    assert replay(store) == {"not_dead": 2, "replayed": 1}
    pump(store, NOW_MS)
    assert letters(store) == []
    assert works.fetch() == []
    assert [message_id for message_id, _ in fails.fetch()] == [3], (
        "what was dead comes back, and to its group alone"
    )
    assert fails.ack((1, 2)) == (1, []), "who has the message keeps it"


def test_a_story_that_a_producer_made_up_brings_nothing_back(store: Store) -> None:
    """Otherwise who may send to one topic could have messages of another delivered again."""
    reader = Reader(store, ready(store, Outbound(b"theirs"), max_attempts=1))
    reader.fetch()
    assert reader.nack((1, 1), error="no") == ["dead"]
    letter = letters(store)[0]
    made_up = msgspec.msgpack.encode({DEAD_HEADER: {**story_of(letter), "topic": "mine"}})
    ready(store, Outbound(b"x", headers=made_up), name="mine")
    ready(store, Outbound(b"x", headers=made_up), name="mine.dead")
    ready(store, Outbound(b"x", headers=letter.headers), name="elsewhere")
    forged = [3, 4, 5]
    assert store.replay_dead.replay("mine", forged, NOW_MS) == {"not_found": 3}
    assert store.replay_dead.replay("t", forged, NOW_MS) == {"not_found": 3}
    assert reader.fetch() == []
    assert store.replay_dead.replay("t", [2], NOW_MS) == {"replayed": 1}


@pytest.mark.parametrize(
    "told",
    [
        *[
            {"id": float("inf")},
            {"id": float("nan")},
            {"id": "x"},
            {"id": None},
            {"id": [1]},
            {"key": "k" * 1_000},
        ],
        *[{"topic": 5}, {"topic": None}],
    ],
)
def test_a_story_that_says_what_cannot_be_keeps_no_other_letter_back(
    store: Store, told: dict[str, Any]
) -> None:
    reader = Reader(store, ready(store, Outbound(b"x"), max_attempts=1))
    reader.fetch()
    assert reader.nack((1, 1), error="no") == ["dead"]
    gone = {**story_of(letters(store)[0]), "id": 1 << 40}
    strange = msgspec.msgpack.encode({DEAD_HEADER: {**gone, **told}})
    store.commit.write_internal(
        store.topics.record("t.dead").topic_id, [Outbound(b"made up", headers=strange)], [], NOW_MS
    )
    pump(store, NOW_MS)
    assert store.replay_dead.replay("t", [3, 2], NOW_MS) == {"not_found": 1, "replayed": 1}


def test_the_letter_of_a_message_that_was_stopped_stays(store: Store) -> None:
    topic = ready(store, Outbound(b"x", b"key"), max_attempts=1)
    other, fails = Reader(store, topic, "other"), Reader(store, topic, "fails")
    other.fetch()
    assert fails.nack(*fails.fetch()) == ["dead"]
    assert store.change.cancel([1], NOW_MS, stop=True) == ["stopped"]
    assert replay(store) == {"ended": 1}
    assert len(letters(store)) == 1
    assert store.tables.next_id == 3, "nothing was sent"


def test_only_what_was_purged_is_sent_again_with_its_key_if_that_is_free(store: Store) -> None:
    topic = ready(store, Outbound(b"1", b"one"), Outbound(b"2", b"two"), max_attempts=1, purge_after_ms=0)
    reader = Reader(store, topic)
    assert reader.nack(*reader.fetch()) == ["dead"] * 2
    store.purge(NOW_MS + 1)
    taken = store.commit.write_internal(topic, [Outbound(b"new", b"two")], [], NOW_MS)
    pump(store, NOW_MS)
    assert replay(store) == {"sent_again": 2}
    pump(store, NOW_MS)
    first, second = store.select.find("t", ["one", "two"])
    assert MessageView.read(store.tables.native, first).body == b"1"
    assert second == taken
    assert len(reader.fetch()) == 3


def test_a_dead_letter_that_nobody_takes_stays(store: Store) -> None:
    reader = Reader(store, ready(store, Outbound(b"x"), name="t.dead", max_attempts=1))
    reader.fetch()
    assert reader.nack((1, 1)) == ["nacked"]
    assert reader.fetch() == [(1, 2)]


def test_bury_returns_what_it_could_not_move(store: Store) -> None:
    messages = [Outbound(b"x" * count, b"%d" % count) for count in range(1, 8)]
    topic = ready(store, *messages, Outbound(b"last"))
    store.topics.create("t.dead", {"max_body_bytes": 5}, 0, NOW_MS)
    reader = Reader(store, topic)
    reader.fetch()
    seqs = np.arange(8, dtype=np.uint64)
    assert store.dead_letters.bury(reader.group, seqs[:0], NOW_MS).tolist() == []
    assert store.dead_letters.bury(reader.group, seqs[:7], NOW_MS).tolist() == [5, 6]
    assert [letter.body for letter in letters(store)] == [b"x" * count for count in range(1, 6)]
    with full_disk(store):
        assert store.dead_letters.bury(reader.group, seqs[7:], NOW_MS).tolist() == [7]
    refused, full = store.dead_letters.take_unburied()
    assert (refused.error.code, refused.messages) == ("transaction_refused", 2)
    assert isinstance(full.error, DiskFull)
    assert full.messages == 1
    assert reader.ack((6, 1), (7, 1), (8, 1)) == (3, []), "what could not be moved is held as before"


def test_letters_of_many_bytes_are_committed_in_parts(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = store.topics.create("t", {"max_attempts": 1}, 0, NOW_MS).topic_id
    body, count = bytes(store.settings.max_body_bytes), 60
    for _ in range(count // 3):
        store.commit.write_internal(topic, [Outbound(body)] * 3, [], NOW_MS)
    pump(store, NOW_MS)
    reader = Reader(store, topic)
    held: list[tuple[int, int]] = []
    while got := reader.fetch():
        held += got
    assert len(held) == count
    commits: list[int] = []
    commit = Commit.write_internal

    def watch(self: Commit, topic_id: int, messages: list[Outbound], *args: Any) -> int:
        commits.append(len(messages))
        return commit(self, topic_id, messages, *args)

    monkeypatch.setattr(Commit, "write_internal", watch)
    assert reader.nack(*held, error="e" * 500) == ["dead"] * count
    assert sum(commits) == count, "none was tried in vain: no more than fit into a frame were put together"
    assert 1 < max(commits) <= 3


@pytest.mark.parametrize(
    "headers",
    [b"\xc1", b"\x81\xa1\xff\x01", b"\x81\xa1k\xa1\xff", b"\x81\xa1k" + b"\x91" * 8_000],
    ids=["no MessagePack", "a name that is no text", "a value that is no text", "nested too deeply"],
)
def test_headers_that_nobody_can_read_do_not_keep_a_message_from_becoming_a_letter(
    store: Store, headers: bytes
) -> None:
    topic_id = store.topics.create("strange", {"max_attempts": 1}, 0, NOW_MS).topic_id
    group_id = store.groups.open(topic_id, "g", NOW_MS)
    frame = SendFrame(topic_id, [Item(b"body", headers=headers)], HEADERS).encode()
    assert store.produce.ingest(frame, NOW_MS).messages == 1
    pump(store, NOW_MS)
    got = store.deliver.fetch(group_id, store.holders.acquire(group_id), 1, 1, 1 << 20, NOW_MS)
    assert got
    ids, epochs = delivered(got)
    assert store.settle.nack(group_id, ids, epochs, None, "no", NOW_MS) == ["dead"]
