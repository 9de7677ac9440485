"""Calls over one connection in memory, with `h2` as the client."""

from __future__ import annotations

import gzip
import logging
import math
from collections.abc import Sequence
from typing import Any

import pytest
import trio
import trio.testing
from h2.settings import SettingCodes

from tests.unit.gateway.transport.peer import Answer, Peer, Service, head, serving
from tickwheel_gateway.transport.call import BatchMethod, Call, CallEnded, Method
from tickwheel_gateway.transport.framing import framed
from tickwheel_gateway.transport.limits import Limits
from tickwheel_gateway.transport.sender import Sender

pytestmark = pytest.mark.usefixtures("stack")


async def test_one_message_each_way() -> None:
    service = Service()
    async with serving(service) as (server, connect):
        answer = await connect().call(b"hello", headers=head(x_mq_client_id="me"))
        assert answer.headers == {
            ":status": "200",
            "content-type": "application/grpc",
            "grpc-status": "0",
        }
        assert answer.messages == [b"hello"]
        call = service.seen[0]
        assert call.method == "/t/Echo"
        assert call.metadata["x-mq-client-id"] == "me"
        assert call.deadline == math.inf
        assert not any(name.startswith(":") for name in call.metadata)
        assert server.tally.ended == {0: 1}
        assert server.tally.calls == 0


async def test_the_last_of_equal_headers_counts() -> None:
    service = Service()
    async with serving(service) as (_, connect):
        again = [*head(x_mq_client_id="me"), *head(x_mq_client_id="me again")[-1:]]
        assert (await connect().call(b"hello", headers=again)).messages == [b"hello"]
        assert service.seen[0].metadata["x-mq-client-id"] == "me again"


async def test_each_byte_alone() -> None:
    async with serving(Service()) as (_, connect):
        peer = connect()
        stream_id = peer.ask(b"hello")
        for byte in peer.h2.data_to_send():
            await peer.stream.send_all(bytes([byte]))
            await trio.testing.wait_all_tasks_blocked()
        assert (await peer.answer(stream_id)).messages == [b"hello"]


async def test_many_calls_of_one_read_leave_in_one_write() -> None:
    async with serving(Service()) as (_, connect):
        peer = connect()
        await peer.call(b"first")
        asked = [peer.ask(b"%d" % number) for number in range(50)]
        await peer.flush()
        await trio.testing.wait_all_tasks_blocked()
        await peer.receive()
        assert [peer.answers[each].messages for each in asked] == [[b"%d" % number] for number in range(50)]


async def test_a_stream_of_answers() -> None:
    service = Service()
    async with serving(service) as (_, connect):
        answer = await connect().call(b"\x05ab", headers=head("/t/Times"))
        assert answer.messages == [b"\x05ab"] * 5
        assert answer.status == 0
        assert service.seen[0].written == 5


async def test_streams_both_ways() -> None:
    async with serving(Service()) as (_, connect):
        peer = connect()
        stream_id = peer.ask(b"one", end=False, headers=head("/t/Chat"))
        await peer.until(lambda: peer.answers[stream_id].messages == [b"one"])
        peer.put(stream_id, framed(b"two") + framed(b"three"))
        await peer.until(lambda: peer.answers[stream_id].messages == [b"one", b"two", b"three"])
        peer.h2.end_stream(stream_id)
        assert (await peer.answer(stream_id)).status == 0


async def test_gzip() -> None:
    async with serving(Service()) as (_, connect):
        data = gzip.compress(b"hello" * 100)
        peer = connect()
        for headers, status in ((head(grpc_encoding="gzip"), 0), (head(), 12)):
            stream_id = peer.ask(end=False, headers=headers)
            peer.put(stream_id, b"\1" + len(data).to_bytes(4, "big") + data, end=True)
            answer = await peer.answer(stream_id)
            assert answer.status == status
        assert answer.headers["grpc-accept-encoding"] == "identity,gzip"


async def test_small_requests_that_inflate_to_much_at_once() -> None:
    """They are bounded as one is: what is beyond that is not inflated."""
    data = gzip.compress(bytes(60_000))
    limits = Limits(message_bytes=64_000, pending_bytes=100_000)
    async with serving(Service(), limits) as (_, connect):
        peer = connect()
        streams = []
        for _ in range(20):
            stream_id = peer.ask(end=False, headers=head(grpc_encoding="gzip"))
            peer.put(stream_id, b"\1" + len(data).to_bytes(4, "big") + data, end=True)
            streams.append(stream_id)
        await peer.flush()
        answers = [await peer.answer(stream_id) for stream_id in streams]
        assert [answer.status for answer in answers] == [0, 0, *[8] * 18]


async def answer_to(peer: Peer, headers: list[tuple[str, str]], body: bytes = framed(b"x")) -> Answer:
    stream_id = peer.ask(end=False, headers=headers)
    peer.put(stream_id, body, end=True)
    return await peer.answer(stream_id)


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        (head("/t/Unknown"), framed(b"x"), 12),
        (head(), framed(b"x") * 2, 13),
        (head(), b"", 13),
        (head(), framed(b"x")[:-1], 13),
        (head(), b"\2\0\0\0\0", 13),
        (head(), b"\0\0\0\x04\1" + bytes(1025), 8),
        (head(grpc_timeout="1"), framed(b"x"), 13),
        (head(big="x" * 17_000), framed(b"x"), 8),
        (head("/t/Fail"), framed(b"x"), 3),
        (head("/t/Nothing"), framed(b"x"), 13),
    ],
)
async def test_refusals(headers: list[tuple[str, str]], body: bytes, status: int) -> None:
    async with serving(Service(), Limits(message_bytes=1024)) as (server, connect):
        peer = connect()
        answer = await answer_to(peer, headers, body)
        assert answer.headers[":status"] == "200"
        assert answer.status == status
        assert not answer.messages
        assert (await peer.call(b"others go on")).status == 0
        assert server.tally.ended[status] == 1


async def test_the_text_of_a_failure_is_encoded() -> None:
    async with serving(Service()) as (_, connect):
        answer = await connect().call(b"x", headers=head("/t/Fail"))
        assert answer.headers["grpc-message"] == "no: 100 %25 wrong, %C3%A4"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (head(content_type="application/json"), "415"),
        (head(content_type="application/grpc-web"), "415"),
        ([pair for pair in head() if pair[0] != "content-type"], "415"),
        (head(is_method="GET"), "405"),
    ],
)
async def test_what_is_no_grpc(headers: list[tuple[str, str]], status: str) -> None:
    async with serving(Service()) as (_, connect):
        answer = await answer_to(connect(), headers)
        assert answer.headers[":status"] == status


@pytest.mark.parametrize("kind", ["application/grpc+proto", "application/grpc;charset=utf-8"])
async def test_kinds_of_grpc(kind: str) -> None:
    async with serving(Service()) as (_, connect):
        assert (await answer_to(connect(), head(content_type=kind))).status == 0


async def test_a_failure_before_the_request_is_whole_stops_the_client() -> None:
    async with serving(Service()) as (_, connect):
        peer = connect()
        stream_id = peer.ask(end=False, headers=head("/t/Unknown"))
        await peer.until(lambda: peer.answers[stream_id].reset is not None)
        assert peer.answers[stream_id].status == 12
        assert peer.answers[stream_id].reset == 0


async def test_a_handler_that_breaks_tells_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(Service()) as (_, connect):
        with caplog.at_level(logging.ERROR):
            answer = await connect().call(b"x", headers=head("/t/Break"))
        assert answer.status == 13
        assert "secret" not in str(answer.headers)
        assert "secret" in caplog.text


async def test_reset_cancels() -> None:
    service = Service()
    async with serving(service) as (server, connect):
        peer = connect()
        stream_id = peer.ask(b"x", headers=head("/t/Wait"))
        await peer.flush()
        await service.began.wait()
        peer.h2.reset_stream(stream_id)
        await peer.flush()
        await trio.testing.wait_all_tasks_blocked()
        assert service.cancelled == service.seen
        assert server.tally.ended == {1: 1}
        assert (await peer.call(b"others go on")).status == 0


async def test_the_end_of_the_connection_cancels() -> None:
    service = Service()
    async with serving(service) as (server, connect):
        peer = connect()
        peer.ask(b"x", headers=head("/t/Wait"))
        await peer.flush()
        await service.began.wait()
        await peer.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert service.cancelled == service.seen
        assert server.tally.connections == 0


async def test_the_deadline_cancels(autojump_clock: trio.testing.MockClock) -> None:
    service = Service()
    async with serving(service) as (_, connect):
        began_at = trio.current_time()
        answer = await connect().call(b"x", headers=head("/t/Wait", grpc_timeout="1500m"))
        assert answer.status == 4
        assert service.cancelled == service.seen
        assert service.seen[0].deadline == pytest.approx(began_at + 1.5)
        assert trio.current_time() == pytest.approx(began_at + 1.5)


async def test_the_deadline_of_half_a_request(autojump_clock: trio.testing.MockClock) -> None:
    async with serving(Service()) as (_, connect):
        peer = connect()
        stream_id = peer.ask(end=False, headers=head(grpc_timeout="3S"))
        peer.put(stream_id, framed(b"hello")[:7])
        assert (await peer.answer(stream_id)).status == 4
        assert trio.current_time() < 10


async def test_too_many_streams_are_refused_one_by_one() -> None:
    service = Service()
    async with serving(service, Limits(streams=2)) as (_, connect):
        peer = connect()
        held = [peer.ask(b"x", headers=head("/t/Gate")) for _ in range(3)]
        assert (await peer.answer(held[2])).reset == 7
        service.go.set()
        for stream_id in held[:2]:
            assert (await peer.answer(stream_id)).status == 0
        assert (await peer.call(b"again")).status == 0


async def test_what_is_sent_after_the_end(caplog: pytest.LogCaptureFixture) -> None:
    ends: list[str] = []

    async def late(call: Call) -> None:
        call.reply(b"yes")
        call.reply(b"no")
        call.fail(3, "no")
        try:
            await call.stream(b"no")
        except CallEnded:
            ends.append("ended")
            raise

    service = Service()
    service.methods["/t/Late"] = Method(late)
    async with serving(service) as (_, connect):
        answer = await connect().call(b"x", headers=head("/t/Late"))
        assert (answer.messages, answer.status, ends) == ([b"yes"], 0, ["ended"])
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]


async def test_pings_are_answered() -> None:
    async with serving(Service()) as (_, connect):
        peer = connect()
        for number in range(20):
            peer.h2.ping(b"%08d" % number)
            await peer.until(lambda number=number: len(peer.pings) > number)  # type: ignore[misc]


async def test_the_peer_changes_its_header_table() -> None:
    """The next header block must say so, whatever is in it."""
    async with serving(Service()) as (_, connect):
        peer = connect()
        for size in (0, 4_096, 100, 0):
            assert (await peer.call(b"x", headers=head("/t/Fail"))).status == 3
            peer.h2.update_settings({SettingCodes.HEADER_TABLE_SIZE: size})
            assert (await peer.call(b"x")).messages == [b"x"]
            assert (await peer.call(b"x", headers=head("/t/Fail"))).status == 3


async def test_a_client_that_tells_of_no_change_of_its_header_table() -> None:
    """It has the table that HTTP/2 begins with: 4,096 bytes."""
    service = Service()
    async with serving(service) as (_, connect):
        peer = connect()
        assert (await peer.call(b"x")).status == 0  # its SETTINGS and the server's are acknowledged
        peer.h2.encoder.header_table_size = 4_096
        peer.h2.encoder.table_size_changes.clear()
        names = [f"x-mq-{number}" for number in range(5)]
        for name in names * 2:  # 3,600 bytes as HPACK counts, which the second round names by their index
            assert (await peer.call(b"x", headers=head(**{name: name[-1] * 680}))).status == 0
        assert [call.metadata[name] for name, call in zip(names * 2, service.seen[1:], strict=True)] == [
            name[-1] * 680 for name in names * 2
        ]


async def test_many_calls_leave_no_memory(stack: str) -> None:
    async with serving(Service()) as (server, connect):
        peer = connect()
        held = [peer.ask(end=False, headers=head("/t/Chat")) for _ in range(20)]
        await peer.call(b"x")
        (connection,) = server._connections
        engine: Any = connection._engine
        before = getattr(engine, "memory_bytes", 0)
        for _ in range(500):
            await peer.call(b"x")
        if stack == "h2":
            assert len(engine._library.streams) <= 2 * len(held) + 10
            assert len(engine._library._closed_streams) <= 128
        else:
            assert engine.memory_bytes <= before + 1_000


async def test_calls_of_one_read_are_served_together() -> None:
    batches: list[list[bytes]] = []

    async def together(calls: Sequence[Call]) -> None:
        batches.append([call.request for call in calls])
        for call in reversed(calls):
            call.reply(call.request)

    service = Service()
    service.methods["/t/Together"] = BatchMethod(together)
    async with serving(service) as (_, connect):
        peer = connect()
        await peer.call(b"first")
        asked = [peer.ask(b"%d" % number, headers=head("/t/Together")) for number in range(50)]
        taken_back = asked[7]
        peer.h2.reset_stream(taken_back)
        await peer.flush()
        answers = [await peer.answer(each) for each in asked if each != taken_back]
        assert batches == [[b"%d" % number for number in range(50) if number != 7]]
        assert [answer.messages for answer in answers] == [[each] for each in batches[0]]


async def test_a_batch_ends_with_its_last_call_and_leaves_none_unanswered() -> None:
    began, cancelled = trio.Event(), trio.Event()

    async def together(calls: Sequence[Call]) -> None:
        if calls[0].request == b"answer one":
            calls[0].reply(b"")
            return
        if calls[0].request == b"break":
            raise RuntimeError("on purpose")
        began.set()
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    service = Service()
    service.methods["/t/Together"] = BatchMethod(together)
    async with serving(service) as (_, connect):
        peer = connect()
        for request, statuses in ((b"answer one", [0, 13]), (b"break", [13, 13])):
            asked = [peer.ask(request, headers=head("/t/Together")) for _ in range(2)]
            await peer.flush()
            assert [(await peer.answer(each)).status for each in asked] == statuses
        asked = [peer.ask(b"wait", headers=head("/t/Together")) for _ in range(2)]
        await peer.flush()
        await began.wait()
        peer.h2.reset_stream(asked[0])
        await peer.flush()
        await trio.testing.wait_all_tasks_blocked()
        assert not cancelled.is_set()
        peer.h2.reset_stream(asked[1])
        await peer.flush()
        await cancelled.wait()


async def test_a_connection_whose_answer_fails_on_its_way_out_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What was taken for the socket may not have gone."""

    def broken(_: Sender) -> None:
        raise MemoryError

    async def answer(calls: Sequence[Call]) -> None:
        monkeypatch.setattr(Sender, "hurry", broken)
        calls[0].reply(b"answer")

    service = Service()
    service.methods["/t/Together"] = BatchMethod(answer)
    async with serving(service) as (_, connect):
        peer = connect()
        peer.ask(b"hello", headers=head("/t/Together"))
        await peer.until_end()
    assert "a connection failed" in caplog.text
