"""Answers that are remembered: found, forgotten in order, the same after a replay, and never without their change."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.native.driver import MIB, NOW_MS, SMALL, pump
from tests.support.native.frames import send
from tests.support.stores.purging import LATER_MS, mixed
from timerlog.commitlog.records import AnsweredRecord, Outbound, send_payload
from timerlog.layout import RecordType
from timerlog.maintenance.backup import back_up, restore
from timerlog.store import Store, StoreSettings
from timerlog.tables.answers import WHOLE, Answering, AnswersBase, RememberedAnswers, RequestName
from timerlog.tables.tables import remove_derived_files

CANCEL_OK = 31
SETTINGS = StoreSettings(segment_bytes=8 * MIB, max_frame_bytes=64 * 1024, max_body_bytes=16 * 1024)


def record(
    session: int,
    number: int,
    at: int,
    *,
    unanswered_from: int | None = None,
    part: int = WHOLE,
    content: bytes = b"x",
) -> AnsweredRecord:
    waits_from = number if unanswered_from is None else unanswered_from
    return AnsweredRecord(
        session=session,
        number=number,
        unanswered_from=waits_from,
        at=at,
        frame_type=CANCEL_OK,
        part=part,
        content=content,
        is_packed=False,
    )


def known(answers: RememberedAnswers, session: int) -> list[int]:
    return [number for number in range(100) if answers.find(session, number) is not None]


def test_an_answer_is_kept_until_the_client_has_it() -> None:
    answers = RememberedAnswers()
    answers.add(record(1, 1, 100))
    answers.add(record(1, 2, 200, unanswered_from=1))
    answers.add(record(1, 4, 300, unanswered_from=2))
    assert known(answers, 1) == [2, 4]
    assert answers.count == 2
    assert answers.forgotten_position == 0, "what the client has is not missed"
    assert answers.is_surely_undone(1, 3, 90), "an unknown request of a known session was not done"
    assert not answers.is_surely_undone(1, 1, 90), "this one may have been"


@pytest.mark.promise("when-an-answer-is-lost")
def test_the_session_that_was_quiet_for_longest_goes_first() -> None:
    answers = RememberedAnswers(max_answers=3)
    answers.add(record(1, 1, 100))
    answers.add(record(1, 2, 200, unanswered_from=1))
    answers.add(record(2, 1, 300))
    answers.add(record(1, 3, 400, unanswered_from=1))
    assert (known(answers, 1), known(answers, 2)) == ([1, 2, 3], [])
    assert answers.forgotten_position == 300
    assert not answers.is_surely_undone(2, 1, 250)
    assert not answers.is_surely_undone(2, 1, 300)
    assert answers.is_surely_undone(2, 1, 301)


def test_a_session_that_comes_back_does_not_know_what_was_forgotten_of_it() -> None:
    answers = RememberedAnswers(max_answers=1)
    answers.add(record(1, 1, 100))
    answers.add(record(2, 1, 200))
    answers.add(record(1, 2, 300, unanswered_from=1))
    assert not answers.is_surely_undone(1, 1, 90)
    assert answers.is_surely_undone(1, 3, 250), "made after everything that was forgotten then"


def test_one_session_alone_forgets_its_oldest() -> None:
    answers = RememberedAnswers(max_answers=2)
    for number in range(1, 5):
        answers.add(record(1, number, 100 * number, unanswered_from=1))
    assert known(answers, 1) == [3, 4]
    assert not answers.is_surely_undone(1, 2, 90)
    assert answers.is_surely_undone(1, 9, 210)


def test_they_are_bounded_in_bytes() -> None:
    answers = RememberedAnswers(segment_bytes=16 * 10_000)
    for session in range(20):
        answers.add(record(session, 1, session, content=bytes(1_000)))
    assert answers.size_bytes <= 10_000
    assert [session for session in range(20) if known(answers, session)] == list(range(11, 20))
    assert answers.forgotten_position == 10


def test_a_dump_is_the_whole() -> None:
    answers, loaded = RememberedAnswers(), RememberedAnswers()
    answers.add(record(1 << 63, 1, 100, part=0, content=msgspec.msgpack.encode(["cancelled"])))
    answers.add(record(2, 1, 200))
    packed = msgspec.msgpack.encode(answers.dump())
    loaded.load(msgspec.msgpack.decode(packed, type=AnswersBase))
    assert msgspec.msgpack.encode(loaded.dump()) == packed
    assert (loaded.count, loaded.size_bytes) == (answers.count, answers.size_bytes)
    found = loaded.find(1 << 63, 1)
    assert found is not None
    assert found.steps() == ["cancelled"]
    assert not found.is_whole


# With a change --------------------------------------------------------------------------------------------


def answering(store: Store, number: int = 1) -> Answering:
    return Answering(RequestName(7, number, 1), CANCEL_OK, store.tables.answers.find(7, number))


def prepared_store(directory: Path) -> Store:
    """Five messages with keys; the first is in its topic, and a subscriber of `g` holds it."""
    store = Store.open(directory, SETTINGS, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    times = [NOW_MS, *[NOW_MS + 50_000] * 4]
    store.produce.ingest(send(topic, [b"x"] * 5, keys=[b"%d" % i for i in range(5)], times_ms=times), NOW_MS)
    group = store.groups.open(topic, "g", NOW_MS)
    pump(store, NOW_MS)
    store.deliver.fetch(group, store.holders.acquire(group), 1, 1, MIB, NOW_MS)
    store.sync()
    return store


def cancelled(store: Store) -> Any:
    return store.change.cancel([1, 2, 99], NOW_MS, stop=True)


def redelivered(store: Store) -> Any:
    return store.change.redeliver([1], None, NOW_MS + 1_000, NOW_MS)


def nacked(store: Store) -> Any:
    return store.settle.nack(1, [1], [1], 1_000, "no", NOW_MS)


def stored(store: Store) -> Any:
    judged = store.produce.judge(send_payload(1, [Outbound(b"new", key=b"new")]), NOW_MS)
    return store.commit.write(bytes(16), [judged], [], NOW_MS, is_answer=True)


def deleted(store: Store) -> Any:
    return store.topics.delete("t").name


CHANGES: list[Callable[[Store], Any]] = [cancelled, redelivered, nacked, stored, deleted]


@pytest.mark.promise("when-an-answer-is-lost")
@pytest.mark.parametrize("change", CHANGES)
def test_cut_at_every_byte_change_and_answer_are_there_together(
    tmp_path: Path, change: Callable[[Store], Any]
) -> None:
    store = prepared_store(tmp_path / "data")
    start, before = store.log.flush(), rows_of(store)
    asked = answering(store)
    asked.expect(lambda result: msgspec.msgpack.encode(str(result)))
    with store.writer.remembering(asked):
        result = change(store)
    end, after = store.log.flush(), rows_of(store)
    assert after != before
    state = store.look.state_hash()
    store.close(clean=False)
    segment = next((tmp_path / "data" / "commitlog").glob("*.log"))
    content = segment.read_bytes()[: end + 64]
    for cut in [*range(start, end, 7), end - 1, end]:
        shutil.rmtree(tmp_path / "cut", ignore_errors=True)
        shutil.copytree(tmp_path / "data", tmp_path / "cut")
        remove_derived_files(tmp_path / "cut")
        with open(tmp_path / "cut" / "commitlog" / segment.name, "r+b") as file:
            file.truncate(len(content))
            file.write(content[:cut] + bytes(len(content) - cut))
        again = Store.open(tmp_path / "cut", SETTINGS, NOW_MS)
        found = again.tables.answers.find(7, 1)
        assert (found is not None) == (rows_of(again) == after), f"cut at {cut}"
        assert (found is None) == (rows_of(again) == before), f"cut at {cut}"
        if found is not None and change is not deleted:
            assert msgspec.msgpack.decode(found.payload) == str(result)
        if cut == end:
            assert again.look.state_hash() == state
        again.close(clean=False)


def rows_of(store: Store) -> Any:
    """What a change may change."""
    rows = store.tables.rows[1 : store.tables.next_id]
    deliveries = [
        store.tables.groups[group].deliveries.items[["state", "epoch", "time_ms", "flags"]][:1].tolist()
        for group in store.tables.groups
    ]
    return rows[["state", "version"]].tolist(), sorted(store.tables.topic_ids), deliveries


def test_what_changed_nothing_is_remembered_too(store: Store) -> None:
    asked = answering(store)
    asked.expect(msgspec.msgpack.encode)
    with store.writer.remembering(asked):
        assert store.change.cancel([99], NOW_MS) == ["not_found"]
    store.writer.remember(asked, b"told")
    found = store.tables.answers.find(7, 1)
    assert found is not None
    assert found.payload == b"told"
    appended = store.log.appended_position
    store.writer.remember(asked, b"told")
    assert store.log.appended_position == appended, "once is enough"


def test_steps_are_found_again_and_end_in_the_whole(tmp_path: Path) -> None:
    store = prepared_store(tmp_path / "data")
    asked = answering(store)
    asked.expect_steps()
    for ids in ([2], [99], [3]):
        with store.writer.remembering(asked):
            decisions = asked.decisions
            results = store.change.cancel(ids, NOW_MS)
            if asked.decisions == decisions:
                asked.decided(results)
    store.close(clean=False)
    store = Store.open(tmp_path / "data", SETTINGS, NOW_MS)
    asked = answering(store)
    assert asked.done == [["cancelled"], ["not_found"], ["cancelled"]]
    asked.expect_steps()
    with store.writer.remembering(asked):
        store.change.cancel([4], NOW_MS)
    store.writer.remember(asked, bytes(10_000))
    found = store.tables.answers.find(7, 1)
    assert found is not None
    assert found.is_whole
    assert found.payload == bytes(10_000)
    assert found.is_packed
    assert not found.parts
    store.close(clean=False)


def test_an_error_before_the_change_forgets_what_was_decided(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = store.topics.open("t", NOW_MS)
    store.produce.ingest(send(topic, [b"x"]), NOW_MS)
    asked = answering(store)
    asked.expect(msgspec.msgpack.encode)
    monkeypatch.setattr("timerlog.engine.state.group_room_bytes", lambda records: 1 << 40)
    with pytest.raises(Exception, match="possible"), store.writer.remembering(asked):
        store.change.cancel([1], NOW_MS)
    assert not asked.has_decided
    assert store.tables.answers.find(7, 1) is None
    monkeypatch.undo()
    assert store.change.cancel([1], NOW_MS) == ["cancelled"]


def test_they_survive_a_checkpoint_a_clean_stop_and_the_loss_of_what_is_derived(tmp_path: Path) -> None:
    store = prepared_store(tmp_path / "data")
    asked = answering(store)
    asked.expect(msgspec.msgpack.encode)
    with store.writer.remembering(asked):
        store.change.cancel([2], NOW_MS)
    state = store.look.state_hash()
    store.close()
    store = Store.open(tmp_path / "data", SETTINGS, NOW_MS)
    assert store.recovery.from_checkpoint
    assert store.look.state_hash() == state
    store.close()
    remove_derived_files(tmp_path / "data")
    store = Store.open(tmp_path / "data", SETTINGS, NOW_MS)
    assert not store.recovery.from_checkpoint
    assert store.look.state_hash() == state
    assert store.tables.answers.find(7, 1) is not None
    store.close(clean=False)


def test_a_base_record_says_them(store: Store) -> None:
    asked = answering(store)
    asked.expect(msgspec.msgpack.encode)
    with store.writer.remembering(asked):
        asked.decided(["not_found"])
    store.writer.remember(asked, b"told")
    other = RememberedAnswers()
    payload = msgspec.msgpack.decode(store._base_payload())
    other.load(msgspec.convert(payload["answers"], AnswersBase, strict=False))
    assert other.find(7, 1) is not None
    assert RecordType.ANSWERED == 27


def test_they_outlive_a_purge_and_are_in_a_backup(tmp_path: Path) -> None:
    store = mixed(tmp_path / "data")
    asked = answering(store)
    store.writer.remember(asked, b"told")
    assert store.purge(LATER_MS).segments
    store.sync()
    state = store.look.state_hash()
    back_up(tmp_path / "data", tmp_path / "copy", LATER_MS)
    store.close(clean=False)
    remove_derived_files(tmp_path / "data")
    restore(tmp_path / "copy", tmp_path / "new", 77)
    for name in ("data", "new"):
        again = Store.open(tmp_path / name, SMALL, LATER_MS)
        found = again.tables.answers.find(7, 1)
        assert found is not None
        assert found.payload == b"told"
        if name == "data":
            assert again.look.state_hash() == state
        again.close(clean=False)
