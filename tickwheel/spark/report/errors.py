"""What can be wrong with what is asked of a report."""

from __future__ import annotations

from tickwheel.spark.errors import SparkError


class ReportError(SparkError):
    """A report cannot be made."""

    code = "bad_report"
    advice = "docs/how-to/spark-report.md explains the options."


class OutputRefused(ReportError):
    """The directory for the report holds something else."""

    code = "output_refused"
    advice = "Name a new or empty directory, or one that holds an earlier report and nothing besides."


class EarlierRefused(ReportError):
    """What the report should be compared with is no report, or one that means something else by its fields."""

    code = "earlier_refused"
    advice = "Name the directory of an earlier report, or its summary.json."


class PlottingMissing(ReportError):
    """The library that draws the charts, or makes the page, is not installed."""

    code = "extra_missing"
    advice = "Install it: pip install 'tickwheel[spark]'."
