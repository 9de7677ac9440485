"""A report on a whole year of real departures, held against numpy over the records of the log."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.support.processes.cli_harness import Shell
from tickwheel.spark import make_report
from timerlog.commitlog.view import LogView
from timerlog.readers.describe import describe_directory
from timerlog.readers.events import Events, event_types, read_events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEPARTURES = 336_776


def joined(directory: Path, name: str) -> dict[str, Any]:
    """The columns of all events of a name."""
    described = describe_directory(directory, 0)
    log = LogView(directory / "commitlog", described.description.segment_bytes)
    try:
        parts: list[Events] = list(
            read_events(log, described.first_position, described.end_position, event_types([name]))
        )
    finally:
        log.close()
    columns = ("times_ms", "next_ms", "ids", "seqs", "group_ids", "epochs")
    return {column: np.concatenate([getattr(part, column) for part in parts]) for column in columns}


def ranks(values: Any) -> dict[str, int]:
    ordered = np.sort(values)
    places = {"p50_ms": 500, "p90_ms": 900, "p99_ms": 990, "p99_9_ms": 999, "max_ms": 1_000}
    return {name: int(ordered[math.ceil(len(ordered) * part / 1_000) - 1]) for name, part in places.items()}


@pytest.mark.soak
def test_a_year_of_departures(spark: SparkSession, tmp_path: Path) -> None:
    data = tmp_path / "data"
    demo = json.loads(Shell(tmp_path).run("demo", "--year", "--data", "data", "--json").stdout)
    assert (demo["scheduled"], demo["passed"]) == (DEPARTURES, True)
    summary = make_report(spark, data, tmp_path / "report")
    # Every message was sent with its time and none was rescheduled: a send says when each is due. The numbers of
    # messages in their one topic are those of its `due` events.
    sent, due, given, acked = (joined(data, name) for name in ("sent", "due", "delivered", "acked"))
    due_ms = np.zeros(DEPARTURES + 1, np.int64)
    due_ms[sent["ids"]] = np.maximum(sent["next_ms"], sent["times_ms"])
    of_seq = np.zeros(DEPARTURES, np.int64)
    of_seq[due["seqs"]] = due["ids"]
    first = given["epochs"] == 1
    lateness = given["times_ms"][first] - due_ms[of_seq[given["seqs"][first]]]
    # Each was delivered once to each group: the last delivery is the only one.
    delivered_ms = np.zeros((int(given["group_ids"].max()) + 1, DEPARTURES), np.int64)
    delivered_ms[given["group_ids"], given["seqs"]] = given["times_ms"]
    latency = acked["times_ms"] - delivered_ms[acked["group_ids"], acked["seqs"]]
    expected = DEPARTURES - demo["cancelled"]
    assert len(lateness) == len(latency) == 2 * expected
    for measure, values in (("lateness", lateness), ("ack_latency", latency)):
        found = summary[measure]
        assert found["count"] == len(values)
        assert {name: found[name] for name in ranks(values)} == ranks(values)
    assert (summary["lateness"]["early"], summary["totals"]["cancelled"]) == (0, demo["cancelled"])
    assert summary["totals"]["messages"] == DEPARTURES
    instants, sizes = np.unique(due_ms[of_seq[np.unique(given["seqs"])]], return_counts=True)
    (herd, *_) = summary["tables"]["herds"]["first_rows"]
    assert herd["messages"] == sizes.max()
    assert herd["deliver_at_ms"] == instants[sizes.argmax()]
