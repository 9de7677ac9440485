"""`tickwheel pipeline report`: how late messages were, and what went wrong, as tables, a page and a summary."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import click

from tickwheel_cli.pipeline.options import needs_spark, open_spark, spark_options
from tickwheel_cli.shared.options import parsed_by
from tickwheel_cli.shared.output import counted, print_json
from tickwheel_cli.shared.session import current_session, json_option
from tickwheel_cli.shared.times import format_duration, parse_moment


@click.command()
@click.option(
    "--data",
    "directories",
    multiple=True,
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A broker's data directory, also while it runs; several: one for each shard.",
)
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    help="The directory for the report: new, empty, or with an earlier report, which is replaced.",
)
@click.option(
    "--since", metavar="TIME", callback=parsed_by(parse_moment), help="Leave out what happened before."
)
@click.option(
    "--until", metavar="TIME", callback=parsed_by(parse_moment), help="Leave out this and later times."
)
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
@click.option("--uncommitted", is_flag=True, help="Read also what may not be on the disk yet.")
@spark_options
@json_option
@needs_spark
def report(
    directories: tuple[Path, ...],
    out: Path,
    since: datetime | None,
    until: datetime | None,
    by: str,
    tenant: str,
    top: int,
    uncommitted: bool,
    master: str,
    conf: tuple[str, ...],
) -> None:
    """Report on deliveries: lateness, acks, attempts, dead letters, what is slow and what is to come.

    \b
    tickwheel pipeline report --data ./data --out ./report
    tickwheel pipeline report --data ./data --out ./report --since 2031-05-01T00:00Z --by hour
    tickwheel pipeline report --data ./shard-1 --data ./shard-2 --out ./report --tenant header:customer

    It writes index.html, a page that needs nothing else, summary.json and tables/*.parquet. The broker is not asked.
    """
    from tickwheel.spark import make_report
    from tickwheel.spark.report.options import report_options
    from tickwheel.spark.report.output import check_output

    chosen: dict[str, Any] = {
        "since": since, "until": until, "by": by, "tenant": tenant, "top": top, "committed": not uncommitted,
    }  # fmt: skip
    # What can be seen to be wrong is said before Spark is started, which takes seconds.
    report_options(directories, **chosen)
    check_output(out)
    with open_spark(master, conf) as spark:
        summary = make_report(spark, directories, out, **chosen)
    if current_session().json:
        print_json(summary)
        return
    for line in _told(summary):
        click.echo(line)
    click.echo(f"{out / 'index.html'}")


def _told(summary: dict[str, Any]) -> list[str]:
    """The figures that matter most."""
    lines = []
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
