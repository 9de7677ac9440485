"""h2load, the load generator of nghttp2: what its requests have, and what it says."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from tickwheel_gateway.wire import schema

_HEADERS: Final = ("content-type: application/grpc", "te: trailers", "x-mq-client-id: h2load")
_FINISHED: Final = re.compile(r"^finished in [\d.]+\w+, ([\d.]+) req/s", re.MULTILINE)
_REQUESTS: Final = re.compile(
    r"^requests: (\d+) total, \d+ started, \d+ done, (\d+) succeeded, (\d+) failed", re.MULTILINE
)


class Asked(NamedTuple):
    """A call that is made again and again."""

    method: str
    body: bytes


def heartbeat() -> Asked:
    """Of a producer."""
    return Asked("Heartbeat", _framed(schema.HeartbeatRequest(client_type=schema.PRODUCER)))


def send(topic: str, body: bytes, message_id: str) -> Asked:
    """One message, which has the same id each time."""
    request = schema.SendMessageRequest()
    message = request.messages.add()
    message.topic.name = topic
    message.body = body
    message.system_properties.message_id = message_id
    message.system_properties.body_encoding = schema.IDENTITY
    message.system_properties.message_type = schema.NORMAL
    message.system_properties.born_host = "h2load"
    return Asked("SendMessage", _framed(request))


def _framed(request: Any) -> bytes:
    """As gRPC has it: not compressed, and its length."""
    written: bytes = request.SerializeToString()
    return b"\0" + len(written).to_bytes(4, "big") + written


def command(
    program: list[str],
    address: str,
    asked: Asked,
    file: str,
    *,
    count: int,
    clients: int = 4,
    streams: int = 128,
) -> list[str]:
    """`file`: has the body."""
    headers = [word for header in _HEADERS for word in ("-H", header)]
    options = ["-n", str(count), "-c", str(clients), "-m", str(streams), "-d", file]
    return [*program, *options, *headers, f"http://{address}{schema.SERVICE}{asked.method}"]


def parse(said: str) -> dict[str, Any]:
    """Raises RuntimeError if requests have failed, or if it says nothing of them."""
    finished, requests = _FINISHED.search(said), _REQUESTS.search(said)
    if finished is None or requests is None:
        raise RuntimeError(f"h2load said: {said.strip()[-500:]}")
    total, succeeded, failed = map(int, requests.groups())
    if succeeded != total:
        raise RuntimeError(f"{failed} of {total} requests have failed: {said.strip()[-500:]}")
    return {"requests": total, "requests_per_s": round(float(finished[1]))}
