"""`kill -9` of the gateway for RocketMQ, of the broker behind it, and of both, in the middle of sends, receives and
acks: nothing that was answered OK is lost, none is stored twice, and nothing whose ack was answered OK comes again."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import grpc

import tickwheel
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tests.support.rocketmq.gateway_process import Gateway
from tests.support.rocketmq.gateway_sending import message, transaction
from tests.support.run.profile import amount, seed
from tickwheel_gateway.wire import schema
from tickwheel_gateway.wire.codes import Code

TOPIC, GROUP = "orders", "billing"
CALL_S: Final = 3.0
LEASE_S: Final = 1
SENDS_A_KILL: Final = 40
PREPARED: Final = 5
"""Each of so many is prepared first, and then committed."""
AT_ONCE: Final = 2
"""Clients of each kind."""
LOST: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED)
FLAGS: Final = ("--invisible-min", "1s")


class Ledger:
    """What clients were answered."""

    def __init__(self) -> None:
        self.sent: set[str] = set()
        self.ids: dict[str, set[int]] = defaultdict(set)
        """Tickwheel's numbers of those that were received, by their bodies."""
        self.acked: dict[str, int] = {}
        """In which attempt."""
        self.came_again: list[str] = []

    def received(self, found: Any) -> tuple[str, int]:
        """Its body and its attempt. One that came before it was acked is another matter."""
        body, attempt = found.body.decode(), found.system_properties.delivery_attempt
        self.ids[body].add(found.system_properties.queue_offset)
        if attempt > self.acked.get(body, attempt):
            self.came_again.append(body)
        return body, attempt


class Clients:
    """Producers and consumers that go on through everything, as RocketMQ's do: with the same id, with the same receipt,
    and after a receive without an answer with the same attempt."""

    def __init__(self, address: str, ledger: Ledger) -> None:
        self.ledger = ledger
        self.producing, self.consuming = threading.Event(), threading.Event()
        """Set when they are to end."""
        self.address = address
        self._failed: list[BaseException] = []

    @contextmanager
    def each(self, work: Callable[[grpc.Channel, int], None], over: threading.Event) -> Iterator[None]:
        """Some of them, until the block ends."""
        threads = [threading.Thread(target=self._go, args=(work, number)) for number in range(AT_ONCE)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join(PATIENCE_S)
                assert not thread.is_alive()
        if self._failed:
            raise self._failed[0]

    def until(self, is_enough: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_enough():
            assert time.monotonic() < deadline, (len(self.ledger.sent), len(self.ledger.acked))
            assert not self._failed, self._failed
            time.sleep(0.005)

    def _go(self, work: Callable[[grpc.Channel, int], None], number: int) -> None:
        options = [
            ("grpc.enable_retries", 0),
            ("grpc.initial_reconnect_backoff_ms", 50),
            ("grpc.min_reconnect_backoff_ms", 50),
            ("grpc.max_reconnect_backoff_ms", 100),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        try:
            with grpc.insecure_channel(self.address, options) as channel:
                work(channel, number)
        except BaseException as error:
            self._failed.append(error)

    def produce(self, channel: grpc.Channel, number: int) -> None:
        serial = 0
        while not self.producing.is_set():
            serial += 1
            body = f"{number}-{serial}"
            make = message if serial % PREPARED else transaction
            sending = schema.SendMessageRequest(messages=[make(body, body=body.encode())])
            answer = self._until_ok(channel, "SendMessage", sending, number)
            if serial % PREPARED == 0:
                deciding = schema.EndTransactionRequest(message_id=body, resolution=schema.COMMIT)
                deciding.topic.name = TOPIC
                deciding.transaction_id = answer.entries[0].transaction_id
                self._until_ok(channel, "EndTransaction", deciding, number)
            self.ledger.sent.add(body)

    def consume(self, channel: grpc.Channel, number: int) -> None:
        attempt = 0
        while not self.consuming.is_set():
            asking = schema.ReceiveMessageRequest(batch_size=8, attempt_id=f"{number}-{attempt}")
            asking.group.name, asking.message_queue.topic.name = GROUP, TOPIC
            asking.filter_expression.expression = "*"
            asking.invisible_duration.seconds = LEASE_S
            asking.long_polling_timeout.seconds = 1
            answers = self._ask(channel, "ReceiveMessage", asking, AT_ONCE + number)
            if answers and answers[-1].HasField("delivery_timestamp"):
                attempt += 1
            for answer in answers:
                if answer.HasField("message"):
                    self._ack(channel, answer.message, AT_ONCE + number)

    def _ack(self, channel: grpc.Channel, found: Any, number: int) -> None:
        body, attempt = self.ledger.received(found)
        asking = schema.AckMessageRequest()
        asking.group.name, asking.topic.name = GROUP, TOPIC
        handle = found.system_properties.receipt_handle
        asking.entries.add(message_id=found.system_properties.message_id, receipt_handle=handle)
        answer = self._until_ok(channel, "AckMessage", asking, number, Code.INVALID_RECEIPT_HANDLE)
        if answer.status.code == Code.OK:
            self.ledger.acked[body] = attempt

    def _until_ok(self, channel: grpc.Channel, name: str, request: Any, number: int, *other: Code) -> Any:
        """Or until it is this other answer."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            for answer in self._ask(channel, name, request, number):
                if answer.status.code in (Code.OK, *other):
                    return answer
                # RocketMQ's clients try again after each of these.
                assert answer.status.code in (Code.INTERNAL_SERVER_ERROR, Code.PROXY_TIMEOUT), answer
            assert time.monotonic() < deadline, name
            time.sleep(0.02)

    def _ask(self, channel: grpc.Channel, name: str, request: Any, number: int) -> list[Any]:
        """As much of the answer as came."""
        response = getattr(schema, f"{name}Response")
        call = channel.unary_stream(
            schema.SERVICE + name, type(request).SerializeToString, response.FromString
        )
        found: list[Any] = []
        try:
            found.extend(call(request, timeout=CALL_S, metadata=(("x-mq-client-id", f"client-{number}"),)))
        except grpc.RpcError as error:
            if error.code() not in LOST:
                raise
            time.sleep(0.02)
        return found


def test_kills_of_gateway_and_broker(tmp_path: Path) -> None:
    kills = amount("gateway_kills")
    drawn = seed("gateway kill")
    print(f"seed {drawn}")
    chance, ledger = random.Random(drawn), Ledger()
    with Daemon(tmp_path / "data") as daemon:
        gateway = Gateway(daemon.unix_url, tmp_path, *FLAGS)
        try:
            clients = Clients(gateway.address, ledger)
            with clients.each(clients.consume, clients.consuming):
                with clients.each(clients.produce, clients.producing):
                    for kill in range(kills):
                        seen = len(ledger.sent)
                        clients.until(lambda seen=seen: len(ledger.sent) >= seen + SENDS_A_KILL)  # type: ignore[misc]
                        time.sleep(chance.random() * 0.05)
                        if kill % 3 != 1:
                            ended(gateway)
                        if kill % 3 != 0:
                            daemon.kill()
                            daemon.start()
                        if kill % 3 != 1:
                            gateway = Gateway(daemon.unix_url, tmp_path, *FLAGS, "--listen", clients.address)
                    clients.until(lambda: len(ledger.sent) >= SENDS_A_KILL * (kills + 1))
                with tickwheel.sync.Client(daemon.url) as client:
                    # Of some that were acked no answer came, and when it was asked again the receipt was too old.
                    clients.until(lambda: client.group(TOPIC, GROUP).backlog == 0)
                    states = {
                        one.body.decode(): [each["state"] for each in one.groups] for one in browse(client)
                    }
        finally:
            ended(gateway)
    assert ledger.came_again == []
    assert ledger.sent <= ledger.ids.keys()
    assert {len(ids) for ids in ledger.ids.values()} == {1}, "stored twice"
    assert ledger.acked.keys() <= ledger.ids.keys() <= states.keys()
    assert {tuple(groups) for groups in states.values()} == {("acked",)}
    assert len(ledger.acked) > len(ledger.sent) // 2
    print(f"{kills} kills: {len(ledger.sent)} sends and {len(ledger.acked)} acks answered OK")


def browse(client: tickwheel.sync.Client) -> Iterator[tickwheel.BrowsedMessage]:
    """All messages."""
    after_id = 0
    while found := client.browse(TOPIC, after_id=after_id, limit=1_000):
        yield from found
        after_id = found[-1].id


def ended(gateway: Gateway) -> None:
    gateway.process.kill()
    gateway.process.communicate(timeout=PATIENCE_S)
