"""Jobs for bulk scheduling, made of Python lists."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from tickwheel.sync import Client
from timerlog.bulk.write import Columns, Manifest, Plan, Texts, write_manifest, write_segments
from timerlog.store import Store

JOB = "0123456789abcdef" * 2


def texts(items: Sequence[bytes]) -> Texts:
    at = np.concatenate([[0], np.cumsum([len(item) for item in items])]).astype(np.int64)
    return Texts(at, np.frombuffer(b"".join(items) or b"\0", np.uint8))


def columns(
    times_ms: Sequence[int],
    bodies: Sequence[bytes] | None = None,
    keys: Sequence[bytes] | None = None,
    orders: Sequence[bytes] | None = None,
    headers: Sequence[bytes] | None = None,
    priorities: Sequence[int] | None = None,
) -> Columns:
    count = len(times_ms)
    return Columns(
        np.array(times_ms, np.int64),
        texts(bodies if bodies is not None else [b"body %d" % number for number in range(count)]),
        None if keys is None else texts(keys),
        None if headers is None else texts(headers),
        None if orders is None else texts(orders),
        None if priorities is None else np.array(priorities, np.uint8),
    )


def job(
    store: Store, directory: Path, parts: Sequence[tuple[str, Columns]], now_ms: int, number: str = JOB
) -> Plan:
    """Writes a job with a run for each part, as tasks elsewhere would; ``directory`` is made."""
    plan = store.bulk.plan(number, sorted({topic for topic, _ in parts}), now_ms)
    directory.mkdir(parents=True)
    segments = [
        segment
        for index, (topic, part) in enumerate(parts)
        for segment in write_segments(plan, topic, part, store.bulk.reserve_ids, directory, f"run-{index}")
    ]
    write_manifest(Manifest(plan=plan, segments=segments), directory)
    return plan


def prepare(client: Client, topic: str, part: Columns, number: str = JOB, run: str = "run") -> Path:
    """Writes the files of a job into the broker's directory, as a task there does; where they are. A job that is
    adopted has none."""
    found = client.plan_job([topic], job=number)
    directory = Path(found.directory)
    if found.adopted is None:
        plan = msgspec.convert(found.plan, Plan)
        segments = write_segments(plan, topic, part, client.reserve_ids, directory, run)
        write_manifest(Manifest(plan=plan, segments=segments), directory)
    return directory
