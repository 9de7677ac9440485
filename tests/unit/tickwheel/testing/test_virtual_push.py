"""`tickwheel push` in the test kit: its own code on a clock that the test moves, with applications for the network."""

from __future__ import annotations

import doctest
import email.utils
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest
from standardwebhooks import Webhook

import tickwheel
from tests.unit.tickwheel.both import on_both
from tickwheel.errors import BadArgument, BadTime, NotConnected, PushMissing
from tickwheel.protocol.breaker import FAILURES
from tickwheel.testing import ManualClock, TestBroker, broker, http
from tickwheel.testing.applications import Applications, Posted
from tickwheel.testing.asgi import Application, Receive, Scope, Send
from tickwheel.watching.attention import remarks
from tickwheel_push.http.addresses import location_of

pytest_plugins = ["tickwheel.testing.fixtures"]

START = datetime(2031, 5, 1, 9, tzinfo=UTC)
URL = "https://shop.example/hooks"
MS = timedelta(milliseconds=1)


def answers(*statuses: int, headers: dict[str, str] | None = None, body: bytes = b"") -> Application:
    """One after the other, and the last one from then on."""
    left = list(statuses)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        status = left.pop(0) if len(left) > 1 else left[0]
        named = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        await send({"type": "http.response.start", "status": status, "headers": named})
        await send({"type": "http.response.body", "body": body})

    return app


def times(requests: list[Posted]) -> list[timedelta]:
    """Since the start."""
    return [request.at - START for request in requests]


async def endpoint(client: tickwheel.Client, **fields: Any) -> tickwheel.Endpoint:
    return await client.set_endpoint("shop", topic="orders", url=URL, **fields)


@on_both
async def test_a_reminder_in_30_days_is_posted_at_its_due_time() -> None:
    async with broker(start=START) as one, one.client() as client, http.push(one) as push:
        shop = await endpoint(client)
        sent = await client.send("orders", b'{"order": 17}', delay=timedelta(days=30))
        await push.advance(timedelta(days=30) - MS)
        assert not push.requests
        await push.advance(MS)
        (request,) = push.requests
        assert (request.at, request.attempt, request.status) == (START + timedelta(days=30), 1, 204)
        assert (request.method, request.url, request.json()) == ("POST", URL, {"order": 17})
        assert request.headers["tickwheel-due"] == "2031-05-31T09:00:00.000Z"
        assert request.headers["webhook-timestamp"] == str(int(request.at.timestamp()))
        assert request.is_signed_with(shop.secrets[0])
        assert not request.is_signed_with("whsec_b25lIG1vcmUgZm9yIGFsbCBvZiB0aGVt")
        info = await client.message(id=sent.id)
        assert info is not None
        assert [group.state for group in info.groups] == ["acked"]


@on_both
async def test_retries_come_at_the_scheduled_times_and_then_a_dead_letter() -> None:
    async with broker(start=START) as one, one.client() as client, http.push(one, answers(500)) as push:
        await endpoint(client)
        await client.send("orders", b"17")
        await push.settle()
        assert times(push.requests) == [timedelta(0)]
        await push.advance(timedelta(days=7))
        minutes = [0, 5, 30, 120, 300, 600, 840, 1_200, 1_440]
        wanted, at = [timedelta(0)], timedelta(seconds=5)
        for delay in minutes:
            at += timedelta(minutes=delay)
            wanted.append(at)
        assert times(push.requests) == wanted
        assert [request.attempt for request in push.requests] == list(range(1, 11))
        (letter,) = await client.browse("orders.dead", max_body_bytes=10)
        assert (letter.body, letter.deliver_at) == (b"17", START + at)


async def test_the_state_of_an_endpoint_is_one_everywhere() -> None:
    app = answers(503)
    async with broker(start=START) as one, one.client() as client:
        made = await endpoint(client)
        assert made.state.text(START) == "not served: no `tickwheel push` sends to it"
        async with http.push(one, app) as push:
            await client.set_endpoint("odd", topic="orders", url="https://shop.example:9/", start="latest")
            await push.settle()
            states = {found.name: found.state.text(START) for found in await client.endpoints()}
            assert states == {"odd": "not served: port 9 is not allowed (--port)", "shop": "delivering"}
            await client.test_endpoint("shop")
            await push.settle()
            assert (await client.endpoint("shop")).state.name == "delivering", "a test does not count"
            (attempt,) = (await client.endpoint_attempts("shop")).attempts
            assert (attempt.is_test, attempt.outcome, attempt.error) == (True, "nacked", "HTTP 503")
            assert attempt.next is None, "it is not tried again"

            for _ in range(FAILURES):
                await client.send("orders", b"17")
            await push.advance(timedelta(minutes=10))
            now = one.clock.now()
            wanted = (await client.endpoint("shop")).state
            assert (wanted.name, wanted.reason, wanted.since) == ("failing", "HTTP 503", START)
            assert wanted.next is not None
            assert now < wanted.next < now + timedelta(minutes=31)
            text = wanted.text(now)
            assert re.fullmatch(r"failing: HTTP 503 since 09:00, next try 09:[\d:]+ UTC", text)
            assert (await client.group("orders", "push.shop")).endpoint_state == wanted
            (topic,) = [found for found in await client.topics() if found.name == "orders"]
            assert {group.name: group.endpoint_state for group in topic.groups}["push.shop"] == wanted
            figures = await client.figures()
            counts = figures.gauges["endpoints"]
            assert counts == {"delivering": 0, "failing": 1, "not_served": 1, "paused": 0}
            # What is about no group is about this machine's disk.
            about = {found.group: found.text for found in remarks(figures, None) if found.group}
            assert about == {
                "push.odd": f"not served: port 9 is not allowed (--port); {FAILURES} messages wait.",
                "push.shop": f"{text}; {FAILURES} messages wait.",
            }
            assert not [text for text in about.values() if "no consumer" in text]
            await client.disable_endpoint("shop", "it moves")
            await push.settle()
            assert (await client.endpoint("shop")).state.text(now) == "paused: it moves since 09:10 UTC"
        async with http.push(one, answers(200)) as push:
            await client.enable_endpoint("shop")
            await push.settle()
            await push.advance(timedelta(hours=1))
            assert (await client.endpoint("shop")).state.name == "delivering"
    async with broker(start=START) as one, one.client() as client:
        await endpoint(client)
        async with http.push(one, app) as push:
            await client.send("orders", b"17")
            await push.settle()
            assert (await client.endpoint("shop")).state.name == "failing"
        with anyio.fail_after(30):
            while (await client.endpoint("shop")).state.name == "failing":  # its connection ends
                await anyio.sleep(0.01)
        assert (await client.endpoint("shop")).state.name == "not_served"


async def test_a_schedule_calls_the_url_for_a_month() -> None:
    """With the change to summer time in it."""
    start = datetime(2031, 3, 10, tzinfo=UTC)
    async with broker(start=start) as one, one.client() as client, http.push(one) as push:
        await endpoint(client)
        await client.create_schedule("nightly", "orders", cron="0 3 * * *", tz="Europe/Paris")
        await push.advance(timedelta(days=30))
        hours = [2] * 20 + [1] * 10
        assert [request.at for request in push.requests] == [
            start + timedelta(days=day, hours=hour) for day, hour in enumerate(hours)
        ]


async def test_what_is_cancelled_over_http_is_not_posted() -> None:
    async with (
        broker(start=START) as one,
        one.client() as client,
        http.started(http.web(one)) as api,
        http.push(one) as push,
    ):
        fields = {"topic": "orders", "url": URL}
        assert (await http.ask(api, "PUT", "/v1/endpoints/shop", fields)).status == 201
        for key in ("tea", "bed"):
            sent = await http.ask(
                api, "POST", "/v1/topics/orders/messages", {"text": key, "key": key, "delay": "30d"}
            )
            assert sent.status == 201
        await push.advance(timedelta(days=29))
        cancelled = await http.ask(api, "DELETE", "/v1/topics/orders/keys/tea")
        assert (cancelled.status, cancelled.json()) == (200, {"result": "cancelled"})
        await push.advance(timedelta(days=2))
        assert [(request.body, request.at - START) for request in push.requests] == [
            (b"bed", timedelta(days=30))
        ]
        again = await http.ask(api, "DELETE", "/v1/topics/orders/keys/bed")
        assert (again.status, again.json()["code"]) == (409, "already_acked")
        assert (await client.group("orders", "push.shop")).backlog == 0


@on_both
async def test_an_application_that_raises_has_failed_and_is_asked_again() -> None:
    failures: list[Exception] = [ZeroDivisionError("at once"), KeyError("in the middle of its answer")]

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if len(failures) == 2:
            raise failures.pop(0)
        await send({"type": "http.response.start", "status": 503 if failures else 200, "headers": []})
        if failures:
            raise failures.pop(0)
        await send({"type": "http.response.body", "body": b"ok"})

    async with broker(start=START) as one, one.client() as client, http.push(one, app) as push:
        await endpoint(client)
        await client.send("orders", b"17")
        await push.advance(timedelta(hours=1))
        assert [(request.status, type(request.raised)) for request in push.requests] == [
            (500, ZeroDivisionError),
            (503, KeyError),
            (200, type(None)),
        ]
        assert times(push.requests) == [timedelta(seconds=after) for after in (0, 5, 305)]


@pytest.mark.parametrize("is_date", [False, True])
async def test_retry_after_keeps_the_endpoint_alone(*, is_date: bool) -> None:
    """Also messages that get due meanwhile wait, until exactly then."""
    asked_again = START + timedelta(hours=3)
    value = email.utils.format_datetime(asked_again, usegmt=True) if is_date else "10800"
    async with (
        broker(start=START) as one,
        one.client() as client,
        http.push(one, answers(503, 200, headers={"retry-after": value})) as push,
    ):
        await endpoint(client)
        await client.send("orders", b"1")
        await client.send("orders", b"2", delay=timedelta(hours=1))
        await push.advance(timedelta(days=1))
        assert push.requests[0].body == b"1"
        assert sorted(times(push.requests)) == [timedelta(0), timedelta(hours=3), timedelta(hours=3)]


async def test_the_breaker_asks_with_one_request_at_a_time() -> None:
    async with broker(start=START) as one, one.client() as client, http.push(one, answers(500)) as push:
        await endpoint(client, retry_delays=[timedelta(days=1)], max_in_flight=50)
        await client.send_many("orders", [b"x"] * 30)
        await push.settle()
        assert len(push.requests) == 30
        await client.send_many("orders", [b"y"] * 3)
        await push.advance(timedelta(minutes=1))
        assert times(push.requests)[30:] == [timedelta(seconds=after) for after in (5, 15, 35)]


async def test_an_application_that_hangs_is_timed_out_by_the_clock() -> None:
    hung = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal hung
        if not hung:
            hung += 1
            await anyio.sleep_forever()
        await answers(200)(scope, receive, send)

    patience = timedelta(milliseconds=50)
    async with (
        broker(start=START) as one,
        one.client() as client,
        http.push(one, app, patience=patience) as push,
    ):
        await endpoint(client, timeout=timedelta(seconds=100), retry_delays=[timedelta(hours=1)])
        await client.send("orders", b"1")
        await client.send("orders", b"2", delay=timedelta(seconds=10))
        await push.advance(timedelta(seconds=99))
        assert [(request.body, request.status) for request in push.requests] == [(b"1", None), (b"2", 200)]
        await push.advance(timedelta(days=1))
        assert times(push.requests) == [timedelta(seconds=after) for after in (0, 10, 3_700)]
        assert push.requests[0].error == "timeout: no answer within 100 s"
        assert push.requests[2].attempt == 2


async def test_tasks_go_to_the_applications_of_their_hosts() -> None:
    answering = {
        "eu.shop.example": answers(200),
        "http://us.shop.example:8080": answers(201),
        "https://10.0.0.1": answers(202),
    }
    urls = {
        "https://eu.shop.example/jobs/a?x=1": 200,
        "http://us.shop.example:8080/jobs/b": 201,
        "https://us.shop.example/jobs/c": "dns: us.shop.example: no application of this test stands for it",
        "https://10.0.0.1/": "refused: 10.0.0.1 is not a public address (--allow-network)",
    }
    async with broker(start=START) as one, one.client() as client, http.push(one, answering) as push:
        patterns = ["https://*.shop.example/*", "http://us.shop.example:8080/*", "https://10.0.0.1/*"]
        await client.set_endpoint("tasks", topic="http-tasks", allow_urls=patterns, retry_delays=[])
        for url in urls:
            await client.send_http_task(url, b"x", delay=timedelta(days=1))
        await push.advance(timedelta(days=1))
        assert {request.url: request.status or request.error for request in push.requests} == urls
        assert {request.at - START for request in push.requests} == {timedelta(days=1)}


async def test_what_push_would_not_call_it_does_not_call_here_either() -> None:
    """http is not allowed unless an application is named so; the message waits, and nothing is sent."""
    async with broker(start=START) as one, one.client() as client, http.push(one) as push:
        await client.set_endpoint("shop", topic="orders", url="http://shop.example/")
        await client.send("orders", b"17")
        await push.advance(timedelta(days=1))
        assert not push.requests
        await client.set_endpoint("shop", url="https://shop.example/")
        await push.settle()
        assert times(push.requests) == [timedelta(days=1)]


async def test_410_disables_the_endpoint_until_it_is_enabled() -> None:
    async with broker(start=START) as one, one.client() as client, http.push(one, answers(410, 200)) as push:
        await endpoint(client)
        await client.send("orders", b"17")
        await push.advance(timedelta(days=1))
        assert [request.status for request in push.requests] == [410]
        assert not (await client.endpoint("shop")).enabled
        await client.enable_endpoint("shop")
        await push.settle()
        assert times(push.requests) == [timedelta(0), timedelta(days=1)]


async def test_a_message_that_is_held_comes_again_when_it_was_not_settled() -> None:
    held = answers(202, 200, headers={"tickwheel-lease": "10m"})
    async with broker(start=START) as one, one.client() as client, http.push(one, held) as push:
        await endpoint(client, may_hold=True)
        await client.send("orders", b"17")
        await push.advance(timedelta(hours=1))
        assert times(push.requests) == [timedelta(0), timedelta(minutes=10)]


async def test_the_application_sends_with_a_client_of_its_own() -> None:
    """Each message leads to the next one, a day later; all of them in one call of `advance`."""
    async with broker(start=START) as one, one.client() as client:

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            number = int((await receive())["body"]) + 1
            await client.send("orders", b"%d" % number, delay=timedelta(days=1))
            await answers(200)(scope, receive, send)

        async with http.push(one, app) as push:
            await endpoint(client)
            await client.send("orders", b"1", delay=timedelta(days=1))
            await push.advance(timedelta(days=5))
            assert [(int(request.body), request.at - START) for request in push.requests] == [
                (day, timedelta(days=day)) for day in range(1, 6)
            ]


async def test_endless_answers_are_not_read_to_their_end() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": bytes(4_096), "more_body": True})

    async with broker(start=START) as one, one.client() as client, http.push(one, app) as push:
        await endpoint(client)
        await client.send("orders", b"17")
        await push.settle()
        assert [request.status for request in push.requests] == [200]


async def test_signatures_with_the_time_of_the_machine() -> None:
    """The official library compares the time with its own."""
    async with (
        broker(start=START) as one,
        one.client() as client,
        http.push(one, real_timestamps=True) as push,
    ):
        shop = await endpoint(client)
        await client.send("orders", b"17", delay=timedelta(days=1))
        await push.advance(timedelta(days=1))
        (request,) = push.requests
        Webhook(shop.secrets[0]).verify(request.body, request.headers, json_parse=False)
        assert request.at == START + timedelta(days=1)


async def test_the_clock_may_be_moved_by_itself() -> None:
    async with broker(start=START) as one, one.client() as client, http.push(one, answers(503, 200)) as push:
        await endpoint(client)
        await client.send("orders", b"17", delay=timedelta(days=1))
        one.clock.advance(timedelta(days=1))
        await push.settle()
        one.clock.advance(timedelta(seconds=5))
        await push.settle()
        assert times(push.requests) == [timedelta(days=1), timedelta(days=1, seconds=5)]
        with pytest.raises(BadTime):
            await push.advance(-MS)
    with pytest.raises(BadArgument, match="does not run"):
        await push.settle()


async def test_rates_and_pauses_are_kept_by_the_clock() -> None:
    """Also where replies of the broker do not wait for the disk."""
    async with broker(start=START, durability="os") as one, one.client() as client, http.push(one) as push:
        await endpoint(client, rate=2)
        await client.send_many("orders", [b"x"] * 5)
        await push.advance(timedelta(seconds=1))
        await client.pause_topic("orders")
        await push.advance(timedelta(hours=1))
        assert times(push.requests) == [timedelta(seconds=after) for after in (0, 0.5, 1)]
        await client.resume_topic("orders")
        await push.advance(timedelta(seconds=1))
        assert times(push.requests)[3:] == [
            timedelta(hours=1, seconds=1),
            timedelta(hours=1, seconds=1.5),
        ]


async def test_an_endpoint_that_is_disabled_can_be_deleted_once_all_is_settled() -> None:
    async with broker() as one, one.client() as client, http.push(one) as push:
        for _ in range(10):
            await endpoint(client)
            await push.settle()
            await client.disable_endpoint("shop")
            await push.settle()
            await client.delete_endpoint("shop")


async def test_a_broker_that_has_ended_is_told_of() -> None:
    async with broker() as one, http.push(one) as push:
        await push.settle()
        one.close()
        with pytest.raises(NotConnected):
            await push.settle()


async def test_a_test_that_fails_fails_with_its_own_error() -> None:
    with pytest.raises(ZeroDivisionError):
        async with broker() as one, http.push(one):
            raise ZeroDivisionError


# Without async ---------------------------------------------------------------------------------


@pytest.fixture
def tickwheel_answering() -> Any:
    state: dict[str, Any] = {"life": []}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            assert (await receive())["type"] == "lifespan.startup"
            scope["state"] |= state
            await send({"type": "lifespan.startup.complete"})
            assert (await receive())["type"] == "lifespan.shutdown"
            state["life"].append("over")
            await send({"type": "lifespan.shutdown.complete"})
            return
        scope["state"]["life"].append((await receive())["body"].decode())
        await answers(200)(scope, receive, send)

    app.state = state  # type: ignore[attr-defined]
    return app


def test_with_fixtures(tickwheel_broker: TestBroker, tickwheel_push: Any, tickwheel_answering: Any) -> None:
    with tickwheel_broker.sync_client() as client:
        client.set_endpoint("shop", topic="orders", url=URL)
        client.send("orders", b"renew", delay=timedelta(days=30))
        tickwheel_push.advance(timedelta(days=30))
        (request,) = tickwheel_push.requests
        assert (request.body, request.status) == (b"renew", 200)
        assert tickwheel_answering.state["life"] == ["renew"]


def test_the_lifespan_ends_with_the_block(tickwheel_answering: Any) -> None:
    with broker() as one, http.sync_push(one, tickwheel_answering) as push:
        push.settle()
        assert tickwheel_answering.state["life"] == []
    assert tickwheel_answering.state["life"] == ["over"]
    with pytest.raises(BadArgument, match="does not run"):
        push.settle()


# Its face and its parts --------------------------------------------------------------------------


def test_what_its_documentation_shows_works() -> None:
    assert doctest.testmod(http).failed == 0


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.startswith(("tickwheel_push", "tickwheel.testing.applications", "tickwheel.testing.push")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "httpcore2", None)
    with broker() as one, pytest.raises(PushMissing) as caught:
        http.push(one)
    assert "tickwheel[push]" in caught.value.advice
    with pytest.raises(PushMissing):
        _ = http.Posted
    monkeypatch.undo()
    assert http.Posted is Posted
    with pytest.raises(AttributeError, match="Posts"):
        _ = http.Posts  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "text", ["", "https://", "ftp://shop.example", "shop.example:8080", "shop.example/path", "u@shop.example"]
)
def test_what_is_no_host(text: str) -> None:
    with pytest.raises(BadArgument):
        Applications({text: answers(200)})


@pytest.mark.parametrize(
    ("host", "url", "is_meant"),
    [
        ("shop.example", "https://shop.example/x", True),
        ("shop.example", "http://shop.example:8080/x", True),
        ("shop.example", "https://eu.shop.example/x", False),
        ("Shop.Example", "https://shop.example/", True),
        ("https://shop.example:443", "https://shop.example/", True),
        ("https://shop.example", "http://shop.example/", False),
        ("https://shop.example", "https://shop.example:8443/", False),
        ("http://[2001:db8::1]:8080", "http://[2001:db8::1]:8080/", True),
        ("[2001:db8::1]", "https://[2001:db8::1]/", True),
        ("*", "https://shop.example/", True),
    ],
)
def test_which_application_stands_for_a_host(host: str, url: str, *, is_meant: bool) -> None:
    found = Applications({host: answers(200)}).of(location_of(url))
    assert (found is not None) is is_meant


def test_the_clock_says_when_something_happens_next() -> None:
    clock = ManualClock(START)
    assert clock.next_ms() is None

    async def main(advance: Callable[[timedelta], None]) -> list[int | None]:
        alarm, seen = clock.alarm(), [clock.next_ms()]
        async with anyio.create_task_group() as group:
            group.start_soon(alarm.sleep_until, clock.now_ms() + 5_000)
            await anyio.wait_all_tasks_blocked()
            seen.append(clock.next_ms())
            advance(timedelta(seconds=5))
        alarm.close()
        return [*seen, clock.next_ms()]

    begin = clock.now_ms()
    assert anyio.run(main, clock.advance, backend="trio") == [begin, begin + 5_000, None]


# Tests of endpoints ------------------------------------------------------------------------------


@on_both
async def test_a_test_of_an_endpoint_is_posted_once_also_while_it_is_disabled() -> None:
    async with broker(start=START) as one, one.client() as client, http.push(one, answers(503, 204)) as push:
        shop = await endpoint(client)
        await client.disable_endpoint("shop")
        first = await client.test_endpoint("shop")
        await push.settle()
        (request,) = push.requests
        assert (request.status, request.json(), request.at) == (503, {"test": True}, START)
        assert request.headers["ce-type"] == "tickwheel.test"
        assert request.is_signed_with(shop.secrets[0])
        await push.advance(timedelta(days=4))
        assert len(push.requests) == 1, "it is not sent again"
        second = await client.test_endpoint("shop")
        await push.settle()
        assert [request.status for request in push.requests] == [503, 204]
        assert first < second
        assert (await client.message(id=second)).groups[0].state == "acked"  # type: ignore[union-attr]


@on_both
async def test_a_test_that_nothing_took_in_time_is_not_posted() -> None:
    async with broker(start=START) as one, one.client() as client:
        await endpoint(client)
        missed = await client.test_endpoint("shop")
        one.clock.advance(timedelta(hours=1))
        async with http.push(one) as push:
            await push.settle()
            assert push.requests == []
            sent = await client.test_endpoint("shop")
            await push.settle()
            assert [request.headers["webhook-id"] for request in push.requests] == [f"msg_{sent}"]
        assert missed < sent
