"""What a client that is none of RocketMQ's sees of a server: calls that the official ones do not make, step 14.

python -m tests.interop.rocketmq.raw_conformance ENDPOINT RUN
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc

from tests.support.rocketmq.gateway_sending import message
from tickwheel_gateway.filters.expressions import FilterType
from tickwheel_gateway.wire import schema

STEP: Final = 14
IN_TIME_S: Final = 60
LEASE_S: Final = 10
WAIT_S: Final = 5
CLIENT: Final = (
    ("x-mq-client-id", "raw@1@0"),
    ("x-mq-language", "JAVA"),
    ("x-mq-client-version", "5.2.0"),
    ("x-mq-protocol", "v2"),
)


def note(what: str, **fields: Any) -> None:
    print(json.dumps({"step": STEP, "what": what, **fields}), flush=True)


def outcome(work: Callable[[], Any]) -> Any:
    """The code of an answer, or how the call ended without one."""
    try:
        answer = work()
    except grpc.RpcError as error:
        return error.code().name
    return answer.status.code


class Raw:
    """A channel, and names of this run."""

    def __init__(self, channel: grpc.Channel, run: str) -> None:
        self.channel, self.topic, self.group = (
            channel,
            f"diff_{STEP}_normal_{run}",
            f"diff_{STEP}_group_{run}",
        )

    def request(self, name: str, *, topic: bool = True, group: bool = False) -> Any:
        made = getattr(schema, f"{name}Request")()
        if topic:
            made.topic.name = self.topic
        if group:
            made.group.name = self.group
        return made

    def ask(self, name: str, request: Any, metadata: Sequence[tuple[str, str]] = CLIENT) -> Any:
        call = self.channel.unary_unary(
            schema.SERVICE + name,
            type(request).SerializeToString,
            getattr(schema, f"{name}Response").FromString,
        )
        return call(request, timeout=IN_TIME_S, metadata=metadata)

    def bare(self, name: str, *, many: bool = False) -> Any:
        """A call of a method of which nothing is known here."""
        kind = self.channel.unary_stream if many else self.channel.unary_unary
        call = kind(schema.SERVICE + name, lambda data: data, lambda data: data)
        answers = call(b"", timeout=IN_TIME_S, metadata=CLIENT)
        return list(answers) if many else answers

    def receive(self, count: int, lease_s: int = LEASE_S) -> list[Any]:
        """All answers to one receive."""
        request = schema.ReceiveMessageRequest(batch_size=count)
        request.group.name = self.group
        request.message_queue.topic.name = self.topic
        request.message_queue.broker.name = self._broker()
        request.message_queue.id = -1
        request.filter_expression.expression = "*"
        request.filter_expression.type = FilterType.TAG
        request.invisible_duration.seconds = lease_s
        request.long_polling_timeout.seconds = WAIT_S
        call = self.channel.unary_stream(
            schema.SERVICE + "ReceiveMessage",
            schema.ReceiveMessageRequest.SerializeToString,
            schema.ReceiveMessageResponse.FromString,
        )
        return list(call(request, timeout=IN_TIME_S, metadata=CLIENT))

    def _broker(self) -> str:
        route = self.ask("QueryRoute", self.route(self.topic))
        return str(route.message_queues[0].broker.name)

    def route(self, topic: str) -> Any:
        request = schema.QueryRouteRequest()
        request.topic.name = topic
        request.endpoints.scheme = schema.IPV4
        request.endpoints.addresses.add(host="127.0.0.1", port=8_081)
        return request


def polls(raw: Raw) -> None:
    """Receives of a client that has not said what it is; the group is there from now on."""
    for count in (1, 0):
        codes = [one.status.code for one in raw.receive(count) if one.HasField("status")]
        note(f"receive of {count}", codes=codes)


def strangers(raw: Raw) -> None:
    """Calls without what they need, and calls of what is not there."""
    route = raw.route(raw.topic)
    note("route", outcome=outcome(lambda: raw.ask("QueryRoute", route)))
    note("no client id", outcome=outcome(lambda: raw.ask("QueryRoute", route, ())))
    note("no topic", outcome=outcome(lambda: raw.ask("QueryRoute", raw.route(""))))
    note("topic with a space", outcome=outcome(lambda: raw.ask("QueryRoute", raw.route("a b"))))
    note("unknown method", outcome=outcome(lambda: raw.bare("Nothing")))
    note(
        "heartbeat without settings", outcome=outcome(lambda: raw.ask("Heartbeat", schema.HeartbeatRequest()))
    )


def sends(raw: Raw) -> None:
    """Sends that RocketMQ's clients do not make."""
    note("no messages", outcome=outcome(lambda: raw.ask("SendMessage", schema.SendMessageRequest())))
    nameless = schema.SendMessageRequest(messages=[message("", topic=raw.topic)])
    note("no message id", outcome=outcome(lambda: raw.ask("SendMessage", nameless)))
    twice = schema.SendMessageRequest(messages=[message("01AB0014", topic=raw.topic)])
    for what in ("send", "send it again"):
        note(what, outcome=outcome(lambda: raw.ask("SendMessage", twice)))


def receipts(raw: Raw) -> None:
    """Receives, acks and what is like them."""
    got = []
    while answers := [one.message for one in raw.receive(8, lease_s=60) if one.HasField("message")]:
        got += answers
    note("received", count=len(got))
    empty = raw.request("AckMessage", group=True)
    note("ack of nothing", outcome=outcome(lambda: raw.ask("AckMessage", empty)))
    garbage = raw.request("AckMessage", group=True)
    garbage.entries.add(message_id="01AB0014", receipt_handle="garbage")
    note("ack of garbage", outcome=outcome(lambda: raw.ask("AckMessage", garbage)))
    good = raw.request("AckMessage", group=True)
    for one in got:
        good.entries.add(message_id="01AB0014", receipt_handle=one.system_properties.receipt_handle)
    note("ack", outcome=outcome(lambda: raw.ask("AckMessage", good)))
    change = raw.request("ChangeInvisibleDuration", group=True)
    change.receipt_handle, change.message_id, change.invisible_duration.seconds = "garbage", "01AB0014", 30
    note("change of garbage", outcome=outcome(lambda: raw.ask("ChangeInvisibleDuration", change)))
    end = raw.request("EndTransaction")
    end.message_id, end.resolution = "01AB0014", schema.COMMIT
    note("no transaction id", outcome=outcome(lambda: raw.ask("EndTransaction", end)))
    forward = raw.request("ForwardMessageToDeadLetterQueue", group=True)
    forward.receipt_handle, forward.message_id = "garbage", "01AB0014"
    note("forward of garbage", outcome=outcome(lambda: raw.ask("ForwardMessageToDeadLetterQueue", forward)))


def main() -> int:
    endpoint, run = sys.argv[1:3]
    with grpc.insecure_channel(endpoint) as channel:
        raw = Raw(channel, run)
        for work in (strangers, polls, sends, receipts):
            work(raw)
    note("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
