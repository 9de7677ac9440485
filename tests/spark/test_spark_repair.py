"""Bulk repair with a real Spark and a real broker: what a condition means is changed, and each message counts once."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tickwheel
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tests.support.spark.archives import work_off
from tickwheel.spark import SourceError, reschedule_messages
from tickwheel.spark.answers import BadSql
from tickwheel.spark.repair import RepairReport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AT_MS = 2_000_000_000_000
HOUR_MS = 3_600_000


@pytest.fixture
def client(daemon: Daemon) -> Iterator[tickwheel.sync.Client]:
    with tickwheel.sync.Client(daemon.unix_url) as client:
        yield client


def run(spark: SparkSession, daemon: Daemon, where: str, **options: Any) -> RepairReport:
    chosen = {"at": AT_MS, "url": daemon.unix_url} | options
    return reschedule_messages(spark, where, **chosen)


def counts(report: RepairReport) -> tuple[int, ...]:
    """Selected, and then what became of them; that is all of them."""
    parts = (
        report.done,
        report.already_delivered,
        report.already_acked,
        report.not_found,
        report.rejected,
    )
    assert report.dry_run or sum(parts) == report.selected
    return report.selected, *parts


def times_of(client: tickwheel.sync.Client, topic: str) -> dict[int, int]:
    """When the messages of a topic go on that do."""
    rows = client.query(f"""select id, epoch_ms(time_next) from messages where topic = '{topic}'""").rows
    return {number: int(time_ms) for number, time_ms in rows if time_ms is not None}


def give_back(client: tickwheel.sync.Client, topic: str, count: int, times: int, group: str = "g") -> None:
    """Delivers messages of a topic so many times, and gives them back each time."""
    with client.subscribe(topic, group, credit=count) as subscription:
        for _ in range(count * times):
            message = subscription.receive(PATIENCE_S)
            assert message is not None
            message.nack(delay=0)


def test_a_spread_over_what_is_meant(
    spark: SparkSession, daemon: Daemon, client: tickwheel.sync.Client
) -> None:
    ids = list(client.send_many("orders", [b"x"] * 40, delay_ms=HOUR_MS).ids())
    others = list(client.send_many("others", [b"x"] * 5, delay_ms=HOUR_MS).ids())
    before = times_of(client, "others")
    where = f"topic = 'orders' and id > {ids[9]}"
    planned = run(spark, daemon, where, spread=timedelta(hours=2), dry_run=True)
    assert counts(planned) == (30, 0, 0, 0, 0, 0)
    assert set(times_of(client, "orders").values()).isdisjoint({AT_MS})
    report = run(spark, daemon, where, spread=timedelta(hours=2))
    assert counts(report) == (30, 30, 0, 0, 0, 0)
    times = times_of(client, "orders")
    assert [times[number] for number in ids[10:]] == [AT_MS + n * 2 * HOUR_MS // 30 for n in range(30)]
    assert (report.first_ms, report.last_ms) == (AT_MS, times[ids[-1]])
    assert times_of(client, "others") == before
    assert sorted(before) == others
    assert counts(run(spark, daemon, "topic = 'nobody'")) == (0, 0, 0, 0, 0, 0)


def test_what_was_delivered_often_waits_for_the_new_time(
    spark: SparkSession, daemon: Daemon, client: tickwheel.sync.Client
) -> None:
    client.create_topic("orders", min_backoff_ms=1, ack_wait_ms=60_000)
    client.send_many("orders", [b"x"] * 6)
    give_back(client, "orders", 6, times=3)
    client.send_many("orders", [b"fresh"] * 2)
    report = run(spark, daemon, "topic = 'orders' and epoch > 2")
    assert counts(report) == (6, 6, 0, 0, 0, 0)
    rows = client.query("select state, time_next, attempts from orders where epoch > 2").rows
    assert [(state, time.timestamp() * 1_000, attempts) for state, time, attempts in rows] == [
        ("waiting", AT_MS, 3)
    ] * 6
    with client.subscribe("orders", "g") as subscription:
        assert [subscription.receive(PATIENCE_S).body for _ in range(2)] == [b"fresh"] * 2  # type: ignore[union-attr]
        assert subscription.receive(0.2) is None
    run(spark, daemon, "topic = 'orders' and epoch > 2", at=AT_MS + 1, reset_attempts=True)
    assert client.query("select distinct attempts from orders where epoch > 2").rows == [[0]]


def test_only_the_groups_that_are_meant(
    spark: SparkSession, daemon: Daemon, client: tickwheel.sync.Client
) -> None:
    client.create_topic("orders", min_backoff_ms=1, ack_wait_ms=60_000)
    client.send("orders", b"x")
    give_back(client, "orders", 1, times=2, group="one")
    give_back(client, "orders", 1, times=2, group="two")
    assert counts(run(spark, daemon, "epoch > 1 and `group` = 'two'")) == (1, 1, 0, 0, 0, 0)
    rows = client.query("""select "group", epoch_ms(time_next) from orders""").rows
    assert {group: time_ms == AT_MS for group, time_ms in rows} == {"one": False, "two": True}


def test_columns_are_named_in_any_case(
    spark: SparkSession, daemon: Daemon, client: tickwheel.sync.Client
) -> None:
    client.send_many("orders", [b"x"] * 3, keys=["a", "b", "c"], delay_ms=HOUR_MS)
    assert counts(run(spark, daemon, "TOPIC = 'orders' and Key > 'a'")) == (2, 2, 0, 0, 0, 0)


def test_races_are_counted(
    spark: SparkSession,
    daemon: Daemon,
    client: tickwheel.sync.Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between the selection and the change one message each is delivered, acked, cancelled and purged."""
    client.create_topic("fast", purge_after=0)
    ids = list(client.send_many("fast", [b"x"] * 3).ids())
    ids += list(client.send_many("slow", [b"x"] * 3, delay_ms=HOUR_MS).ids())
    reschedule, held = tickwheel.sync.Client.reschedule, []

    def late(self: tickwheel.sync.Client, *args: Any, **options: Any) -> Any:
        if not held:
            work_off(client, "fast", 1)
            client.purge()
            work_off(client, "fast", 1)
            held.append(client.subscribe("fast", "g", credit=1).__enter__())
            assert held[0].receive(PATIENCE_S) is not None
            client.cancel(id=ids[3])
        return reschedule(self, *args, **options)

    monkeypatch.setattr(tickwheel.sync.Client, "reschedule", late)
    report = run(spark, daemon, "true", spread=timedelta(milliseconds=1))
    held[0].__exit__(None, None, None)
    assert counts(report) == (6, 2, 1, 1, 1, 1)
    times = times_of(client, "slow")
    assert [times[number] for number in ids[4:]] == [AT_MS, AT_MS]


def test_what_a_subscriber_holds_stays_with_it(
    spark: SparkSession, daemon: Daemon, client: tickwheel.sync.Client
) -> None:
    client.send_many("orders", [b"x"] * 3)
    with client.subscribe("orders", "g", credit=2) as subscription:
        message = subscription.receive(PATIENCE_S)
        assert message is not None
        assert counts(run(spark, daemon, "topic = 'orders'")) == (3, 1, 2, 0, 0, 0)
        message.ack(confirm=True)


def test_nothing_is_changed_by_what_is_not_understood(
    spark: SparkSession, daemon: Daemon, client: tickwheel.sync.Client, tmp_path: Path
) -> None:
    client.send("orders", b"x", delay_ms=HOUR_MS)
    before = times_of(client, "orders")
    for where, reason in {
        "epoch >": "Syntax error",
        "nothing = 1": "`nothing` cannot be resolved",
        "1 = 1; drop table messages": "Syntax error",
        "id": "BIGINT",
        "1 = 1 union select 1": "Syntax error",
    }.items():
        with pytest.raises(BadSql, match=reason) as caught:
            run(spark, daemon, where)
        assert "Project" not in caught.value.message
    for options in ({"at": None}, {"spread": timedelta()}, {"spread": timedelta(days=2_999_999)}):
        with pytest.raises(SourceError):
            run(spark, daemon, "true", **options)
    with Daemon(tmp_path / "other") as other, pytest.raises(SourceError, match="holds the log"):
        run(spark, other, "true", source=daemon.directory)
    assert times_of(client, "orders") == before


def test_a_condition_over_bodies_and_a_subquery(
    spark: SparkSession, daemon: Daemon, client: tickwheel.sync.Client
) -> None:
    ids = list(client.send_many("orders", [b"a", b"b", b"c"], delay_ms=HOUR_MS).ids())
    spark.createDataFrame([(ids[1],)], "wanted bigint").createOrReplaceTempView("chosen_ones")
    assert run(spark, daemon, "body = cast('c' as binary)").done == 1
    assert run(spark, daemon, "id in (select wanted from chosen_ones)").done == 1
    assert sorted(number for number, at in times_of(client, "orders").items() if at == AT_MS) == ids[1:]
