"""What can be looked at from outside, through the real daemon: by the client, and from the command line."""

from __future__ import annotations

import json
import signal
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

import tickwheel
from tests.support.processes.cli_harness import Shell
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon, wait_ready
from tests.support.run.totals import totals_of
from tickwheel import Subscription
from tickwheel.errors import BadArgument, BadRequest, Forbidden, UnknownGroup, UnknownTopic
from tickwheel.stats import Histogram


async def settle_one(subscription: Subscription, *, is_good: bool) -> None:
    """Acks the next message, or gives it up."""
    message = await subscription.receive(PATIENCE_S)
    assert message is not None
    if is_good:
        await message.ack(confirm=True)
    else:
        assert await message.nack(error="broken") == "dead"


async def test_messages_that_have_something_in_common(daemon: Daemon, topic: str, shell: Shell) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.create_topic(topic, max_attempts=1)
        await client.send(topic, b"past", deliver_at=datetime(2020, 1, 1, tzinfo=UTC), priority=1)
        for day in (1, 2, 3):
            at = datetime(2031, 5, day, tzinfo=UTC)
            await client.send(topic, b"%d May" % day, key=f"may-{day}", deliver_at=at, priority=100 + day)

        async def bodies(**where: Any) -> list[bytes]:
            return [one.body for one in await client.browse(topic, **where)]

        may = {"due_from": datetime(2031, 5, 1, tzinfo=UTC), "due_until": datetime(2031, 5, 3, tzinfo=UTC)}
        assert await bodies(**may) == [b"1 May", b"2 May"], "the upper bound is exclusive"
        assert await bodies(**may, priority_min=102) == [b"2 May"]
        assert await bodies(states="ready", created_from=datetime.now(UTC) - timedelta(hours=1)) == [b"past"]
        assert await bodies(created_until=datetime(2020, 1, 1, tzinfo=UTC)) == []
        (first,) = await client.browse(topic, limit=1, **may)
        assert await bodies(after_id=first.id, **may) == [b"2 May"]
        with pytest.raises(UnknownGroup):
            await bodies(group="none")
        with pytest.raises(BadArgument, match="There is no filter 'due'"):
            await bodies(due=1)
    found = shell.json("browse", topic, "--due-from", "2031-05-02T00:00Z", "--priority-max", "102")
    assert [one["key"] for one in found] == ["may-2"]
    assert shell.json("browse", topic, "--priority-max", "0") == [], "0 is a bound as well"
    assert shell.json("cancel", topic, "--state", "scheduled", "--priority-max", "0")["matched"] == 0
    assert shell.json("redeliver", topic, "--priority-max", "0")["matched"] == 0


async def test_what_is_dead_since_when(daemon: Daemon, topic: str, shell: Shell) -> None:
    hour = timedelta(hours=1)
    async with tickwheel.Client(daemon.url) as client:
        await client.create_topic(topic, max_attempts=1)
        await client.send_many(topic, [b"bad", b"good", b"untouched"])
        await wait_ready(client, topic, 3)
        async with client.subscribe(topic, "g", credit=1) as subscription:
            await settle_one(subscription, is_good=False)
            await settle_one(subscription, is_good=True)
        now = datetime.now(UTC)

        async def bodies(**where: Any) -> list[bytes]:
            return [one.body for one in await client.browse(topic, **where)]

        assert await bodies(states="dead") == [b"bad"]
        assert await bodies(states="dead", done_from=now - hour, done_until=now + hour) == [b"bad"]
        assert await bodies(states="dead", done_until=now - hour) == []
        assert await bodies(done_from=now - hour, group="g") == [b"bad", b"good"]
        counted = await client.redeliver_where(topic, done_from=now - hour, acked=True, dry_run=True)
        assert counted.matched == 2
    listed = shell.json("dead", "list", topic, "--from", (now - hour).isoformat())
    assert [one["body"] for one in listed] == ["bad"]
    assert shell.json("dead", "list", topic, "--after", str(listed[0]["id"])) == []
    until = shell.text("dead", "list", topic, "--until", (now - hour).isoformat())
    assert until == f"{topic} has no such dead letters.\n"
    assert len(shell.json("browse", topic, "--done-from", (now - hour).isoformat())) == 2


async def test_figures_as_numbers(daemon: Daemon, topic: str, shell: Shell) -> None:
    async with tickwheel.Client(daemon.url) as client:
        before = await client.figures()
        await client.send_many(topic, [b"x"] * 3)
        await client.send(topic, b"later", key="k", delay=timedelta(days=1))
        await client.cancel(topic, key="k")
        async with client.subscribe(topic, "g", credit=1) as subscription:
            message = await subscription.receive(PATIENCE_S)
            assert message is not None
            await message.nack(0)
            again = await subscription.receive(PATIENCE_S)
            assert again is not None
            await again.ack(confirm=True)
            found = await client.figures()
            totals = await client.figures(totals_only=True)
    assert found.totals == totals_of(found.topics)
    assert (totals.topics, totals.totals, totals.started) == ([], found.totals, found.started)
    assert totals.gauges.keys() == found.gauges.keys()
    late = found.histograms["delivery_lateness_seconds"]
    assert [
        sum(counts) for counts in zip(*(one.lateness for one in found.topics if one.lateness), strict=True)
    ] == late.counts
    assert late.count == before.histograms["delivery_lateness_seconds"].count + 3
    assert found.histograms["sync_seconds"].count > before.histograms["sync_seconds"].count
    assert found.counters["log_appended_bytes"] > before.counters["log_appended_bytes"]  # type: ignore[operator]
    assert isinstance(found.counters["refusals"], dict)
    assert found.gauges["connections"] == 1
    assert found.started == before.started
    (of_topic,) = [one for one in found.topics if one.name == topic]
    assert (of_topic.messages, of_topic.cancelled, of_topic.purged) == (4, 1, 0)
    (of_group,) = of_topic.groups
    assert sum(of_topic.lateness) == 3
    assert sum(of_group.lateness) == of_group.delivered - of_group.redelivered
    assert len(of_topic.lateness) == len(late.counts)
    assert (of_group.name, of_group.acked, of_group.subscribers) == ("g", 1, 1)
    assert of_group.redelivered == 1
    printed = shell.text("figures")
    assert "first_delivery_lateness_seconds" in printed
    assert "queue_capacity_batches" in printed
    assert shell.json("figures")["histograms"]["sync_seconds"]["counts"]


def test_figures_of_more_topics_than_fit_into_one_answer(tmp_path: Path) -> None:
    small = {"max_frame_bytes": "64KiB", "max_body_bytes": "1KiB"}
    with tickwheel.embedded(tmp_path / "data", **small) as broker, broker.sync_client() as client:
        names = {f"topic-{number}" for number in range(60)}
        for name in names:
            client.create_topic(name)
            client.create_group(name, "g")
        client.create_topic("parts", shards=4)
        client.create_group("parts", "g")
        client.send_many("parts", [b"x"] * 40, keys=[str(number) for number in range(40)])
        whole = client.figures()
    found = [one for one in whole.topics if not one.name.startswith("parts")]
    assert {one.name for one in found} == names
    assert len(found) == len(names)
    assert whole.totals == totals_of(whole.topics)
    assert whole.totals.messages == 40
    assert all([group.name for group in one.groups] == ["g"] for one in found)


def test_quantiles_are_bounds() -> None:
    values = Histogram([1.0, 2.0], [50, 49, 1], 120.0)
    assert [values.quantile(share) for share in (0.5, 0.51, 0.99)] == [1.0, 2.0, 2.0]
    assert values.quantile(0.999) == float("inf")
    assert Histogram([1.0], [0, 0], 0.0).quantile(0.5) == 0.0


async def test_who_is_connected(daemon: Daemon, topic: str, shell: Shell) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    async with (
        tickwheel.Client(daemon.url, name=f"reader of {topic}\x1b[2J") as reader,
        tickwheel.Client(daemon.url) as client,
    ):
        await client.send_many(topic, [b"x"] * 5)
        async with reader.subscribe(topic, "g", credit=3, batch=2) as subscription:
            assert await subscription.receive(PATIENCE_S) is not None
            with trio.fail_after(PATIENCE_S):
                while True:
                    (found,) = [
                        one for one in await client.clients() if one.name == f"reader of {topic}\x1b[2J"
                    ]
                    if found.subscriptions[0].leases == 3 and not found.queued_bytes:
                        break
            (one,) = found.subscriptions
            assert (one.topic, one.group, one.credit, one.batch) == (topic, "g", 3, 2)
            assert found.peer.startswith("127.0.0.1:")
            assert (found.token, found.more_subscriptions) == ("anonymous", 0)
            assert before < found.since < datetime.now(UTC) + timedelta(seconds=1)
            printed = shell.text("clients")
            assert f"{topic}/g" in printed
            assert "\x1b" not in printed, "a client's name does not steer the terminal"
            ids = [one["id"] for one in shell.json("clients")]
            assert found.id in ids
            assert ids == sorted(ids)
    with trio.fail_after(PATIENCE_S):
        async with tickwheel.Client(daemon.url) as client:
            while found.id in [one.id for one in await client.clients()]:
                await trio.sleep(0.01)


async def test_fetches_that_wait_are_seen(daemon: Daemon, topic: str, shell: Shell) -> None:
    name = f"polls {topic}"
    async with (
        tickwheel.Client(daemon.url, name=name) as polling,
        tickwheel.Client(daemon.url) as client,
        trio.open_nursery() as nursery,
    ):

        async def waiting() -> list[tuple[str, str, int]]:
            (found,) = [one for one in await client.clients() if one.name == name]
            return [(one.topic, one.group, one.count) for one in found.fetches]

        before = datetime.now(UTC) - timedelta(seconds=1)
        for group in ("g", "g", "h"):
            nursery.start_soon(partial(polling.fetch, topic, group, wait=timedelta(seconds=PATIENCE_S)))
        with trio.fail_after(PATIENCE_S):
            while sorted(await waiting()) != [(topic, "g", 2), (topic, "h", 1)]:
                await trio.sleep(0.01)
        (found,) = [one for one in await client.clients() if one.name == name]
        assert all(before < one.since < datetime.now(UTC) + timedelta(seconds=1) for one in found.fetches)
        assert len({one.group_id for one in found.fetches}) == 2
        assert found.more_fetches == 0
        assert f"{topic}/g 2 since " in shell.text("clients")
        await client.send(topic, b"for one of each group")
        with trio.fail_after(PATIENCE_S):
            while await waiting() != [(topic, "g", 1)]:
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()


async def test_a_connection_that_is_closed_from_outside(daemon: Daemon, topic: str, shell: Shell) -> None:
    name = f"stuck in {topic}"
    async with (
        tickwheel.Client(daemon.url, name=name) as stuck,
        tickwheel.Client(daemon.url) as client,
        stuck.subscribe(topic, "g", credit=1) as subscription,
    ):
        await client.send(topic, b"held")
        message = await subscription.receive(PATIENCE_S)
        assert message is not None
        (found,) = [one for one in await client.clients() if one.name == name]
        assert await client.disconnect(found.id) is True
        assert await client.disconnect(found.id) is False, "it is gone"
        async with client.subscribe(topic, "g") as other:
            with trio.fail_after(PATIENCE_S):
                got = [await subscription.receive(0.05), await other.receive(0.05)]
                while got == [None, None]:
                    got = [await subscription.receive(0.05), await other.receive(0.05)]
        (again,) = [one for one in got if one is not None]
        assert (again.body, again.epoch) == (b"held", 2), "what it held goes to who is there"
        assert [one.id for one in await client.clients() if one.name == name] > [found.id], (
            "it is there again"
        )
        assert (
            shell.run("clients", "disconnect", str(found.id), code=1)
            .stdout.decode()
            .startswith(f"{found.id}: ")
        )
        daemon.wait_for_event("Disconnect")


def test_more_clients_than_fit_into_one_answer(tmp_path: Path) -> None:
    small = {"max_frame_bytes": "64KiB", "max_body_bytes": "1KiB"}
    with (
        tickwheel.embedded(tmp_path / "data", **small) as broker,
        ExitStack() as stack,
        broker.sync_client() as client,
    ):
        for number in range(100):
            stack.enter_context(broker.sync_client(name=f"{number} {'x' * 95}"))
        found = client.clients()
    assert len({one.id for one in found}) == len(found) == 101


async def test_the_right_is_needed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    shell = Shell(tmp_path)
    tokens = {
        name: shell.json("tokens", "create", name, "--grant", f"{name}:*", "--data", str(data))["token"]
        for name in ("query", "admin")
    }
    with Daemon(data) as daemon:
        async with tickwheel.Client(daemon.url, token=tokens["query"]) as client:
            await client.figures()
            for call in (client.clients, client.audit, lambda: client.disconnect(1)):
                with pytest.raises(Forbidden):
                    await call()
            async with tickwheel.Client(daemon.url, token=tokens["admin"]) as admin:
                (first, _) = await admin.clients()
                assert first.token_name == "query"
                assert await admin.disconnect(first.id)
                with pytest.raises(Forbidden):
                    await admin.figures()
                refused = [one for one in (await admin.audit()).lines if one.outcome == "refused"]
                assert refused[-1].fields["code"] == "forbidden"
                assert refused[-1].fields["peer"].startswith("127.0.0.1:")


async def test_the_end_of_the_audit_log(daemon: Daemon, topic: str, shell: Shell) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.create_topic(topic)
        await client.set_topic(topic, rate=5)
        *_, before, last = (await client.audit()).lines
        assert [(one.event, one.outcome) for one in (before, last)] == [("SetTopic", "ok")] * 2
        assert last.fields["subject"] == topic
        assert last.timestamp.endswith("Z")
        found = await client.audit(after=before.number)
        assert (found.lines, found.has_gap) == ([last], False)
        assert (await client.audit(after=last.number)).lines == []
        assert (await client.audit(limit=1)).lines == [last]
        assert (await client.audit(after=1)).has_gap, "before the broker started"
        await client.delete_topic(topic)
    (line,) = shell.json("audit", "--after", str(last.number), "--limit", "1")
    assert (line["event"], line["fields"]["subject"]) == ("DeleteTopic", topic)
    assert f"ok DeleteTopic peer={line['fields']['peer']}" in shell.text("audit")


async def test_the_audit_log_is_followed(daemon: Daemon, topic: str, shell: Shell) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.create_topic(topic)
        with shell.start("audit", "--follow", "--limit", "1", "--json") as following:
            assert following.stdout is not None
            output = following.stdout

            async def next_event() -> str:
                with trio.fail_after(PATIENCE_S):
                    line = await trio.to_thread.run_sync(output.readline, abandon_on_cancel=True)
                return str(json.loads(line)["event"])

            try:
                assert await next_event() == "SetTopic", "what was last when it began"
                await client.set_topic(topic, rate=5)
                await client.delete_topic(topic)
                assert [await next_event(), await next_event()] == ["SetTopic", "DeleteTopic"]
                following.send_signal(signal.SIGINT)
                with trio.fail_after(PATIENCE_S):
                    code = await trio.to_thread.run_sync(following.wait, abandon_on_cancel=True)
                assert code == 0
            finally:
                following.kill()


async def test_the_life_of_a_message(daemon: Daemon, topic: str, shell: Shell) -> None:
    async with tickwheel.Client(daemon.url) as client:
        sent = await client.send(topic, b"x", key="k")
        (first,) = await client.fetch(topic, "g", wait=timedelta(seconds=PATIENCE_S))
        assert await first.nack(timedelta(0), error="card \x1b[2J refused") == "nacked"
        (second,) = await client.fetch(topic, "g", wait=timedelta(seconds=PATIENCE_S))
        await second.ack(confirm=True)
        found = await client.history(id=sent.id)
        assert found is not None
        assert (found.id, found.topic, found.is_complete) == (sent.id, topic, True)
        names = ["sent", "due", "delivered", "nacked", "delivered", "acked"]
        assert [event.event for event in found.events] == names
        assert [event.epoch for event in found.events] == [0, 0, 1, 1, 2, 2]
        assert found.events[0].time is not None
        assert found.events[2].next is not None
        assert found.events[3].after is not None
        assert await client.history(topic, key="k") == found
        assert await client.history(topic, key="other") is None
        assert await client.history(id=1 << 40) is None
        with pytest.raises(UnknownTopic):
            await client.history(f"{topic}-other", key="k")
        short = await client.history(id=sent.id, limit=2)
        assert short is not None
        assert (len(short.events), short.missing) == (2, ["limit"])
    told = shell.json("history", str(sent.id))
    assert [event["event"] for event in told["events"]] == names
    assert shell.json("history", topic, "k") == told
    text = shell.text("history", topic, "k")
    assert f"message {sent.id} of {topic}" in text
    assert "refused" in text
    assert "\x1b" not in text
    cut = shell.run("history", str(sent.id), "--limit", "1")
    assert b"Not complete: there are more events" in cut.stderr
    assert b"or none any more" in shell.run("history", topic, "other", code=1).stderr
    shell.run("history", topic, code=2)


async def test_a_history_needs_the_right_to_look_into_its_topic(tmp_path: Path) -> None:
    data, shell = tmp_path / "data", Shell(tmp_path)
    tokens = {
        name: shell.json("tokens", "create", name, "--grant", grant, "--data", str(data))["token"]
        for name, grant in (("looks", "query:mine"), ("all", "publish:*"))
    }
    with Daemon(data) as daemon:
        async with tickwheel.Client(daemon.url, token=tokens["all"]) as client:
            mine, theirs = [await client.send(name, b"x", key="k") for name in ("mine", "theirs")]
        async with tickwheel.Client(daemon.url, token=tokens["looks"]) as client:
            assert await client.history(id=mine.id) is not None
            assert await client.history("mine", key="k") is not None
            assert await client.history(id=theirs.id) is None
            with pytest.raises(Forbidden):
                await client.history("theirs", key="k")


async def test_what_happens_is_followed_over_a_restart(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Daemon(data) as daemon:
        async with tickwheel.Client(daemon.url) as client:
            end = (await client.events()).next
            assert await client.events(end) == await client.events(), "nothing has happened"
            sent = await client.send("orders", b"x", key="k")
            (message,) = await client.fetch("orders", "g", wait=timedelta(seconds=PATIENCE_S))
            found = await client.events(end)
            told = [(one.event, one.id, one.topic, one.group) for one in found.events]
            assert told == [
                ("sent", sent.id, "orders", ""),
                ("due", sent.id, "orders", ""),
                ("delivered", sent.id, "orders", "g"),
            ]
            assert found.events[2].next is not None
            assert not found.has_gap
            await message.ack(confirm=True)
            with pytest.raises(BadRequest):
                await client.events((found.next[0] + (1 << 40), 0))
            with pytest.raises(BadRequest):
                await client.events((found.next[0] - 1, 0))
    with Daemon(data) as daemon:
        async with tickwheel.Client(daemon.url) as client:
            assert [one.event for one in (await client.events(found.next)).events] == ["acked"]
            first = await client.events("earliest", limit=2)
            assert ([one.event for one in first.events], first.more) == (["sent", "due"], True)


async def test_events_are_printed_as_they_happen(daemon: Daemon, topic: str, shell: Shell) -> None:
    async with tickwheel.Client(daemon.url) as client:
        place = (await client.events()).next
        with shell.start("events", "--follow", "--from", f"{place[0]}.{place[1]}", "--json") as following:
            assert following.stdout is not None
            output = following.stdout

            async def next_of_topic() -> dict[str, Any]:
                with trio.fail_after(PATIENCE_S):
                    while True:
                        line = await trio.to_thread.run_sync(output.readline, abandon_on_cancel=True)
                        event: dict[str, Any] = json.loads(line)
                        if event["topic"] == topic:
                            return event

            try:
                sent = await client.send(topic, b"x", delay=timedelta(hours=1))
                event = await next_of_topic()
                assert (event["event"], event["id"]) == ("sent", sent.id)
                await client.cancel(id=sent.id)
                assert (await next_of_topic())["event"] == "cancelled"
                following.send_signal(signal.SIGINT)
                with trio.fail_after(PATIENCE_S):
                    code = await trio.to_thread.run_sync(following.wait, abandon_on_cancel=True)
                assert code == 0
                assert following.stderr is not None
                last = following.stderr.read().decode().split()
            finally:
                following.kill()
        again = shell.run("events", "--from", last[1], "--limit", "5")
        assert last[0] == "next:"
        assert not [line for line in again.stdout.decode().splitlines() if topic in line]
        text = shell.text("events", "--from", f"{place[0]}.{place[1]}")
        assert f"  sent  {sent.id}  {topic}  due " in text
        assert b"is no place" in shell.run("events", "--from", "soon", code=2).stderr
