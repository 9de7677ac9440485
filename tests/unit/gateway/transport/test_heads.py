"""What the headers of a request say."""

from __future__ import annotations

from tickwheel_gateway.transport.heads import read_head


def test_of_a_header_that_comes_again_the_last_one_counts() -> None:
    """So it is with RocketMQ. Its client for Go says all of them once more with each retry of a send: with another id
    of the client such a message would be stored again, and with two signatures it would be refused."""
    once = [(b":method", b"POST"), (b":path", b"/t/Echo"), (b"content-type", b"application/grpc")]
    again = [
        (b"x-mq-client-id", b"me"),
        (b"x-mq-date-time", b"1"),
        (b"x-mq-client-id", b"me"),
        (b"x-mq-date-time", b"2"),
    ]
    found = read_head([*once, *again, (b"grpc-timeout", b"3S"), (b"grpc-timeout", b"2S")])
    assert (found.metadata["x-mq-client-id"], found.metadata["x-mq-date-time"]) == ("me", "2")
    assert found.timeout_s == 2
