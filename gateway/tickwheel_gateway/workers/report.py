"""What a worker tells its supervisor: whether it serves, and its figures. A line of JSON each.

The supervisor asks with a line that is a number, and the report has it again. Number 0 was not asked for: the worker
serves from now on.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Final

import trio
from prometheus_client.core import Metric
from prometheus_client.samples import Sample

MOST_BYTES: Final = 4 << 20
"""Of a line."""
_CHUNK: Final = 65_536


@dataclass(frozen=True, slots=True)
class Report:
    """At one moment."""

    number: int
    is_ready: bool
    metrics: list[Metric] = field(default_factory=list)


def encode_report(report: Report) -> bytes:
    """The line."""
    metrics = [
        [one.name, one.documentation, one.type, [[it.name, it.labels, it.value] for it in one.samples]]
        for one in report.metrics
    ]
    return json.dumps([report.number, report.is_ready, metrics]).encode() + b"\n"


def decode_report(line: bytes) -> Report:
    """What the line says."""
    number, is_ready, metrics = json.loads(line)
    return Report(number, is_ready, [_metric(*one) for one in metrics])


def labelled(metrics: Iterable[Metric], **labels: str) -> list[Metric]:
    """The same, with labels that each series has."""
    found = []
    for one in metrics:
        metric = Metric(one.name, one.documentation, one.type)
        metric.samples = [Sample(it.name, {**labels, **it.labels}, it.value) for it in one.samples]
        found.append(metric)
    return found


def joined(metrics: Iterable[Metric]) -> list[Metric]:
    """Of each name one, with the series of all."""
    found: dict[str, Metric] = {}
    for one in metrics:
        metric = found.setdefault(one.name, Metric(one.name, one.documentation, one.type))
        metric.samples += one.samples
    return list(found.values())


async def lines(stream: trio.abc.ReceiveStream) -> AsyncIterator[bytes]:
    """Until the other end is closed, or is no such one."""
    buffer = bytearray()
    while len(buffer) <= MOST_BYTES:
        try:
            chunk = await stream.receive_some(_CHUNK)
        except trio.BrokenResourceError:
            return
        if not chunk:
            return
        searched = len(buffer)
        buffer += chunk
        while (end := buffer.find(b"\n", searched)) >= 0:
            line = bytes(buffer[:end])
            del buffer[: end + 1]
            searched = 0
            yield line


def _metric(name: str, text: str, kind: str, samples: list[tuple[str, dict[str, str], float]]) -> Metric:
    metric = Metric(name, text, kind)
    metric.samples = [Sample(*one) for one in samples]
    return metric
