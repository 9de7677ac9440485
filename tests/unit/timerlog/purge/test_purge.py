"""Purging: what is done goes, what is needed stays, and no crash changes either."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from tests.support.native.driver import MIB, NOW_MS, SMALL, pump
from tests.support.native.frames import send
from tests.support.stores.damage import flip
from tests.support.stores.purging import LATER_MS, ack, carry_out, content, fill, mixed, purge_steps, take
from timerlog.background import WaitDurable
from timerlog.errors import DamagedLog, DiskFull
from timerlog.layout import MessageState
from timerlog.purge.drop import DropTicket, FreeTicket
from timerlog.recovery import checkpoint
from timerlog.store import Store
from timerlog.tables.tables import remove_derived_files

ENDINGS = ("killed", "clean", "no derived files", "power loss")


def reopened(store: Store, directory: Path, ending: str) -> Store:
    store.close(clean=ending == "clean")
    if ending == "no derived files":
        remove_derived_files(directory)
    boot = "another" if ending == "power loss" else checkpoint.boot_id()
    with mock.patch.object(checkpoint, "boot_id", return_value=boot):
        return Store.open(directory, SMALL, LATER_MS)


def totals(store: Store) -> dict[str, int]:
    stats = store.look.stats(LATER_MS)
    return {
        name: stats[name] for name in ("messages", "scheduled", "cancelled", "delivered", "acked", "leased")
    }


def test_what_is_done_goes_and_the_rest_stays(tmp_path: Path) -> None:
    store = mixed(tmp_path)
    before, sums = content(store), totals(store)
    disk_bytes = store.log.disk_bytes()
    report = store.purge(LATER_MS)
    after = content(store)
    gone = before.keys() - after.keys()
    assert {message_id: before[message_id] for message_id in after} == after
    # What was sent last lies in the segment that is still written; it is mostly dead here, so it went as well.
    assert report.purged_messages == len(gone) > 8_000
    states = {before[message_id][1] for message_id in gone}
    assert states == {MessageState.READY, MessageState.CANCELLED}
    assert totals(store) == sums, "totals count what was purged"
    assert store.look.stats(LATER_MS)["ready"] == sum(
        view[1] == MessageState.READY for view in after.values()
    )
    assert store.log.disk_bytes() < disk_bytes
    assert store.select.find("a", ["due-100", "far-100"]) == [0, 101]
    assert store.tables.documents == {"note": b"kept"}
    store.close()


def test_a_run_that_has_not_begun_serves_all_who_ask(store: Store) -> None:
    plan, run = store.purger.start(dry_run=True), store.purger.start()
    assert store.purger.start(dry_run=True) is plan
    assert store.purger.start() is run
    assert store.purge(LATER_MS) is run.report
    assert (plan.is_done, run.is_done) == (True, True)
    assert store.purger.start() is not run


def test_what_came_due_during_a_run_goes_with_the_next(tmp_path: Path) -> None:
    """A clock that jumps between two steps of a run, and stands still then."""
    store = mixed(tmp_path)
    purger = store.purger
    purger.step(NOW_MS)
    assert purger.is_running
    before = len(content(store))
    while not purger.is_idle(LATER_MS):
        carry_out(store, purger.step(LATER_MS))
    assert before - len(content(store)) > 4_000
    store.close()


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_same_state_after_a_start(tmp_path: Path, ending: str) -> None:
    store = mixed(tmp_path)
    store.purge(LATER_MS)
    state, kept, sums = store.look.state_hash(), content(store), totals(store)
    backlogs = [group["backlog"] for topic in store.look.topics() for group in topic["groups"]]
    store = reopened(store, tmp_path, ending)
    assert store.look.state_hash() == state
    assert content(store) == kept
    assert totals(store) == sums
    assert [group["backlog"] for topic in store.look.topics() for group in topic["groups"]] == backlogs
    assert store.recovery.from_checkpoint == (ending in ("killed", "clean"))
    assert store.select.find("a", ["due-100", "far-100"]) == [0, 101]
    store.close()


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_crash_between_any_two_steps(tmp_path: Path, ending: str) -> None:
    """Stops a purge after 1, 2, 3 … of its steps, starts, and goes on in the next round from where that was."""
    store = mixed(tmp_path)
    needed = {i: v for i, v in content(store).items() if v[1] == MessageState.SCHEDULED}
    sums, stop, kinds = totals(store), 1, set()
    while True:
        steps = 0
        for pause in purge_steps(store, LATER_MS):
            kinds.add(type(pause))
            steps += 1
            if steps == stop:
                break
        finished = steps < stop
        store.log.flush()
        state = store.look.state_hash()
        store = reopened(store, tmp_path, ending)
        assert store.look.state_hash() == state
        assert totals(store) == sums
        there = content(store)
        assert {i: there[i] for i in needed} == needed
        if finished:
            break
        stop += 5
    assert kinds == {type(None), WaitDurable, DropTicket, FreeTicket}
    store.close()


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("done", ["checkpoint", "checkpoint and segment"])
def test_a_crash_inside_of_dropping_a_segment(tmp_path: Path, ending: str, done: str) -> None:
    store = mixed(tmp_path)
    ticket = next(pause for pause in purge_steps(store, LATER_MS) if isinstance(pause, DropTicket))
    if done == "checkpoint":
        ticket.segments = {}
    ticket.run()
    state, sums = store.look.state_hash(), totals(store)
    (base, *_) = store.log.segments
    store = reopened(store, tmp_path, ending)
    assert store.look.state_hash() == state
    assert totals(store) == sums
    if ending != "no derived files":  # the checkpoint goes with them, and what it says of segments
        assert store.log.segments[0] == base, "a segment that a purge was done with does not come back"
    store.close()


def test_a_purged_key_can_be_used_again(tmp_path: Path) -> None:
    store = mixed(tmp_path)
    topic = store.tables.topic_ids["a"]
    assert fill(store, topic, [b"due-100"], NOW_MS) == []
    store.purge(LATER_MS)
    (again,) = fill(store, topic, [b"due-100"], NOW_MS)
    assert store.select.find("a", ["due-100"]) == [again]
    store.close()


def test_what_was_moved_is_delivered(tmp_path: Path) -> None:
    store = mixed(tmp_path)
    store.purge(LATER_MS)
    pump(store, LATER_MS * 4)
    for name, topic_id in store.tables.topic_ids.items():
        group = store.tables.topics[topic_id].groups["g"]
        waiting = {i for i, v in content(store).items() if v[0].topic_id == topic_id}
        waiting -= {i for i, v in content(store).items() if v[3] and v[3][0][0] == 2}
        ids, epochs = take(store, group, 10_000, LATER_MS * 4)
        assert sorted(ids) == sorted(waiting), name
        ack(store, group, ids, epochs, LATER_MS * 4)
    store.sync()
    store.purge(LATER_MS * 6)
    assert content(store) == {}
    assert store.look.stats(LATER_MS)["ready"] == 0
    store.close()


def test_messages_sent_after_a_purge_are_delivered(tmp_path: Path) -> None:
    """Lanes and cursors stand on messages that are gone."""
    store = mixed(tmp_path)
    pump(store, LATER_MS * 4)
    for topic in store.tables.topics.values():
        ack(store, topic.groups["g"], *take(store, topic.groups["g"], 10_000, LATER_MS * 4), LATER_MS * 4)
    store.purge(LATER_MS * 6)
    assert store.tables.native.topics[1].first_seq == store.tables.native.topics[1].count
    new = fill(store, 1, [b"x", b"y"], NOW_MS)
    pump(store, LATER_MS * 6)
    assert take(store, 1, 10, LATER_MS * 6)[0] == new
    late = store.groups.open(1, "late", NOW_MS)
    assert take(store, late, 10, LATER_MS * 6)[0] == new
    store.close()


def test_a_dry_run_says_what_a_purge_does(tmp_path: Path) -> None:
    store = mixed(tmp_path)
    state, position = store.look.state_hash(), store.log.appended_position
    forecast = store.purge(LATER_MS, dry_run=True)
    assert (store.look.state_hash(), store.log.appended_position) == (state, position)
    assert forecast == store.purge(LATER_MS)
    assert forecast.purged_messages
    assert forecast.moved_messages
    store.close()


@pytest.mark.promise("V6")
def test_nothing_goes_before_its_time(tmp_path: Path) -> None:
    store = mixed(tmp_path)
    kept = {i: v for i, v in content(store).items() if v[1] != MessageState.CANCELLED}
    store.purge(NOW_MS + 80_000_000)
    assert {i: v for i, v in content(store).items() if v[1] != MessageState.CANCELLED} == kept
    store.close()


def test_a_topic_that_keeps_them_longer(tmp_path: Path) -> None:
    store = mixed(tmp_path)
    store.topics.set("a", {"purge_after_ms": 2 * 86_400_000}, [], None, NOW_MS)
    store.purge(LATER_MS)
    topics = [view[0].topic_id for view in content(store).values() if view[1] == MessageState.READY]
    assert topics.count(1) == 4_500
    assert topics.count(2) < 200
    store.close()


def test_a_topic_without_a_group_keeps_everything(tmp_path: Path) -> None:
    store = Store.open(tmp_path, SMALL, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    fill(store, topic, [b"%d" % number for number in range(10)], NOW_MS)
    pump(store, NOW_MS)
    assert store.purge(LATER_MS).purged_messages == 0
    assert len(content(store)) == 10
    store.close()


@pytest.mark.promise("V65", "R49")
def test_every_group_must_be_done(tmp_path: Path) -> None:
    store = mixed(tmp_path)
    slow = store.groups.open(1, "slow", NOW_MS)
    store.purge(LATER_MS)
    there = [i for i, v in content(store).items() if v[0].topic_id == 1 and v[1] == MessageState.READY]
    assert len(there) == 4_500
    assert len(take(store, slow, 10_000, LATER_MS)[0]) == 4_500
    store.close()


def test_a_deleted_topic_goes(tmp_path: Path) -> None:
    store = mixed(tmp_path)
    store.topics.delete("a")
    store.purge(LATER_MS)
    assert {int(topic) for topic in store.tables.rows["topic_id"][: store.tables.next_id]} == {0, 2}
    state = store.look.state_hash()
    store = reopened(store, tmp_path, "no derived files")
    assert store.look.state_hash() == state
    assert store.topics.open("c", NOW_MS) == 3, "numbers are not used again"
    store.close()


def test_transactions_and_failures_outlive_their_segment(tmp_path: Path) -> None:
    store = mixed(tmp_path)
    transaction = store.transactions.begin(b"t" * 16, NOW_MS)
    transaction.send(send(1, [b"in a transaction"])[16:])
    stored = transaction.commit()
    transaction.close()
    for number in range(3):
        fill(store, 2, [b"late-%d-%d" % (number, i) for i in range(3_000)], LATER_MS * 2)
    store.sync()
    history = store.tables.failures.dump()
    store.purge(LATER_MS)
    store.topics.set("b", {"purge_after_ms": 1}, [], None, NOW_MS)
    store = reopened(store, tmp_path, "no derived files")
    assert store.commit.committed(b"t" * 16) == stored
    assert store.tables.failures.dump() == history
    assert content(store)[stored[0][0]][0].body == b"in a transaction"
    store.close()


def test_what_lies_before_damage_is_moved_once(tmp_path: Path) -> None:
    """A segment that cannot be read to its end stays; trying it again makes the log no larger each time."""
    store = Store.open(tmp_path, SMALL, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    ids = fill(store, topic, [b"far-%d" % number for number in range(100)], LATER_MS * 2)
    store.change.cancel(ids[:10], NOW_MS)
    store.log.roll()
    store.sync()
    segment_bytes, rows = store.log.segment_bytes, store.tables.rows
    flip(tmp_path, int(rows["position"][ids[60]]) + 5, segment_bytes)  # its length
    ends = []
    for _ in range(3):
        with pytest.raises(DamagedLog):
            store.purge(NOW_MS)
        store.sync()
        ends.append(store.log.appended_position)
    assert ends[1] - ends[0] < 1_000
    assert ends[2] - ends[1] < 1_000
    assert all(rows["position"][ids[10:60]] > segment_bytes), "where a start would find them"
    assert all(rows["position"][ids[60:]] < segment_bytes)
    store.close(clean=False)


def test_a_damaged_message_is_not_copied(tmp_path: Path) -> None:
    store = mixed(tmp_path)
    place = int(store.tables.rows["position"][100]) + 200
    store.close()
    path = tmp_path / "commitlog" / f"{0:020d}.log"
    with open(path, "r+b") as file:
        file.seek(place)
        file.write(b"?")
    store = Store.open(tmp_path, SMALL, LATER_MS)
    report = store.purge(LATER_MS)
    assert report.damaged_messages == 1
    assert 100 not in content(store)
    assert 101 in content(store)
    state = store.look.state_hash()
    store = reopened(store, tmp_path, "no derived files")
    assert store.look.state_hash() == state
    store.close()


def test_a_segment_without_records_is_not_purged(tmp_path: Path) -> None:
    store = mixed(tmp_path)
    place = int(store.tables.rows["position"][100])
    store.close()
    with open(tmp_path / "commitlog" / f"{0:020d}.log", "r+b") as file:
        file.seek(place)
        file.write(b"\xff" * 5_000)
    store = Store.open(tmp_path, SMALL, LATER_MS)
    with pytest.raises(DamagedLog, match="cannot be purged"):
        store.purge(LATER_MS)
    assert store.log.segments[0] == 0
    store.close()


def test_the_start_of_the_log_is_missed(tmp_path: Path) -> None:
    store = mixed(tmp_path)
    store.close()
    (tmp_path / "commitlog" / f"{0:020d}.log").unlink()
    with pytest.raises(DamagedLog, match="missing"):
        Store.open(tmp_path, SMALL, LATER_MS)


def test_a_disk_too_full_for_a_new_segment(tmp_path: Path) -> None:
    """What is needed of the old segments still fits, so all but the segment that is written can go."""
    store = mixed(tmp_path)
    segments = store.log.segments
    with mock.patch.object(type(store.disk), "open_segment", side_effect=DiskFull("full")):
        store.purge(LATER_MS)
    assert store.log.segments == segments[-1:]
    store.close()


def test_a_disk_too_full_for_a_checkpoint(tmp_path: Path) -> None:
    store = mixed(tmp_path)
    with (
        mock.patch.object(type(store.disk), "replace", side_effect=DiskFull("full")),
        pytest.raises(DiskFull),
    ):
        store.purge(LATER_MS)
    kept, sums = content(store), totals(store)
    store = reopened(store, tmp_path, "killed")
    assert content(store) == kept
    assert totals(store) == sums
    store.purge(LATER_MS)
    assert len(content(store)) < 1_000
    store.close()


def test_a_disk_too_full_to_move_a_message(tmp_path: Path) -> None:
    store = mixed(tmp_path)
    fill(store, 1, [b"pad-%d" % number for number in range(5_500)], LATER_MS * 2)
    store.sync()
    before = {i: v for i, v in content(store).items() if v[1] == MessageState.SCHEDULED}
    room = mock.patch.object(type(store.log), "make_room", side_effect=DiskFull("full"))
    with room, pytest.raises(DiskFull):
        store.purge(LATER_MS)
    kept = content(store)
    assert {i: kept[i] for i in before} == before
    state = store.look.state_hash()
    store = reopened(store, tmp_path, "no derived files")
    assert store.look.state_hash() == state
    store.close()


def test_the_tables_give_their_space_back(tmp_path: Path) -> None:
    store = Store.open(tmp_path, SMALL, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    group = store.groups.open(topic, "g", NOW_MS)
    for start in range(0, 200_000, 1_000):
        keys = [b"%d" % number for number in range(start, start + 1_000)]
        store.produce.ingest(send(topic, [b""] * 1_000, keys=keys, times_ms=[NOW_MS] * 1_000), NOW_MS)
    pump(store, NOW_MS + 10)
    ack(store, group, *take(store, group, 65_000, NOW_MS + 10), NOW_MS + 10)
    for _ in range(3):
        ack(store, group, *take(store, group, 65_000, NOW_MS + 10), NOW_MS + 10)
    store.sync()
    peak_bytes = store.tables.disk_bytes()
    store.purge(LATER_MS)
    assert store.tables.disk_bytes() < peak_bytes / 2
    assert store.tables.native.first_id == 200_001
    state = store.look.state_hash()
    for ending in ENDINGS:
        store = reopened(store, tmp_path, ending)
        assert store.look.state_hash() == state
        assert store.tables.disk_bytes() < peak_bytes
    store.close()


@pytest.mark.promise("R36")
def test_a_message_that_waits_long_pins_no_segment(tmp_path: Path) -> None:
    """The automatic purge: segments with little life go, by themselves, and nothing is rewritten without a gain."""
    store = mixed(tmp_path)
    before = store.log.disk_bytes()
    now_ms = LATER_MS
    for _ in range(2_000):
        now_ms += 10
        match store.purger.step(now_ms):
            case WaitDurable():
                store.sync()
            case DropTicket() | FreeTicket() as ticket:
                ticket.run()
    assert store.log.disk_bytes() <= before / 2
    assert store.log.segments[0] > 0
    position = store.log.appended_position
    for _ in range(2_000):
        now_ms += 10
        assert not isinstance(store.purger.step(now_ms), DropTicket)
    assert store.log.appended_position == position, "what is alive is not moved again and again"
    assert 101 in content(store)
    assert store.log.disk_bytes() >= 6 * MIB
    store.close()
