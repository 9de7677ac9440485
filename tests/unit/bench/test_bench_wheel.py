"""The wheel's benchmark measures what it says, at a tiny size."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np

from tickwheel_bench.storage import wheel


def test_figures_are_complete_and_positive() -> None:
    figures = wheel.run((1_000, 3_000))
    json.dumps(figures)
    assert [row["pending"] for row in figures["sizes"]] == [1_000, 3_000]
    for row in figures["sizes"]:
        assert row["total_ns"] == row["link_ns"] + row["collect_ns"] > 0
        assert row["churn_ns"] > 0
        assert row["log_bytes_a_timer"] >= 32
    assert figures["collections_per_s"] > 0
    assert figures["schedules_per_s"] > 0
    assert figures["flatness_ratio"] > 0


def test_batches_hold_every_message_once_in_order() -> None:
    due_ms = np.arange(25_000)
    batches = wheel.batches_of(due_ms)
    assert [len(batch) for batch in batches] == [10_000, 10_000, 5_000]
    assert np.array_equal(np.concatenate([batch.ref for batch in batches]), np.arange(25_000))
    assert np.array_equal(np.concatenate([batch.due_ms for batch in batches]), due_ms)


def test_prints_json() -> None:
    command = [sys.executable, "-m", "tickwheel_bench.storage.wheel", "--json", "--smoke"]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout
    assert [row["pending"] for row in json.loads(output)["sizes"]] == list(wheel.SMOKE_SIZES)
