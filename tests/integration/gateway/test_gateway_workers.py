"""Two workers of `tickwheel gateway` on one port: what a client begins at one it can end at another, and how workers
begin and end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

import tickwheel
from tests.support.clients.http_client import get, scrape
from tests.support.processes.cli_harness import Shell
from tests.support.processes.daemon_harness import Daemon
from tests.support.rocketmq.gateway_caller import CLIENT, Caller, consumer
from tests.support.rocketmq.gateway_process import Gateway
from tests.support.rocketmq.gateway_sending import message, transaction
from tickwheel_bench.processes import children_of, is_gone, wait_until
from tickwheel_gateway.wire import schema
from tickwheel_gateway.wire.codes import Code

TWO = ("--workers", "2", "--invisible-min", "1s")


class Two:
    """A client of each worker."""

    def __init__(self, gateway: Gateway, opened: ExitStack) -> None:
        self._base = gateway.metrics.removesuffix("/metrics")
        found: dict[str, Caller] = {}
        while len(found) < 2:
            before = {worker: float(worker in found) for worker in "01"}
            wait_until(lambda: self._connections() == before)  # noqa: B023  # those of other tests have gone
            caller = opened.enter_context(Caller(gateway.address))
            assert caller.ask("Heartbeat", schema.HeartbeatRequest(client_type=1)).status.code == Code.OK
            (worker,) = (one for one, count in self._connections().items() if count > before[one])
            if worker in found:
                caller.channel.close()
            else:
                found[worker] = caller
        self.first, self.second = found["0"], found["1"]

    def _connections(self) -> dict[str, float]:
        return {worker: self.figure("connections", worker) for worker in "01"}

    def figure(self, name: str, worker: str) -> float:
        return scrape(self._base).value(f"gateway_{name}", worker=worker)


@pytest.fixture(scope="module")
def gateway(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(daemon.unix_url, tmp_path_factory.mktemp("process"), *TWO) as running:
        yield running


@pytest.fixture
def two(gateway: Gateway) -> Iterator[Two]:
    with ExitStack() as opened:
        yield Two(gateway, opened)


def send(caller: Caller, topic: str, *bodies: str) -> None:
    request = schema.SendMessageRequest(messages=[message(body, body.encode(), topic) for body in bodies])
    assert caller.ask("SendMessage", request).status.code == Code.OK


def receiving(topic: str, *, invisible_s: int = 30, wait_s: int = 5, **fields: Any) -> Any:
    request = schema.ReceiveMessageRequest(batch_size=1, **fields)
    request.group.name, request.message_queue.topic.name = "readers", topic
    request.filter_expression.expression = "*"
    request.invisible_duration.seconds = invisible_s
    request.long_polling_timeout.seconds = wait_s
    return request


def received(caller: Caller, topic: str, **fields: Any) -> list[Any]:
    answers = caller.stream("ReceiveMessage", receiving(topic, **fields))
    return [one.message for one in answers if one.HasField("message")]


def ack(caller: Caller, topic: str, found: Any) -> Code:
    request = schema.AckMessageRequest()
    request.group.name, request.topic.name = "readers", topic
    system = found.system_properties
    request.entries.add(message_id=system.message_id, receipt_handle=system.receipt_handle)
    return Code(caller.ask("AckMessage", request).status.code)


def test_what_one_worker_renews_is_acked_at_the_other(two: Two) -> None:
    talk = two.first.talk()
    assert talk.say(consumer("acked", "readers")).status.code == Code.OK
    send(two.second, "acked", "1")
    (found,) = received(two.first, "acked", auto_renew=True)
    assert (two.figure("renewed_receipts", "0"), two.figure("renewed_receipts", "1")) == (1, 0)
    assert ack(two.second, "acked", found) == Code.OK
    assert received(two.first, "acked", wait_s=0) == []
    assert ack(two.first, "acked", found) == Code.OK, "the same answer again"
    wait_until(lambda: two.figure("renewed_receipts", "0") == 0)
    talk.hang_up()


def test_who_says_at_the_other_that_it_goes_is_there_while_its_stream_is(two: Two) -> None:
    """One of the same name may be there."""
    talks = [caller.talk() for caller in (two.first, two.second)]
    for talk in talks:
        assert talk.say(consumer("gone", "readers")).status.code == Code.OK
    send(two.first, "gone", "1")
    (found,) = received(two.first, "gone", auto_renew=True)
    going = schema.NotifyClientTerminationRequest()
    assert two.second.ask("NotifyClientTermination", going).status.code == Code.OK
    assert two.figure("renewed_receipts", "0") == 1
    assert talks[0].say(consumer("gone", "readers")).status.code == Code.OK
    assert ack(two.first, "gone", found) == Code.OK
    for talk in talks:
        talk.hang_up()
        assert talk.status() is grpc.StatusCode.OK


def test_an_attempt_again_at_the_other(two: Two) -> None:
    """That does not know of the first: its messages come when their leases have ended."""
    send(two.first, "attempts", "1")
    (found,) = received(two.first, "attempts", invisible_s=1, attempt_id="a")
    assert found.system_properties.delivery_attempt == 1
    (again,) = received(two.second, "attempts", attempt_id="a")
    assert again.system_properties.delivery_attempt == 2
    assert ack(two.first, "attempts", found) == Code.INVALID_RECEIPT_HANDLE
    assert ack(two.first, "attempts", again) == Code.OK


def test_a_producer_is_asked_by_the_worker_that_has_its_stream(two: Two) -> None:
    one = transaction("01", topic="checks", orphaned_transaction_recovery_duration=1)
    sent = two.first.ask("SendMessage", schema.SendMessageRequest(messages=[one]))
    assert sent.status.code == Code.OK
    command = schema.TelemetryCommand()
    command.settings.client_type = schema.PRODUCER
    command.settings.publishing.topics.add(name="checks")
    talk = two.second.talk()
    assert talk.say(command).status.code == Code.OK
    asked = next(talk.answers).recover_orphaned_transaction_command
    assert asked.transaction_id == sent.entries[0].transaction_id
    deciding = schema.EndTransactionRequest(
        message_id="01", transaction_id=asked.transaction_id, resolution=schema.COMMIT
    )
    deciding.topic.name = "checks"
    assert two.first.ask("EndTransaction", deciding).status.code == Code.OK
    (found,) = received(two.second, "checks")
    assert ack(two.first, "checks", found) == Code.OK
    talk.hang_up()


def test_certificates_and_readiness_of_all(gateway: Gateway, two: Two) -> None:
    base = gateway.metrics.removesuffix("/metrics")
    assert get(f"{base}/readyz").status == 200
    gateway.process.send_signal(signal.SIGHUP)
    assert [two.figure("worker_ready", worker) for worker in "01"] == [1, 1]
    names = [family for family in scrape(base).families if family.startswith("tickwheel_gateway")]
    assert len(names) == len(set(names)) >= 10


def test_a_worker_that_is_killed_is_started_anew(daemon: Daemon, tmp_path: Path) -> None:
    with Gateway(daemon.unix_url, tmp_path, *TWO) as gateway, ExitStack() as opened:
        two = Two(gateway, opened)
        send(two.first, "killed", "1", "2")
        (held,) = received(two.first, "killed")
        workers = set(children_of(gateway.process.pid))
        os.kill(min(workers), signal.SIGKILL)
        lost = two.first if two.figure("worker_ready", "0") == 0 else two.second
        wait_until(lambda: sum(two.figure("worker_ready", worker) for worker in "01") == 2)
        assert sum(two.figure("worker_starts_total", worker) for worker in "01") == 3
        assert ack(lost, "killed", held) == Code.OK
        (other,) = received(lost, "killed")
        assert ack(lost, "killed", other) == Code.OK
        workers |= set(children_of(gateway.process.pid))
        assert len(workers) == 3
        assert gateway.end() == 0
        wait_until(lambda: all(map(is_gone, workers)))
        said = gateway.said()
        assert "again_in_s" in said
        assert "Traceback" not in said
    with tickwheel.sync.Client(daemon.url) as client:
        assert client.group("killed", "readers").backlog == 0


def test_workers_end_with_their_supervisor(daemon: Daemon, tmp_path: Path) -> None:
    with Gateway(daemon.unix_url, tmp_path, *TWO) as gateway:
        workers = children_of(gateway.process.pid)
        gateway.process.kill()
        wait_until(lambda: all(map(is_gone, workers)))
        with Gateway(daemon.unix_url, tmp_path, *TWO, "--listen", gateway.address) as again:
            assert again.address == gateway.address


def test_a_second_signal_does_not_wait(daemon: Daemon, tmp_path: Path) -> None:
    with Gateway(daemon.unix_url, tmp_path, *TWO) as gateway, ExitStack() as opened:
        workers = children_of(gateway.process.pid)
        two = Two(gateway, opened)
        assert two.first.talk().say(consumer("orders", "readers")).status.code == Code.OK
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)
        gateway.process.send_signal(signal.SIGTERM)
        base = gateway.metrics.removesuffix("/metrics")
        wait_until(lambda: get(f"{base}/readyz").status == 503)
        assert gateway.process.poll() is None, "they have not ended"
        assert gateway.end() == 0
        wait_until(lambda: all(map(is_gone, workers)))


def test_a_port_that_is_taken_is_told_once(gateway: Gateway, daemon: Daemon, tmp_path: Path) -> None:
    for workers in ("2", "1"):
        words = ("gateway", "--workers", workers, "--listen", gateway.address)
        done = Shell(tmp_path, daemon.url).run(*words, code=None)
        assert done.returncode not in (0, 70)
        assert done.stderr.decode().count("Another process listens on") == 1


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (("--workers", "0"), "at least 1"),
        (("--workers", "2", "--listen", "127.0.0.1:0", "--credentials-file", "missing"), "cannot be read"),
    ],
)
def test_what_is_refused_at_the_start(tmp_path: Path, flags: tuple[str, ...], what: str) -> None:
    done = Shell(tmp_path).run("gateway", *flags, code=None)
    assert done.returncode not in (0, 70)
    assert what in " ".join(done.stderr.decode().split())


def test_serve_starts_them_beside_the_broker(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "rocketmq": True,
        "rocketmq_listen": "127.0.0.1:0",
        "rocketmq_workers": 2,
        "unix_socket": "",
    }
    with Daemon(tmp_path / "data", **settings) as daemon:
        address = str(daemon.wait_for_event("started", exactly=True)["rocketmq"])
        wait_until(lambda: _answers(address))
        (supervisor,) = children_of(daemon.process.pid)
        workers = children_of(supervisor)
        assert len(workers) == 2
        own = niceness_of(daemon.process.pid)
        assert [niceness_of(one) for one in (supervisor, *workers)] == [min(own + 5, 19)] * 3
        assert daemon.stop() == 0
        assert all(map(is_gone, [supervisor, *workers]))


def niceness_of(pid: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, pid)


@pytest.mark.parametrize("niceness", [0, 7])
def test_how_far_it_stands_back(tmp_path: Path, niceness: int) -> None:
    settings: dict[str, Any] = {
        "rocketmq": True,
        "rocketmq_listen": "127.0.0.1:0",
        "rocketmq_niceness": niceness,
        "unix_socket": "",
    }
    with Daemon(tmp_path / "data", **settings) as daemon:
        address = str(daemon.wait_for_event("started", exactly=True)["rocketmq"])
        wait_until(lambda: _answers(address))
        (gateway,) = children_of(daemon.process.pid)
        assert niceness_of(gateway) == min(niceness_of(daemon.process.pid) + niceness, 19)


def _answers(address: str) -> bool:
    """Before one of them listens, nothing does."""
    with Caller(address) as caller:
        request = schema.HeartbeatRequest(client_type=1)
        try:
            return bool(caller.ask("Heartbeat", request, CLIENT).status.code == Code.OK)
        except grpc.RpcError:
            return False
