"""Brokers with messages that are done, and what an archive and a broker hold of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import tickwheel
from tests.support.processes.daemon_harness import PATIENCE_S
from tickwheel.spark.archive.manifest import OURS


def work_off(client: tickwheel.sync.Client, topic: str, count: int, group: str = "g") -> None:
    """Takes so many messages of a topic and acks them."""
    with client.subscribe(topic, group, credit=max(count, 1)) as subscription:
        for _ in range(count):
            message = subscription.receive(PATIENCE_S)
            assert message is not None
            message.ack()
        subscription.flush()


def files_of(archive: Path) -> list[Path]:
    """What a plain reader of Parquet sees."""
    return sorted(path for path in archive.rglob("*.parquet") if OURS not in path.parts)


def archived(archive: Path) -> list[dict[str, Any]]:
    """All rows that a plain reader sees, in the order of their ids."""
    rows = [row for path in files_of(archive) for row in pq.ParquetFile(path).read().to_pylist()]
    return sorted(rows, key=lambda row: int(row["id"]))


def ids_at(client: tickwheel.sync.Client) -> list[int]:
    """The ids of all messages that the broker still has."""
    rows = client.query("select distinct id from messages order by id", limit=1_000_000).rows
    return [number for (number,) in rows]


def check_each_once(archive: Path, client: tickwheel.sync.Client, sent: Sequence[int]) -> None:
    """Every message is in the archive or with the broker, and nowhere twice."""
    found = Counter([row["id"] for row in archived(archive)] + ids_at(client))
    assert found == Counter(sent)
