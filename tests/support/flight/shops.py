"""Messages of several owners: in many states, with keys, headers, errors, shards and dead letters."""

from __future__ import annotations

from typing import Final

from tests.support.processes.daemon_harness import PATIENCE_S
from tickwheel import sync

COUNT: Final = 12

GRANTS: Final = {
    "all": ("all:*",),
    "queries": ("query:*",),
    "query-a": ("query:a.*",),
    "body-a": ("query:a.*", "consume:a.x"),
    "query-b": ("query:b.*", "consume:b.*"),
    "consumes": ("consume:*",),
    "publishes": ("publish:*",),
    "nothing": ("push:elsewhere",),
}
SECRET: Final = "hidden"
"""Stands in every name and text of what is b's."""


def fill(url: str, token: str) -> None:
    """``a.x``, ``a.y``, ``a.s`` with shards, and ``b.hidden`` with all that may give it away."""
    with sync.Client(url, token=token) as client:
        client.create_topic("a.x", max_attempts=2)
        client.create_topic("a.s", shards=2)
        client.create_topic("b.hidden", max_attempts=2)
        client.create_topic("b.hidden-s", shards=2)
        client.create_topic("b.hidden-gone")
        for number in range(COUNT):
            for topic in ("a.x", "a.y", "a.s"):
                client.send(
                    topic, f"{topic} {number}".encode(), key=f"key-{number}", headers={"n": str(number)}
                )
            for topic in ("b.hidden", "b.hidden-s", "b.hidden-gone"):
                client.send(
                    topic,
                    f"{SECRET} {number}".encode(),
                    key=f"{SECRET}-{number}",
                    headers={SECRET: str(number)},
                )
        _consume(client, "a.x", "billing", "no ax")
        _consume(client, "b.hidden", f"{SECRET}-group", f"{SECRET}-error")
        _consume(client, "b.hidden-gone", f"{SECRET}-group", f"{SECRET}-error")
        client.send("a.y", b"later", delay_ms=900_000_000, key="later")
        client.cancel("a.y", key="later")
        client.delete_topic("b.hidden-gone")
        client.create_topic("a.z")
        client.send("a.z", b"a.z 0", key="key-z")
        _consume(client, "a.z", "billing", "no az", count=1)


def _consume(client: sync.Client, topic: str, group: str, error: str, count: int = COUNT) -> None:
    """Acks those with even numbers, and has the others fail twice, so that they are dead."""
    with client.subscribe(topic, group=group) as receiving:
        for _ in range(count + count // 2):
            message = receiving.receive(timeout=PATIENCE_S)
            assert message is not None
            if int(message.body.split()[1]) % 2:
                message.nack(error=error, delay=0)
            else:
                message.ack()
