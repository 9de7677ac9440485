"""`tickwheel pipeline reschedule`: give messages that a condition in SQL means another time."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import click

from tickwheel_cli.pipeline.options import (
    needs_spark,
    open_spark,
    secret_paths,
    source_option,
    spark_options,
)
from tickwheel_cli.shared.options import DURATION, TIME
from tickwheel_cli.shared.output import counted, print_json
from tickwheel_cli.shared.session import current_session, shared_options
from tickwheel_cli.shared.times import format_moment


@click.command()
@click.option("--where", required=True, metavar="SQL", help="A condition over the columns of messages.")
@click.option(
    "--at", "moment", type=TIME, help="The new time, with its UTC offset: 2031-05-01T09:00+02:00, or …Z."
)
@click.option("--spread", type=DURATION, help="Evenly over so long, from --at or now on: 2h.")
@click.option("--reset-attempts", is_flag=True, help="Count the attempts of those that wait from 0 again.")
@click.option("--dry-run", is_flag=True, help="Only count the messages that are meant.")
@source_option
@spark_options
@shared_options
@needs_spark
def reschedule(
    where: str,
    moment: datetime | None,
    spread: timedelta | None,
    reset_attempts: bool,
    dry_run: bool,
    source: Path | None,
    master: str,
    conf: tuple[str, ...],
) -> None:
    """Give all messages that a condition in SQL means another time.

    \b
    tickwheel pipeline reschedule --where "topic = 'orders' and epoch > 5" --spread 2h --dry-run
    tickwheel pipeline reschedule --where "topic = 'orders' and epoch > 5" --spread 2h

    The condition is that of a WHERE in Spark SQL: `tickwheel pipeline sql` shows what it means. What waits to
    be delivered again gets another time as well as what was never delivered; what a subscriber holds does not.
    The counts are exact, and add up to the messages that were selected.
    """
    if moment is None and spread is None:
        raise click.UsageError("a new time is needed: --at 2031-05-01T09:00+02:00, or --spread 2h, or both")
    from tickwheel.spark.repair import reschedule as reschedule_messages

    with current_session().address() as url, open_spark(master, conf) as spark:
        report = reschedule_messages(
            spark,
            where,
            at=moment,
            spread=spread,
            url=url,
            source=source,
            reset_attempts=reset_attempts,
            dry_run=dry_run,
            **secret_paths(),
        )
    if current_session().json:
        print_json(report)
        return
    first, last = format_moment(report.first_ms), format_moment(report.last_ms)
    when = first if first == last else f"{first} to {last}"
    if dry_run:
        click.echo(f"{counted(report.selected, 'message')} would be rescheduled, to {when}")
        return
    click.echo(f"{counted(report.selected, 'message')} selected, {report.done:,} rescheduled to {when}")
    others = {
        "a subscriber has them already": report.already_delivered,
        "acked already": report.already_acked,
        "cancelled or expired": report.rejected,
        "not found any more": report.not_found,
    }
    for what, count in others.items():
        if count:
            click.echo(f"  {count:,} {what}")
