"""C and twin compress, judge, choose and refuse alike; numbers that no engine would hand in are refused too."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.native.native_frames import ORDERS, PRIORITY, Item, SendFrame
from tests.support.native.native_pair import NOW_MS, Pair, Sizes
from tests.support.native.native_store import Outputs, pointer
from tests.support.run.cases import table
from tests.twins import delivery
from tests.twins.delivery import BROKEN, DUE, SUPERSEDED
from tests.twins.store import (
    ALREADY_ACKED,
    CANCELLED,
    DAMAGED,
    IS_DELIVERED,
    IS_DONE,
    IS_READY,
    IS_SCHEDULED,
    IS_UNKNOWN,
    NEVER_DELIVERED,
    NOT_FOUND,
    RUN,
    STALE_RECEIPT,
    Array,
)
from tickwheel_native import ffi, lib

LAST = (1 << 64) - 1


def runs_in_c(values: Sequence[int], epochs: Sequence[int] | None, times: Sequence[int] | None) -> list[Any]:
    with Outputs() as out:
        runs = out.array(len(values), RUN)
        count = lib.tw_runs(
            out.input(values, np.uint64, "uint64_t *"),
            out.input(epochs, np.uint32, "uint32_t *") if epochs is not None else ffi.NULL,
            out.input(times, np.int64, "int64_t *") if times is not None else ffi.NULL,
            len(values),
            pointer(runs, "tw_run *"),
        )
        return runs[:count].tolist()


triples = st.tuples(st.integers(0, 6), st.integers(0, 1), st.sampled_from([0, 0, 0, -1, 1 << 62]))


@given(st.lists(triples, max_size=20), st.booleans(), st.booleans())
def test_runs(rows: list[tuple[int, int, int]], with_epochs: bool, with_times: bool) -> None:
    values = [row[0] for row in rows]
    epochs = [row[1] for row in rows] if with_epochs else None
    times = [row[2] for row in rows] if with_times else None
    runs = delivery.runs(values, epochs, times)
    assert runs_in_c(values, epochs, times) == runs.tolist()
    assert [value for value, _, _ in delivery.expanded(runs)] == values


def test_consecutive_values_make_one_run() -> None:
    assert runs_in_c([5, 6, 7, 9], [2, 2, 2, 2], [1, 1, 1, 1]) == [(5, 3, 2, 1), (9, 1, 2, 1)]


times_ms = st.one_of(st.integers(0, 100_000), st.integers(0, 253_402_300_799_999), st.integers(0, 1 << 61))


@given(times_ms, times_ms, times_ms, st.integers(0, LAST), st.integers(0, 200))
def test_backoff(ack_wait: int, least: int, most: int, message_id: int, epoch: int) -> None:
    found = lib.tw_backoff_ms(ack_wait, least, most, message_id, epoch)
    assert found == delivery.backoff_ms(ack_wait, least, most, message_id, epoch)
    assert ack_wait <= found <= max(ack_wait, most)


@table("epoch", [*range(201), 1 << 31, (1 << 32) - 1])
def test_backoff_stays_inside_its_clamps_for_ever(epoch: int) -> None:
    waits = [lib.tw_backoff_ms(1_000, 700, 60_000, i, epoch) for i in range(40)]
    assert waits == [delivery.backoff_ms(1_000, 700, 60_000, i, epoch) for i in range(40)]
    assert min(waits) >= 1_000
    assert max(waits) <= 60_000
    assert (len(set(waits)) > 1) == (epoch > 1), "from the second delivery on, messages wait differently"


@table("epoch", [2, 200, (1 << 32) - 1])
@table(("least", "most"), [(0, 0), (0, 60_000), (-5, 10), ((1 << 63) - 1, (1 << 63) - 1)])
def test_backoff_of_unlikely_settings(least: int, most: int, epoch: int) -> None:
    assert lib.tw_backoff_ms(1_000, least, most, 7, epoch) == delivery.backoff_ms(
        1_000, least, most, 7, epoch
    )


def run(first: int, count: int = 1, epoch: int = 1, time_ms: int = NOW_MS) -> tuple[int, int, int, int]:
    return first, count, epoch, time_ms


def array(*runs: tuple[int, int, int, int]) -> Array:
    return np.array(list(runs), RUN)


def store_with(messages: int, priorities: Sequence[int] = (50,), **sizes: int) -> Pair:
    pair = Pair(Sizes(**sizes))
    items = [Item(b"body", priority=priorities[i % len(priorities)]) for i in range(messages)]
    pair.ingest(SendFrame(items=items, columns=PRIORITY).encode())
    pair.flush()
    return pair


def topic_with(messages: int, priorities: Sequence[int] = (50,), **sizes: int) -> Pair:
    pair = store_with(messages, priorities, **sizes)
    assert pair.call("apply_put", 1, 0, array(run(1, messages))) == 0
    return pair


UNLIKELY_RUNS = [
    run(LAST, 1),
    run(LAST, 2),
    run(LAST - 5, (1 << 32) - 1),
    run(1 << 63, (1 << 32) - 1),
    run(1, (1 << 32) - 1),
    run(64, 1),
    run(63, 2),
]


@pytest.mark.parametrize("bad", UNLIKELY_RUNS)
@pytest.mark.parametrize(
    "name", ["apply_put", "apply_lease", "apply_ack", "apply_release", "apply_dead", "apply_nack"]
)
def test_a_run_beyond_the_table_changes_nothing(name: str, bad: tuple[int, int, int, int]) -> None:
    pair = topic_with(4) if name != "apply_put" else store_with(4)
    before = pair.native.deliveries[1].tobytes(), pair.native.rows.tobytes(), pair.native.groups.tobytes()
    extra = {"apply_put": (0,), "apply_lease": (1,)}.get(name, ())
    assert pair.call(name, 1, *extra, array(run(1, 2), bad)) == -1
    assert before == (
        pair.native.deliveries[1].tobytes(),
        pair.native.rows.tobytes(),
        pair.native.groups.tobytes(),
    )


@pytest.mark.parametrize("first_seq", [61, 64, 1 << 40, LAST - 3, LAST])
def test_arrivals_beyond_the_table_are_refused(first_seq: int) -> None:
    assert store_with(4).call("apply_put", 1, first_seq, array(run(1, 4))) == -1


def test_id_zero_reaches_no_topic() -> None:
    assert store_with(4).call("apply_put", 1, 0, array(run(0, 2))) == -1


def test_lookup_judges_each_timer() -> None:
    pair = store_with(6)
    pair.write_row(2, version=1)
    pair.write_row(3, state=DAMAGED)
    for side in pair.sides:
        side.log[int(side.rows[4]["position"]) + 50] ^= 1
    ids = [1, 2, 2, 3, 4, 0, 7, LAST, 6]
    verdicts = pair.call("lookup", ids, [0, 0, 1, 0, 0, 0, 0, 0, 0], NOW_MS)
    assert verdicts == [DUE, SUPERSEDED, DUE, SUPERSEDED, BROKEN, SUPERSEDED, SUPERSEDED, SUPERSEDED, DUE]


def test_damage_is_found_in_what_is_in_the_log() -> None:
    pair = store_with(16)
    for side in pair.sides:
        for message_id in (4, 15):
            side.log[int(side.rows[message_id]["position"]) + 50] ^= 1
    pair.write_row(6, position=int(pair.sides[0].rows[7]["position"]))
    assert pair.call("damaged", [1, 4, 6, 7, *range(8, 17)]) == [4, 6, 15]
    pair.set(staging_position=int(pair.sides[0].rows[12]["position"]))
    assert pair.call("damaged", [*range(1, 17)]) == [4, 6]
    assert pair.call("damaged", []) == []


@pytest.mark.parametrize("position", [0, 64, 72, 119, 120, 121, 1 << 40, LAST - 51, LAST])
@pytest.mark.parametrize("record_bytes", [0, 3, 47, 48, 1 << 14, (1 << 32) - 1])
def test_lookup_of_a_row_that_names_no_record(position: int, record_bytes: int) -> None:
    """What it names lies outside the log, or is not a record; nothing outside is read."""
    pair = store_with(1, log_bytes=64 + 56, message_limit=1_000)
    pair.write_row(1, position=position, record_bytes=record_bytes)
    assert pair.call("lookup", [1], [0], NOW_MS) == [BROKEN]


def lease(
    pair: Pair, limit: int, group_id: int = 1, holder: int = 5, now_ms: int = NOW_MS
) -> list[tuple[int, int]]:
    taken, _, need = pair.call("select", group_id, limit, 1 << 20, now_ms)
    assert need == 0
    seqs, epochs, until_ms = ([row[column] for row in taken] for column in range(3))
    assert pair.call("apply_lease", group_id, holder, delivery.runs(seqs, epochs, until_ms)) == 0
    return list(zip(seqs, epochs, strict=True))


@pytest.mark.promise("V84")
def test_lower_numbers_first_and_redeliveries_before_new_ones() -> None:
    pair = topic_with(8, priorities=[255, 0, 64, 63])
    assert [seq for seq, _ in lease(pair, 3)] == [1, 5, 3]
    later = NOW_MS + 1_000
    assert pair.call("expire", 1, [(5, 1), (3, 1)], later) == (2, [])
    assert lease(pair, 8, now_ms=later) == [(5, 2), (3, 2), (7, 1), (2, 1), (0, 1), (6, 1), (4, 1)]


@pytest.mark.promise("in-which-order")
def test_redeliveries_keep_no_new_message_waiting_for_ever() -> None:
    """Also new messages with higher numbers than those that come again and again."""
    pair = topic_with(12, priorities=[50, 50, 50, 50, 50, 50, 50, 50, 60, 60, 60, 60])
    now_ms, again, given = NOW_MS, lease(pair, 8), []
    for _ in range(16):
        now_ms += 100_000_000
        pair.call("expire", 1, again, now_ms)
        again = lease(pair, 2, now_ms=now_ms)
        given += [seq for seq, epoch in again if epoch == 1]
    assert given == [8, 9, 10, 11]


def test_select_asks_for_rows_and_goes_on() -> None:
    pair = topic_with(4)
    pair.allow("groups", 1, 2)
    assert [taken[0] for taken in pair.call("select", 1, 9, 1 << 20, NOW_MS)[0]] == [0, 1]
    assert pair.call("select", 1, 9, 1 << 20, NOW_MS) == ([], 24, 3)
    pair.allow("groups", 1, 4)
    assert [taken[0] for taken in pair.call("select", 1, 9, 1 << 20, NOW_MS)[0]] == [2, 3]


def test_a_group_that_starts_late_is_given_nothing_earlier() -> None:
    pair = Pair(start_seq=2)
    pair.ingest(SendFrame(items=[Item(b"x")] * 4).encode())
    pair.flush()
    pair.call("apply_put", 1, 0, array(run(1, 4)))
    assert lease(pair, 9) == [(2, 1), (3, 1)]


def test_what_could_not_be_logged_is_selected_again_in_the_same_order() -> None:
    pair = topic_with(6)
    pair.call("expire", 1, lease(pair, 4), NOW_MS + 1_000)
    first, _, _ = pair.call("select", 1, 6, 1 << 20, NOW_MS + 1_000)
    assert [taken[:2] for taken in first] == [(0, 2), (1, 2), (4, 1), (2, 2), (3, 2), (5, 1)]
    pair.call("unselect", 1, [taken[:2] for taken in first])
    assert pair.call("select", 1, 6, 1 << 20, NOW_MS + 1_000)[0] == first


def test_an_ack_while_it_waits_for_redelivery_counts() -> None:
    pair = topic_with(2)
    pair.call("expire", 1, lease(pair, 2), NOW_MS + 1_000)
    assert ack(pair, [(1, 1)]) == [0]
    assert lease(pair, 9, now_ms=NOW_MS + 1_000) == [(1, 2)]


def ack(pair: Pair, receipts: list[tuple[int, int]], group_id: int = 1) -> list[int]:
    """Acks (id, epoch); returns the codes."""
    n = len(receipts)
    payload = struct.pack(f"<{n}Q", *(i for i, _ in receipts)) + struct.pack(
        f"<{n}I", *(e for _, e in receipts)
    )
    accepted, codes = pair.call("ack_check", group_id, payload, n)
    seqs, epochs = [seq for seq, _ in accepted], [epoch for _, epoch in accepted]
    assert pair.call("apply_ack", group_id, delivery.runs(seqs, epochs, [NOW_MS] * len(seqs))) == 0
    return list(codes)


def test_every_receipt_is_judged() -> None:
    pair = topic_with(6)
    lease(pair, 3)
    pair.write_row(6, topic_id=2)
    receipts = [(1, 1), (1, 1), (2, 2), (3, 1), (4, 1), (6, 1), (0, 1), (7, 1), (LAST, 1)]
    accepted = [0, ALREADY_ACKED, STALE_RECEIPT, 0, NEVER_DELIVERED]
    assert ack(pair, receipts) == accepted + 4 * [NOT_FOUND]
    assert ack(pair, [(1, 1), (2, 1)]) == [ALREADY_ACKED, 0]
    assert pair.native.outstanding[5] == 0


def test_an_ack_of_another_delivery_than_the_one_that_counted_is_stale() -> None:
    pair = topic_with(2)
    later = NOW_MS + 1_000
    pair.call("expire", 1, lease(pair, 2), later)
    assert lease(pair, 2, now_ms=later) == [(0, 2), (1, 2)]
    assert ack(pair, [(1, 1), (1, 2), (1, 1), (1, 2)]) == [STALE_RECEIPT, 0, STALE_RECEIPT, ALREADY_ACKED]
    assert ack(pair, [(1, 1), (1, 2), (1, 3), (1, 0)]) == [STALE_RECEIPT, ALREADY_ACKED, *2 * [STALE_RECEIPT]]
    pair.call("rebuild_topics")
    pair.call("rebuild_group", 1)
    assert ack(pair, [(1, 1), (1, 2)]) == [STALE_RECEIPT, ALREADY_ACKED]


def test_groups_are_independent() -> None:
    pair = topic_with(3)
    assert lease(pair, 9, group_id=1) == lease(pair, 9, group_id=2)
    assert ack(pair, [(1, 1)], group_id=2) == [0]
    assert ack(pair, [(1, 1)], group_id=1) == [0]
    assert ack(pair, [(1, 1)], group_id=3) == [NOT_FOUND]


def test_a_group_whose_number_another_one_had_begins_above_its_epochs() -> None:
    pair = topic_with(4)
    for side in pair.sides:
        side.groups[2]["fence"] = side.groups[2]["highest_epoch"] = 3
    assert ack(pair, [(1, 1), (2, 3), (3, 4)], group_id=2) == [STALE_RECEIPT, STALE_RECEIPT, NEVER_DELIVERED]
    taken, _, _ = pair.call("select", 2, 2, 1 << 20, NOW_MS)
    assert taken == [(0, 4, NOW_MS + 1_000), (1, 4, NOW_MS + 1_000)], "the wait of a first attempt"
    assert pair.call("apply_lease", 2, 5, array(run(0, 2, 4))) == 0
    assert [int(pair.twin.deliveries[2][seq]["base_epoch"]) for seq in (0, 1)] == [3, 3]
    assert ack(pair, [(1, 1), (1, 3), (1, 4)], group_id=2) == [STALE_RECEIPT, STALE_RECEIPT, 0]
    assert pair.call("apply_dead", 2, array(run(2, 1))) == 0
    pair.call("rebuild_topics")
    pair.call("rebuild_group", 2)
    group = pair.twin.groups[2]
    assert [int(group[name]) for name in ("deliveries", "highest_epoch", "touched")] == [2, 4, 3]
    assert pair.call("purge_count", [1, 2, 3])[1][2][2] == 2


def test_held_by_passes_over_what_is_done() -> None:
    pair = topic_with(6)
    lease(pair, 3, holder=5)
    lease(pair, 3, holder=6)
    ack(pair, [(1, 1), (2, 1), (4, 1)])
    assert pair.call("held_by", 1, 5, 0, 9) == ([(2, 1)], 6)
    assert pair.call("held_by", 1, 6, 0, 1) == ([(4, 1)], 5)
    assert pair.call("held_by", 1, 6, 5, 9) == ([(5, 1)], 6)


@given(st.lists(st.integers(0, 5), max_size=12))
def test_a_deliver_frame_of_any_messages(seqs: list[int]) -> None:
    pair = topic_with(6, priorities=[0, 255])
    assert len(pair.call("deliver_frame", 1, (1 << 32) - 1, seqs)) == 24 + 43 * len(seqs)


def test_a_frame_that_does_not_fit_is_refused() -> None:
    pair = topic_with(2)
    pair.native.rows[1]["record_bytes"] = 4  # its content would have a negative size
    with Outputs() as out:
        frame, seqs = out.array(200, np.uint8), out.input([0, 1], np.uint64, "uint64_t *")
        assert lib.tw_deliver_frame(pair.native.store, 1, 1, seqs, 2, pointer(frame, "uint8_t *"), 200) == -1


def test_a_message_that_the_group_has_no_row_for_was_never_delivered() -> None:
    pair = topic_with(4, deliveries=2)
    lease(pair, 0)
    assert ack(pair, [(i, 1) for i in range(1, 5)]) == 4 * [NEVER_DELIVERED]
    assert pair.call("expire", 1, [(2, 1), (3, 1)], NOW_MS) == (0, [])
    assert pair.call("judge_all", [4]) == [IS_READY]


# -- what came with ordering keys, attempts and changes --


def ordered_topic(orders: Sequence[bytes]) -> Pair:
    pair = Pair()
    pair.ingest(SendFrame(items=[Item(b"x", order=order) for order in orders], columns=ORDERS).encode())
    pair.flush()
    assert pair.call("apply_put", 1, 0, array(run(1, len(orders)))) == 0
    assert pair.call("select", 1, 9, 1 << 20, NOW_MS)[2] == delivery.NEED_ORDERS
    pair.grow_orders(1)
    return pair


def test_one_message_of_an_ordering_key_at_a_time() -> None:
    pair = ordered_topic([b"a", b"a", b"b", b"a", b"", b"b"])
    assert [seq for seq, _ in lease(pair, 9)] == [0, 2, 4]
    assert lease(pair, 9) == []
    assert ack(pair, [(1, 1)]) == [0]
    assert lease(pair, 9) == [(1, 1)]
    assert pair.call("expire", 1, [(1, 1)], NOW_MS + 1_000) == (1, [])
    assert lease(pair, 9, now_ms=NOW_MS + 1_000) == [(1, 2)], "also its redelivery comes before the next"
    assert pair.call("apply_dead", 1, array(run(1, 1, 2))) == 0
    assert lease(pair, 9) == [(3, 1)]


def test_an_ordering_key_goes_on_when_its_message_is_cancelled_or_moved() -> None:
    pair = ordered_topic([b"a"] * 4)
    assert lease(pair, 9) == [(0, 1)]
    assert pair.call("apply_end", [2], CANCELLED) == 0
    assert pair.call("apply_end", [1], CANCELLED) == 0
    assert lease(pair, 9) == [(2, 1)]
    assert pair.call("apply_reschedule", array((3, 1, 1, NOW_MS + 9)), 7) == 0
    assert lease(pair, 9) == [(3, 1)]
    assert pair.twin.rows[3]["priority"] == 50, "its lane is that of all ordered messages"


def test_after_a_start_the_busy_keys_are_found_again() -> None:
    pair = ordered_topic([b"a", b"b", b"a", b"b", b"c"])
    assert [seq for seq, _ in lease(pair, 2)] == [0, 1]
    pair.call("rebuild_topics")
    pair.call("rebuild_group", 1)
    pair.orders_clear(1)
    assert pair.call("rebuild_orders", 1, 0) == (False, 2)
    assert lease(pair, 9) == [(4, 1)], "a and b are still with somebody"
    assert ack(pair, [(1, 1)]) == [0]
    assert lease(pair, 9) == [(2, 1)]


def test_the_table_of_busy_keys_grows_at_a_start() -> None:
    pair = Pair()
    items = [Item(b"x", order=bytes([n])) for n in range(3)]
    pair.ingest(SendFrame(items=items, columns=ORDERS).encode())
    pair.flush()
    assert pair.call("apply_put", 1, 0, array(run(1, 3))) == 0
    assert pair.call("apply_lease", 1, 1, array(run(0, 3, 1, NOW_MS))) == 0
    assert pair.call("rebuild_orders", 1, 0) == (True, 0)
    pair.grow_orders(1)
    assert pair.call("rebuild_orders", 1, 0) == (False, 3)


def test_a_group_that_begins_anew_gets_everything_under_higher_epochs() -> None:
    pair = ordered_topic([b"a", b"a", b"b"])
    assert lease(pair, 9) == [(0, 1), (2, 1)]
    assert ack(pair, [(1, 1)]) == [0]
    assert lease(pair, 9) == [(1, 1)]
    pair.call("apply_seek", 1, 0)
    assert ack(pair, [(2, 1), (3, 1)]) == [STALE_RECEIPT, STALE_RECEIPT]
    assert lease(pair, 9) == [(0, 2), (2, 2)], "in the order of keys again"
    assert pair.twin.deliveries[1]["base_epoch"].tolist()[:3] == [1, 1, 1], "the attempts count anew"
    pair.call("apply_seek", 1, 2)
    assert ack(pair, [(1, 2), (3, 2)]) == [STALE_RECEIPT, STALE_RECEIPT]
    assert lease(pair, 9) == [(2, 3)]
    assert pair.twin.groups[1]["pending"] == 1
    assert pair.call("judge_all", [1, 2]) == [IS_DELIVERED, IS_DELIVERED], "another group waits for them"
    pair.call("apply_seek", 2, 3)
    assert pair.call("judge_all", [1, 2]) == [IS_DONE, IS_DONE], "delivered once, and no group waits for them"


def test_one_called_for_again_waits_for_the_one_of_its_key_that_is_out() -> None:
    pair = ordered_topic([b"a", b"a", b"a"])
    assert lease(pair, 9) == [(0, 1)]
    assert ack(pair, [(1, 1)]) == [0]
    assert lease(pair, 9) == [(1, 1)]
    assert pair.call("apply_redeliver", 1, array(run(0, 1, 1, NOW_MS)), 1) == 0
    assert pair.call("expire", 1, [(0, 1)], NOW_MS) == (1, [])
    assert lease(pair, 9) == [], "message 1 is with somebody"
    assert pair.call("expire", 1, [(0, 1)], NOW_MS) == (0, []), "a second timer of it changes nothing"
    assert ack(pair, [(2, 1)]) == [0]
    assert lease(pair, 9) == [(0, 2)]
    assert ack(pair, [(1, 2)]) == [0]
    assert lease(pair, 9) == [(2, 1)]


def test_one_put_off_while_it_waits_comes_with_its_timer() -> None:
    pair = topic_with(1)
    assert lease(pair, 1) == [(0, 1)]
    assert pair.call("expire", 1, [(0, 1)], NOW_MS + 1_000) == (1, [])
    assert pair.call("apply_nack", 1, array(run(0, 1, 1, NOW_MS + 5_000))) == 0
    assert lease(pair, 1, now_ms=NOW_MS + 1_000) == []
    assert pair.call("expire", 1, [(0, 1)], NOW_MS + 5_000) == (1, [])
    assert lease(pair, 1, now_ms=NOW_MS + 5_000) == [(0, 2)]


def test_one_put_off_is_in_one_chain_only() -> None:
    pair = topic_with(2)
    assert lease(pair, 1) == [(0, 1)]
    assert pair.call("expire", 1, [(0, 1)], NOW_MS + 1_000) == (1, [])
    assert pair.call("apply_nack", 1, array(run(0, 1, 1, NOW_MS + 5_000))) == 0
    assert pair.call("expire", 1, [(0, 1)], NOW_MS + 5_000) == (0, []), "it is in the chain already"
    assert lease(pair, 9, now_ms=NOW_MS + 5_000) == [(0, 2), (1, 1)]


def test_the_longest_waiting_gets_a_share() -> None:
    pair = topic_with(40, priorities=[9] + [1] * 39)
    taken = [seq for seq, _ in lease(pair, 16)]
    assert taken.index(0) == 7
    assert taken[:7] == list(range(1, 8))


def test_messages_that_had_all_their_attempts_are_listed() -> None:
    pair = topic_with(3)
    for side in pair.sides:
        side.groups[1]["max_attempts"] = 2
    later = NOW_MS
    for epoch in (1, 2):
        assert lease(pair, 9, now_ms=later) == [(seq, epoch) for seq in range(3)]
        later += 100_000
        expected = (3, []) if epoch == 1 else (0, [0, 1, 2])
        assert pair.call("expire", 1, [(seq, epoch) for seq in range(3)], later) == expected
    pair.call("requeue", 1, [0, 1])
    assert pair.call("apply_redeliver", 1, array(run(2, 1, 2, later)), 1) == 0
    assert pair.call("expire", 1, [(2, 2)], later) == (1, [])
    assert lease(pair, 9, now_ms=later) == [(0, 3), (1, 3), (2, 3)]


def test_what_was_given_back_waits_for_its_time() -> None:
    pair = topic_with(2)
    lease(pair, 2)
    assert pair.call("apply_nack", 1, array(run(0, 1, 1, NOW_MS + 50))) == 0
    assert pair.native.outstanding[5] == 1
    assert ack(pair, [(1, 1)]) == [STALE_RECEIPT]
    assert pair.call("expire", 1, [(0, 1)], NOW_MS + 49) == (0, [])
    assert pair.call("leased", 1, 0, 9)[0] == [(NOW_MS + 50, 0, 1), (NOW_MS + 1_000, 1, 1)]
    assert pair.call("expire", 1, [(0, 1)], NOW_MS + 50) == (1, [])


def test_how_messages_stand() -> None:
    pair = store_with(5)
    pair.call("apply_put", 1, 0, array(run(1, 3)))
    lease(pair, 2)
    lease(pair, 2, group_id=2)
    ack(pair, [(1, 1)])
    ack(pair, [(1, 1)], group_id=2)
    ids = [0, 1, 2, 3, 4, 99, LAST]
    assert pair.call("judge_all", ids) == [IS_UNKNOWN, IS_DONE, IS_DELIVERED, IS_READY, IS_SCHEDULED] + 2 * [
        IS_UNKNOWN
    ]
    assert pair.call("apply_end", [1, 99], CANCELLED) == -1
    assert pair.call("apply_end", [2, 4], CANCELLED) == 0
    assert pair.twin.groups[1]["pending"] == 1


def test_spread_moves_messages_apart_and_never_forward() -> None:
    pair = store_with(40)
    for side in pair.sides:
        side.topics[1]["spread_ms"] = 1_000
    due = pair.call("due_times", list(range(1, 41)))
    assert min(due) >= NOW_MS
    assert max(due) < NOW_MS + 1_000
    assert len({(ms - NOW_MS) // 100 for ms in due}) == 10, "evenly: some in each tenth"
    early = pair.call("lookup", list(range(1, 41)), [0] * 40, NOW_MS + 500)
    assert early == [DUE if ms <= NOW_MS + 500 else SUPERSEDED for ms in due]


@pytest.mark.parametrize("spread_ms", [0, 1_000])
@given(
    values=st.lists(st.integers(0, 12) | st.just(LAST), max_size=12),
    epochs=st.none() | st.lists(st.integers(0, 3), min_size=12, max_size=12),
    group_id=st.sampled_from([0, 1]),
    late_ms=st.integers(-100, 20_000),
)
def test_lateness_is_counted_as_the_twin_does(
    spread_ms: int, values: list[int], epochs: list[int] | None, group_id: int, late_ms: int
) -> None:
    """Ids and numbers that nobody has are passed over."""
    pair = store_with(8)
    pair.call("apply_put", 1, 0, array(run(3, 2), run(6, 1)))
    for side in pair.sides:
        side.topics[1]["spread_ms"] = spread_ms
    bounds = [0, 1, 10, 100, 10_000]
    counted, counts, _ = pair.call(
        "count_lateness", group_id, values, epochs and epochs[: len(values)], NOW_MS + late_ms, bounds
    )
    assert counted == sum(counts) <= len(values)
