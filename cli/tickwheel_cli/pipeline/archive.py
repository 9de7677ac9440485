"""`tickwheel pipeline archive`: move what is done to Parquet files."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tickwheel.protocol.readable import format_bytes
from tickwheel_cli.pipeline.options import (
    needs_spark,
    open_spark,
    secret_paths,
    source_option,
    spark_options,
    storage_options,
)
from tickwheel_cli.shared.options import DURATION
from tickwheel_cli.shared.output import counted, print_result
from tickwheel_cli.shared.session import current_session, shared_options

if TYPE_CHECKING:
    from tickwheel.spark.archive import ArchiveReport
    from tickwheel.spark.archive.places import Read


@click.command()
@click.option(
    "--older-than", required=True, type=DURATION, help="What every group was done with so long ago: 30d, 12h."
)
@click.option(
    "--to",
    "root",
    required=True,
    metavar="PLACE",
    help="A directory that all workers see, made where there is none; s3://, gs://, abfss:// or hdfs://.",
)
@click.option("--topic", "topics", multiple=True, help="Only this topic; may be repeated.")
@click.option("--with-dead", is_flag=True, help="Also what a group has given up as a dead letter.")
@click.option("--purge", is_flag=True, help="Wait until the broker has given the disk space back.")
@click.option("--dry-run", is_flag=True, help="Only say what would be archived.")
@click.option(
    "--read",
    type=click.Choice(["flight", "in place"]),
    help="How messages are read.  [default: in place, where the broker's directory is seen]",
)
@source_option
@storage_options
@spark_options
@shared_options
@needs_spark
def archive(
    older_than: timedelta,
    root: str,
    topics: tuple[str, ...],
    with_dead: bool,
    purge: bool,
    dry_run: bool,
    read: Read | None,
    source: Path | None,
    fs_pairs: tuple[str, ...],
    master: str,
    conf: tuple[str, ...],
) -> None:
    """Move acked messages to Parquet files, partitioned by topic and date.

    \b
    tickwheel pipeline archive --older-than 30d --to archive/ --dry-run
    tickwheel pipeline archive --older-than 30d --to archive/
    tickwheel pipeline archive --older-than 30d --to s3://bucket/archive --fs region=eu-central-1

    \b
    tickwheel pipeline archive --url tickwheel://broker:7411 --older-than 30d --to s3://bucket/archive

    Files are read back and compared with the source before the broker is told to drop their messages. Run it
    again after a crash, or every night: nothing is lost, and nothing is archived twice. Where the broker's data
    directory is not seen, messages are read by Arrow Flight, if `tickwheel flight` runs beside the broker.
    """
    from tickwheel.spark.archive import archive as archive_messages
    from tickwheel.spark.storage import parse_options, storage_at

    fs = parse_options(fs_pairs)
    # What can be seen to be wrong is said before Spark is started, which takes seconds.
    storage_at(root, fs).reach()
    with current_session().address() as url, open_spark(master, conf) as spark:
        report = archive_messages(
            spark,
            root,
            older_than=older_than,
            url=url,
            source=source,
            topics=topics,
            states=("acked", "dead") if with_dead else ("acked",),
            purge=purge,
            dry_run=dry_run,
            fs=fs,
            read=read,
            **secret_paths(),
        )
    for warning in report.warnings:
        click.echo(f"warning: {warning}", err=True)
    print_result(report, *archive_lines(report))


def archive_lines(report: ArchiveReport) -> list[str]:
    """What happened, or would, in words."""
    lines = [
        f"{run}: an earlier run was brought to its end, {counted(dropped, 'message')} dropped"
        for run, dropped in report.resumed.items()
    ]
    if report.dry_run:
        lines.append(
            f"{counted(report.messages, 'message')} would be archived ({format_bytes(report.bytes)} of log)"
        )
    else:
        where = f" in {counted(report.files, 'file')} ({format_bytes(report.bytes)})" if report.files else ""
        lines.append(f"{counted(report.messages, 'message')} archived{where}")
    lines += [f"  {topic}: {count.messages:,}" for topic, count in sorted(report.topics.items())]
    if report.run is not None:
        gone = f", {report.gone:,} had been purged already" if report.gone else ""
        kept = f", {report.kept:,} were called for again and stay" if report.kept else ""
        lines.append(f"{counted(report.dropped, 'message')} dropped by the broker{gone}{kept}")
    if report.vanished:
        lines.append(f"{counted(report.vanished, 'message')} purged before they could be archived")
    if report.unreadable:
        lines.append(f"{counted(report.unreadable, 'message')} not readable: they stay with the broker")
    if report.freed_bytes is not None:
        lines.append(f"{format_bytes(max(0, report.freed_bytes))} of log freed")
    return lines
