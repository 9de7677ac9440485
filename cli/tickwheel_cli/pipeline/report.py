"""`tickwheel pipeline report`: how late messages were, and what went wrong, as tables, a page and a summary."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TextIO

import click

from tickwheel.protocol.readable import format_duration
from tickwheel_cli.pipeline.options import (
    directories_option,
    needs_spark,
    open_spark,
    places_of,
    secret_paths,
    spark_options,
    storage_options,
)
from tickwheel_cli.shared.options import DURATION, TIME
from tickwheel_cli.shared.output import counted, print_result
from tickwheel_cli.shared.session import current_session, json_option, security_options, url_option


@click.command()
@directories_option(required=False)
@url_option
@click.option(
    "--out",
    required=True,
    metavar="PLACE",
    help="Where it goes, a directory or s3://, gs://, abfss://, hdfs://: new, empty, or an earlier report, which is "
    "replaced.",
)
@click.option("--since", type=TIME, help="Leave out what happened before.")
@click.option("--until", type=TIME, help="Leave out this and later times.")
@click.option(
    "--by",
    type=click.Choice(["auto", "second", "minute", "hour", "day"]),
    default="auto",
    show_default=True,
    help="The step of time; auto: the finest that can be read.",
)
@click.option(
    "--tenant",
    default="key-prefix:/",
    show_default=True,
    metavar="HOW",
    help="How a tenant is found: header:NAME, key-prefix:SEPARATOR or order-key.",
)
@click.option(
    "--top", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Rows of the longest lists."
)
@click.option(
    "--target-p99",
    type=DURATION,
    help="So late may 99 of 100 first deliveries be; the report says whether they were.",
)
@click.option(
    "--compare",
    metavar="REPORT",
    help="Say what is different from an earlier report: its place, which may be --out, or its summary.json.",
)
@click.option(
    "--progress/--no-progress",
    default=None,
    help="Tell on standard error what is being done.  [default: on a terminal, without --json]",
)
@click.option("--uncommitted", is_flag=True, help="Read also what may not be on the disk yet.")
@storage_options
@spark_options
@security_options
@json_option
@needs_spark
def report(
    directories: tuple[Path, ...],
    out: str,
    since: datetime | None,
    until: datetime | None,
    by: str,
    tenant: str,
    top: int,
    target_p99: timedelta | None,
    compare: str | None,
    progress: bool | None,
    uncommitted: bool,
    fs_pairs: tuple[str, ...],
    master: str,
    conf: tuple[str, ...],
) -> None:
    """Report on deliveries: lateness, acks, attempts, nacks, dead letters, what is slow, what is to come.

    \b
    tickwheel pipeline report --data ./data --out ./report
    tickwheel pipeline report --data ./data --out ./report --since 2031-05-01T00:00Z --by hour
    tickwheel pipeline report --data ./data --out ./report --target-p99 100ms --compare ./report
    tickwheel pipeline report --data ./shard-1 --data ./shard-2 --out ./report --tenant header:customer

    \b
    tickwheel pipeline report --url tickwheel://broker:7411 --out s3://bucket/report

    It writes index.html, a page that needs nothing else, summary.json and tables/*.parquet. With --data the broker is
    not asked; with --url it needs `tickwheel flight` beside it, and the report has what the token may query.
    """
    from tickwheel.spark import make_report
    from tickwheel.spark.report.options import report_options
    from tickwheel.spark.report.output import PAGE, check_output, output_at
    from tickwheel.spark.storage import parse_options

    fs = parse_options(fs_pairs)
    chosen: dict[str, Any] = {
        "since": since, "until": until, "by": by, "tenant": tenant, "top": top, "committed": not uncommitted,
        "target_p99": target_p99, "compare": compare,
        **secret_paths(),
    }  # fmt: skip
    # What can be seen to be wrong is said before Spark is started, which takes seconds.
    places = places_of(directories)
    report_options(places, **chosen, fs=fs)
    place = output_at(out, compare, fs)
    check_output(place)
    shows = is_terminal() and not current_session().json if progress is None else progress
    tell = _told_to(sys.stderr) if shows else None
    # Its own progress would write over ours.
    if tell is not None:
        tell("starting Spark")
    with open_spark(master, conf, progress=False) as spark:
        summary = make_report(spark, places, out, progress=tell, fs=fs, **chosen)
    print_result(summary, *_told(summary), place.shown_name(PAGE))


def is_terminal() -> bool:
    """Whether somebody sees what goes to standard error."""
    return sys.stderr.isatty()


def _told_to(stream: TextIO) -> Callable[[str], None]:
    """Each step as a line, with the time since the beginning."""
    begun = time.monotonic()

    def tell(step: str) -> None:
        click.echo(f"{time.monotonic() - begun:6.1f} s  {step}", file=stream)

    return tell


def _told(summary: dict[str, Any]) -> list[str]:
    """The figures that matter most."""
    lines = [_verdict(summary["verdict"])] if summary["verdict"]["target_p99_ms"] is not None else []
    for name, words in (("lateness", "lateness"), ("ack_latency", "to ack")):
        figures = summary[name]
        if figures is None:
            lines.append(f"{words:<10}nothing was measured")
            continue
        times = ", ".join(
            f"{label} {format_duration(figures[column])}"
            for label, column in (("p50", "p50_ms"), ("p99", "p99_ms"), ("max", "max_ms"))
        )
        lines.append(f"{words:<10}{times} of {figures['count']:,}")
    totals = summary["totals"]
    lines.append(
        f"{'to come':<10}{counted(totals['scheduled'], 'message')}, {totals['due_next_day']:,} within a day"
    )
    return lines


def _verdict(verdict: dict[str, Any]) -> str:
    target = format_duration(verdict["target_p99_ms"])
    if verdict["met"] is None:
        return f"{'target':<10}neither met nor missed: nothing was delivered for the first time"
    word, p99 = ("met" if verdict["met"] else "missed"), format_duration(verdict["p99_ms"])
    return f"{'target':<10}{word}: p99 of lateness is {p99}, {target} were allowed"
