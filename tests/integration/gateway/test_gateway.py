"""`tickwheel gateway` as a process, and the official client of gRPC: who is let in, what it is told, how it ends."""

from __future__ import annotations

import resource
import select
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

import tickwheel
from tests.support.clients.http_client import get, scrape
from tests.support.processes.cli_harness import Shell
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tests.support.rocketmq.gateway_caller import CLIENT, Caller, consumer
from tests.support.rocketmq.gateway_process import Gateway
from tests.support.rocketmq.gateway_sending import message
from tests.support.rocketmq.guarded_gateway import Guarded
from tickwheel.errors import UnknownGroup, UnknownTopic
from tickwheel_bench.processes import wait_until
from tickwheel_gateway.clients.credentials import AUTHORIZATION, DATE_TIME, SESSION_TOKEN, Pair, sign
from tickwheel_gateway.wire import schema
from tickwheel_gateway.wire.codes import Code

DATE = "20261123T230000Z"


def route(topic: str) -> Any:
    request = schema.QueryRouteRequest()
    request.topic.name = topic
    request.endpoints.scheme = schema.DOMAIN_NAME
    request.endpoints.addresses.add(host="broker.example", port=18_081)
    return request


@pytest.fixture(scope="module")
def gateway(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(daemon.unix_url, tmp_path_factory.mktemp("process"), "--fifo-groups", "*-fifo") as running:
        yield running


@pytest.fixture
def caller(gateway: Gateway) -> Iterator[Caller]:
    with Caller(gateway.address) as one:
        yield one


def test_a_client_finds_the_gateway_where_it_has_found_it(caller: Caller) -> None:
    answered = caller.ask("QueryRoute", route("orders"))
    assert answered.status.code == Code.OK
    (queue,) = answered.message_queues
    assert (queue.topic.name, queue.id, queue.permission, queue.broker.id) == (
        "orders",
        0,
        schema.READ_WRITE,
        0,
    )
    assert queue.broker.endpoints == route("orders").endpoints
    request = schema.QueryAssignmentRequest()
    request.topic.name, request.group.name = "orders", "billing-fifo"
    (assignment,) = caller.ask("QueryAssignment", request).assignments
    assert (assignment.message_queue.id, assignment.message_queue.broker.endpoints.addresses[0].host) == (
        0,
        "127.0.0.1",
    )


def test_a_call_without_a_client_id_and_one_that_is_not_served(caller: Caller) -> None:
    assert caller.ask("QueryRoute", route("orders"), ()).status.code == Code.CLIENT_ID_REQUIRED
    with pytest.raises(grpc.RpcError) as caught:
        caller.channel.unary_unary(schema.SERVICE + "GetOffset")(b"", timeout=PATIENCE_S, metadata=CLIENT)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_group_is_there_before_its_first_receive(daemon: Daemon, caller: Caller) -> None:
    talk = caller.talk()
    answered = talk.say(consumer("%DLQ%mails", "readers"))
    assert (answered.status.code, answered.settings.subscription.group.name) == (Code.OK, "readers")
    assert len(answered.settings.backoff_policy.customized_backoff.next) == 18
    async with tickwheel.Client(daemon.url) as client:
        assert (await client.group("rmq.DLQ.mails", "readers")).backlog == 0
    heartbeat = schema.HeartbeatRequest(client_type=schema.PUSH_CONSUMER)
    assert caller.ask("Heartbeat", heartbeat).status.code == Code.OK
    talk.hang_up()
    assert talk.status() is grpc.StatusCode.OK
    assert (
        caller.ask("NotifyClientTermination", schema.NotifyClientTerminationRequest()).status.code == Code.OK
    )


@pytest.mark.promise("R77")
def test_a_message_there_and_back(caller: Caller) -> None:
    request = schema.SendMessageRequest()
    request.messages.append(
        message("01AB", b"hello", "letters", message_type=schema.NORMAL, born_timestamp=1_000)
    )
    answered = caller.ask("SendMessage", request)
    assert [entry.status.code for entry in answered.entries] == [Code.OK]
    asked = schema.ReceiveMessageRequest(batch_size=1)
    asked.group.name, asked.message_queue.topic.name = "readers", "letters"
    asked.filter_expression.expression = "*"
    asked.invisible_duration.seconds = 30
    asked.long_polling_timeout.seconds = 5
    found = list(caller.stream("ReceiveMessage", asked))
    assert [one.WhichOneof("content") for one in found] == ["status", "message", "delivery_timestamp"]
    received = found[1].message
    assert received.body == b"hello"
    acking = schema.AckMessageRequest()
    acking.group.name, acking.topic.name = "readers", "letters"
    acking.entries.add(message_id="01AB", receipt_handle=received.system_properties.receipt_handle)
    assert caller.ask("AckMessage", acking).status.code == Code.OK


def test_settings_that_are_none_end_the_stream(caller: Caller) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        caller.talk().say(consumer("orders", "no spaces"))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "letters" in str(caught.value.details())


def test_what_is_counted(gateway: Gateway, caller: Caller) -> None:
    base = gateway.metrics.removesuffix("/metrics")

    def routes() -> float:
        return scrape(base).value("gateway_calls_total", method="QueryRoute", code="20000")

    caller.ask("QueryRoute", route("orders"))
    before = routes()
    caller.ask("QueryRoute", route("orders"))
    assert routes() == before + 1
    found = scrape(base)
    assert found.value("gateway_connections") >= 1
    assert found.value("gateway_broker_connections") == 1
    assert get(f"{base}/readyz").status == 200


def test_more_connections_than_files(tmp_path: Path) -> None:
    """Those that are there are served on, and the broker can be reached again."""
    with (
        Daemon(tmp_path / "data") as daemon,
        Gateway(daemon.unix_url, tmp_path) as gateway,
        ExitStack() as opened,
    ):
        caller = opened.enter_context(Caller(gateway.address))
        assert caller.ask("QueryRoute", route("orders")).status.code == Code.OK
        resource.prlimit(gateway.process.pid, resource.RLIMIT_NOFILE, (64, 64))
        host, _, port = gateway.address.rpartition(":")
        while True:
            one = opened.enter_context(socket.create_connection((host, int(port)), PATIENCE_S))
            if select.select([one], [], [], 0.1)[0]:
                assert one.recv(1) == b""
                break
        daemon.kill()
        daemon.start()
        answered = caller.ask("SendMessage", schema.SendMessageRequest(messages=[message(topic="files")]))
        assert answered.status.code == Code.OK
        assert gateway.end() == 0
        assert "EMFILE" not in gateway.said()


def test_it_ends_in_order(daemon: Daemon, tmp_path: Path) -> None:
    with Gateway(daemon.url, tmp_path) as gateway, Caller(gateway.address) as caller:
        talk = caller.talk()
        assert talk.say(consumer("orders", "readers")).status.code == Code.OK
        assert gateway.end() == 0
        assert talk.status() is grpc.StatusCode.OK


def test_a_stream_outlives_its_broker_and_a_second_signal_waits_for_nothing(tmp_path: Path) -> None:
    with (
        Daemon(tmp_path / "data", auto_create_topics=False) as daemon,
        Gateway(daemon.unix_url, tmp_path, "--no-auto-create-topics") as gateway,
        Caller(gateway.address) as caller,
    ):
        Shell(tmp_path, daemon.url).run("topics", "create", "orders")
        talk = caller.talk()
        assert talk.say(consumer("orders", "readers")).status.code == Code.OK
        daemon.kill()
        daemon.start()
        assert talk.say(consumer("orders", "readers")).status.code == Code.OK
        assert caller.ask("QueryRoute", route("orders")).status.code == Code.OK
        daemon.process.send_signal(signal.SIGSTOP)
        try:
            waiting = caller.begin("QueryRoute", route("orders"))
            gateway.process.send_signal(signal.SIGTERM)
            assert talk.status() is grpc.StatusCode.OK, "it has heard the signal"
            assert gateway.end() == 0
            assert waiting.code() is grpc.StatusCode.UNAVAILABLE
        finally:
            daemon.process.send_signal(signal.SIGCONT)


def has_group(client: tickwheel.sync.Client, topic: str, group: str) -> bool:
    try:
        client.group(topic, group)
    except (UnknownTopic, UnknownGroup):
        return False
    return True


def test_what_it_was_given_while_it_stood_still_was_no_attempt(tmp_path: Path) -> None:
    """SIGSTOP, until the lease has ended."""
    asked = schema.ReceiveMessageRequest(batch_size=1)
    asked.group.name, asked.message_queue.topic.name = "readers", "letters"
    asked.filter_expression.expression = "*"
    asked.invisible_duration.seconds = 10
    asked.long_polling_timeout.seconds = 20
    request = schema.SendMessageRequest(messages=[message("01AB", b"hello", "letters")])
    with (
        Daemon(tmp_path / "data") as daemon,
        Gateway(daemon.unix_url, tmp_path) as gateway,
        Gateway(daemon.unix_url, tmp_path) as running,
        Caller(gateway.address) as caller,
        Caller(running.address) as other,
        tickwheel.sync.Client(daemon.url) as client,
    ):
        waiting = caller.stream("ReceiveMessage", asked)
        wait_until(
            lambda: scrape(gateway.metrics.removesuffix("/metrics")).value("gateway_waiting_receives") == 1
        )
        wait_until(lambda: has_group(client, "letters", "readers"))  # the gateway counts it before it asks
        gateway.process.send_signal(signal.SIGSTOP)
        assert other.ask("SendMessage", request).status.code == Code.OK
        wait_until(lambda: client.group("letters", "readers").leased > 0)
        wait_until(lambda: client.group("letters", "readers").leased == 0)
        (received,) = (
            one.message for one in other.stream("ReceiveMessage", asked) if one.HasField("message")
        )
        assert (received.body, received.system_properties.delivery_attempt) == (b"hello", 1)
        gateway.process.send_signal(signal.SIGCONT)
        waiting.cancel()


# -- who is let in -----------------------------------------------------------------------------------------------


def signed(pair: Pair) -> tuple[tuple[str, str], ...]:
    """Headers of a client with this pair."""
    return (*CLIENT, (DATE_TIME, DATE), (AUTHORIZATION, sign(pair, DATE)))


def test_signatures_tokens_and_rights(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path, {"all": "all:*", "seller": "publish:orders"})
    ca = grpc.ssl_channel_credentials(Path(guarded.ca_path).read_bytes())
    all_may, seller_may = signed(guarded.pairs["all"]), signed(guarded.pairs["seller"])
    assert guarded.file.stat().st_mode & 0o777 == 0o600
    with (
        Daemon(guarded.data) as daemon,
        Gateway(daemon.unix_url, tmp_path, *guarded.flags) as gateway,
        Caller(gateway.address, ca) as caller,
    ):
        assignment = schema.QueryAssignmentRequest()
        assignment.topic.name, assignment.group.name = "orders", "billing"

        def code(*metadata: tuple[str, str]) -> int:
            return int(caller.ask("QueryAssignment", assignment, metadata).status.code)

        wrong = sign(Pair("all", "guessed"), DATE)
        assert code(*CLIENT) == Code.UNAUTHORIZED
        assert code(*CLIENT, (DATE_TIME, DATE), (AUTHORIZATION, wrong)) == Code.UNAUTHORIZED
        assert code(*all_may) == Code.OK
        assert code(*seller_may) == Code.FORBIDDEN
        assert code(*CLIENT, (SESSION_TOKEN, guarded.tokens["seller"])) == Code.FORBIDDEN
        assert code(*CLIENT, (SESSION_TOKEN, "twk_000000000000_" + "x" * 43)) == Code.UNAUTHORIZED
        talk = caller.talk(seller_may)
        assert talk.say(consumer("orders", "billing")).status.code == Code.FORBIDDEN
        assert talk.status() is grpc.StatusCode.OK

        # A stream ends when its token does.
        talk = caller.talk(all_may)
        assert talk.say(consumer("orders", "billing")).status.code == Code.OK
        guarded.shell.run("tokens", "revoke", "all", "--yes", "--data", str(guarded.data))
        assert next(talk.answers).status.code == Code.UNAUTHORIZED
        assert talk.status() is grpc.StatusCode.OK
        assert gateway.end() == 0


def test_serve_starts_it_beside_the_broker(tmp_path: Path) -> None:
    with Daemon(tmp_path / "data", rocketmq=True, rocketmq_listen="127.0.0.1:0", unix_socket="") as daemon:
        address = str(daemon.wait_for_event("started", exactly=True)["rocketmq"])
        assert f"{tmp_path}/data/rocketmq.sock" in " ".join(daemon.urls)
        with Caller(address) as caller:
            assert caller.ask("QueryRoute", route("orders")).status.code == Code.OK
            assert daemon.stop() == 0
    assert not [event for event in daemon.events() if event["level"] in ("warning", "error")]


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (("--listen", "0.0.0.0:0"), "tls_certificate and rocketmq_credentials_file"),
        (("--listen", "8081"), "no place to listen at"),
        (("--groups", "billing"), "write it like billing=3"),
        (("--listen", "127.0.0.1:0", "--credentials-file", "missing"), "cannot be read"),
    ],
)
def test_what_is_refused_at_the_start(tmp_path: Path, flags: tuple[str, ...], what: str) -> None:
    done = Shell(tmp_path).run("gateway", *flags, code=None)
    assert done.returncode not in (0, 70)
    assert what in " ".join(done.stderr.decode().split())
