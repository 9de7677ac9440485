"""A report as JSON. docs/how-to/spark-report.md lists the fields; times are epoch milliseconds, names have units."""

from __future__ import annotations

from typing import Any, Final

from tickwheel.spark.report.build import Answers
from tickwheel.spark.report.options import STEPS_MS
from tickwheel.spark.report.output import FORMAT, TABLES

#: Goes up when a field changes its meaning or goes away, not when one is added.
VERSION: Final = 1
#: Columns of ``latency`` that are not figures.
_NAMES: Final = ("measure",)


def summarise(answers: Answers) -> dict[str, Any]:
    """Everything that the page shows, as plain values."""
    options = answers.options
    overall = {row["measure"]: row for row in answers.rows("latency")}
    return {
        "format": FORMAT,
        "version": VERSION,
        "made_ms": answers.now_ms,
        "directories": [str(one) for one in options.directories],
        "since_ms": options.period.since_ms,
        "until_ms": options.period.until_ms,
        "tenant": str(options.tenant),
        "step_ms": STEPS_MS[answers.step],
        "totals": answers.totals | due_totals(answers),
        "lateness": _figures(overall.get("lateness")),
        "ack_latency": _figures(overall.get("ack_latency")),
        "tables": {
            name: {
                "file": f"{TABLES}/{name}.parquet",
                "rows": table.num_rows,
                "complete": name not in answers.cut,
                "first_rows": table.slice(0, options.top).to_pylist(),
            }
            for name, table in answers.tables.items()
        },
    }


def due_totals(answers: Answers) -> dict[str, int]:
    """What is to come, over all topics."""
    rows = answers.rows("due_by_topic")
    names = ("scheduled", "overdue", "next_hour", "next_day", "next_week", "later", "retries", "backlog")
    return {f"due_{name}" if name != "scheduled" else name: sum(row[name] for row in rows) for name in names}


def _figures(row: dict[str, Any] | None) -> dict[str, Any] | None:
    """None: nothing was measured."""
    return row and {name: value for name, value in row.items() if name not in _NAMES}
