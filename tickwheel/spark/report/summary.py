"""A report as JSON. docs/how-to/spark-report.md lists the fields; times are epoch milliseconds, names have units."""

from __future__ import annotations

from typing import Any, Final

from tickwheel.spark.report.build import Answers
from tickwheel.spark.report.comparison import Comparison, compare
from tickwheel.spark.report.options import STEPS_MS
from tickwheel.spark.report.output import FORMAT, TABLES, VERSION
from tickwheel.spark.report.verdict import judge

#: Columns of ``latency`` that are not figures.
_NAMES: Final = ("measure",)


def summarise(answers: Answers) -> dict[str, Any]:
    """Everything that the page shows, as plain values."""
    options = answers.options
    overall = {row["measure"]: row for row in answers.rows("latency")}
    compared = comparison(answers)
    return {
        "format": FORMAT,
        "version": VERSION,
        "made_ms": answers.now_ms,
        "directories": [str(one) for one in options.directories],
        "since_ms": options.period.since_ms,
        "until_ms": options.period.until_ms,
        "tenant": str(options.tenant),
        "step_ms": STEPS_MS[answers.step],
        "verdict": judge(answers).plain(options.top),
        "totals": answers.totals | due_totals(answers),
        "lateness": _figures(overall.get("lateness")),
        "ack_latency": _figures(overall.get("ack_latency")),
        "nacks": nacks(answers),
        "dead_letters": dead_letters(answers),
        "tables": {
            name: {
                "file": f"{TABLES}/{name}.parquet",
                "rows": table.num_rows,
                "complete": name not in answers.cut,
                "first_rows": table.slice(0, options.top).to_pylist(),
            }
            for name, table in answers.tables.items()
        },
        "compared_with": None if compared is None else compared.plain(options.top),
    }


def comparison(answers: Answers) -> Comparison | None:
    """With the earlier report, if there is one."""
    earlier = answers.options.earlier
    if earlier is None:
        return None
    overall = {row["measure"]: row for row in answers.rows("latency")}
    single = {"nacks": nacks(answers), "dead_letters": dead_letters(answers)}
    figures: dict[str, int] = {f"totals.{name}": value for name, value in answers.totals.items()}
    figures |= {f"totals.{name}": value for name, value in due_totals(answers).items()} | single
    for measure, row in overall.items():
        figures |= {f"{measure}.{name}": value for name, value in row.items() if name not in _NAMES}
    return compare(answers, figures, earlier)


def nacks(answers: Answers) -> int:
    """Of the period."""
    return sum(row["nacks"] for row in answers.rows("nacks"))


def dead_letters(answers: Answers) -> int:
    """Of the period."""
    return sum(row["letters"] for row in answers.rows("dead_letters"))


def due_totals(answers: Answers) -> dict[str, int]:
    """What is to come, over all topics."""
    rows = answers.rows("due_by_topic")
    names = ("scheduled", "overdue", "next_hour", "next_day", "next_week", "later", "retries", "backlog")
    return {f"due_{name}" if name != "scheduled" else name: sum(row[name] for row in rows) for name in names}


def _figures(row: dict[str, Any] | None) -> dict[str, Any] | None:
    """None: nothing was measured."""
    return row and {name: value for name, value in row.items() if name not in _NAMES}
