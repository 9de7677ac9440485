"""Makes a report: checks where it goes, builds it, writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tickwheel.spark.errors import as_ours, spark_errors
from tickwheel.spark.report.errors import PlottingMissing
from tickwheel.spark.report.options import ReportOptions
from tickwheel.spark.report.output import PAGE, SUMMARY, TABLES, check_output, write_report
from tickwheel.spark.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tickwheel.spark.report.build import Answers, Tell


def make_report(
    spark: SparkSession, options: ReportOptions, out: Storage, progress: Tell | None = None
) -> dict[str, Any]:
    """Writes a report to ``out`` and returns its summary; ``progress`` is told of each step. Raises ``OutputRefused``,
    ``PlottingMissing``, ``SourceError``, ``ReportError``, ``StorageError``."""
    check_output(out)
    _require_extra()
    from tickwheel.spark.report.build import build
    from tickwheel.spark.report.summary import summarise

    tell = progress or (lambda step: None)
    try:
        answers = build(spark, options, tell)
    except spark_errors() as error:
        raise as_ours(error) from None
    tell("writing the report")
    summary = summarise(answers)
    write_report(out, lambda folder: _fill(folder, answers, summary))
    return summary


def _fill(folder: Path, answers: Answers, summary: dict[str, Any]) -> None:
    import pyarrow.parquet as pq

    from tickwheel.spark.report.page import render

    (folder / TABLES).mkdir()
    for name, table in answers.tables.items():
        pq.write_table(table, folder / TABLES / f"{name}.parquet")
    (folder / PAGE).write_text(render(answers), encoding="utf-8")
    text = json.dumps(summary, indent=1, ensure_ascii=False, allow_nan=False)
    (folder / SUMMARY).write_text(text + "\n", encoding="utf-8")


def _require_extra() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise PlottingMissing("The report's charts need matplotlib, which cannot be imported.") from None
    try:
        import jinja2  # noqa: F401
    except ImportError:
        raise PlottingMissing("The report's page needs Jinja2, which cannot be imported.") from None
