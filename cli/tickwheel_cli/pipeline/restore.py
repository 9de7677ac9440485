"""`tickwheel pipeline restore`: bring archived messages back."""

from __future__ import annotations

from datetime import datetime

import click

from tickwheel_cli.pipeline.options import (
    needs_spark,
    open_spark,
    secret_paths,
    spark_options,
    storage_options,
)
from tickwheel_cli.shared.options import TIME
from tickwheel_cli.shared.output import counted, print_result
from tickwheel_cli.shared.session import current_session, shared_options


@click.command()
@click.option(
    "--from",
    "root",
    required=True,
    metavar="PLACE",
    help="The archive: a directory that all workers see, s3://, gs://, abfss:// or hdfs://.",
)
@click.option("--since", type=TIME, help="Messages that were due from here on: 2031-05-01T00:00Z.")
@click.option("--until", type=TIME, help="And before this time.")
@click.option("--topic", "topics", multiple=True, help="Only of this topic; may be repeated.")
@click.option("--into", metavar="TOPIC", help="Where they go.  [default: <their topic>.restored]")
@click.option("--dry-run", is_flag=True, help="Check the files and count; send nothing.")
@storage_options
@spark_options
@shared_options
@needs_spark
def restore(
    root: str,
    since: datetime | None,
    until: datetime | None,
    topics: tuple[str, ...],
    into: str | None,
    dry_run: bool,
    fs_pairs: tuple[str, ...],
    master: str,
    conf: tuple[str, ...],
) -> None:
    """Bring the archived messages of a time range back, to be delivered at once.

    \b
    tickwheel pipeline restore --from archive/ --since 2031-05-01T00:00Z --until 2031-05-02T00:00Z --dry-run
    tickwheel pipeline restore --from archive/ --since 2031-05-01T00:00Z --until 2031-05-02T00:00Z

    They go to a topic of their own, `orders.restored`, so that nobody gets old messages by accident;
    `--into orders` delivers them again where they were. Restoring twice sends nothing twice. The files are
    checked before anything is sent, and stay as they are.
    """
    if since is None and until is None:
        raise click.UsageError("name a time range: --since, --until or both")
    from tickwheel.spark.archive import restore as restore_messages
    from tickwheel.spark.storage import parse_options, storage_at

    fs = parse_options(fs_pairs)
    storage_at(root, fs).reach()
    with current_session().address(may_create=True) as url, open_spark(master, conf) as spark:
        report = restore_messages(
            spark,
            root,
            since=since,
            until=until,
            topics=topics,
            into=into,
            url=url,
            dry_run=dry_run,
            **secret_paths(),
            fs=fs,
        )
    would = "would be " if dry_run else ""
    lines = [f"{counted(report.messages, 'message')} of {counted(report.files, 'file')} {would}restored"]
    lines += [f"  to {topic}: {count:,}" for topic, count in report.topics.items()]
    if not dry_run and report.duplicates:
        lines.append(f"{report.stored:,} are new there, {report.duplicates:,} had been restored before")
    print_result(report, *lines)
