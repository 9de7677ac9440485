"""`tickwheel pipeline schedule`: the rows of files become scheduled messages, all of them or none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from tickwheel_cli.pipeline.options import (
    needs_spark,
    open_spark,
    secret_paths,
    spark_options,
)
from tickwheel_cli.shared.output import counted, print_json
from tickwheel_cli.shared.session import current_session, json_option, security_options, url_option

if TYPE_CHECKING:
    from tickwheel.spark.errors import RowsRefused
    from tickwheel.spark.scheduling import ScheduleResult, Staged

_STAGED: Final = {"flight": "by Arrow Flight", "in place": "in place", None: "nowhere"}


@click.command()
@click.option(
    "--from",
    "source",
    required=True,
    metavar="PATH",
    help="A file, a directory, or any path that Spark reads.",
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["parquet", "csv", "json"]),
    help="[default: what the name says]  json: one object a line.",
)
@click.option("--topic", help="Of rows that name none.")
@click.option(
    "--rename",
    "renames",
    multiple=True,
    metavar="NAME=FIELD",
    help="The column NAME is the message's FIELD: when=deliver_at; may be given several times.",
)
@click.option(
    "--tz",
    metavar="ZONE",
    help="Times without a zone are in this one: Europe/Berlin.  [default: they are refused]",
)
@click.option(
    "--max-rejects",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="So many rows may be bad or have keys that are taken.",
)
@click.option(
    "--rejects",
    metavar="PLACE",
    help="Write a Parquet table of rows that were not scheduled into this directory, or s3://, gs://, abfss://, hdfs://.",
)
@click.option("--job", metavar="NAME", help="A job that is given twice is done once.")
@click.option(
    "--staging",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="The broker's DATA/staging, where Spark sees it under another path.",
)
@click.option(
    "--staged",
    type=click.Choice(["flight", "in place"]),
    help="How files come to the broker.  [default: in place, where its directory is seen]",
)
@url_option
@spark_options
@security_options
@json_option
@needs_spark
def schedule(
    source: str,
    kind: str | None,
    topic: str | None,
    renames: tuple[str, ...],
    tz: str | None,
    max_rejects: int,
    rejects: str | None,
    job: str | None,
    staging: str | None,
    staged: Staged | None,
    master: str,
    conf: tuple[str, ...],
) -> None:
    """Schedule the rows of Parquet, CSV or JSON files: all of them or none, without sending each.

    \b
    tickwheel pipeline schedule --from reminders.parquet --topic reminders
    tickwheel pipeline schedule --from reminders.csv --topic reminders --max-rejects 100 --rejects ./rejects
    tickwheel pipeline schedule --from calls.csv --topic calls --rename when=deliver_at --tz Europe/Berlin

    \b
    tickwheel pipeline schedule --url tickwheel://broker:7411 --from reminders.parquet --topic reminders

    Columns: deliver_at and body, and if you like key, topic, priority, headers, order_key. Times have a zone, or
    --tz names it. Tasks write into the broker's data directory where they see it; elsewhere they put their files by
    Arrow Flight, if `tickwheel flight` runs beside the broker.
    """
    from tickwheel.spark import RowsRefused, scheduling, sessions

    show = (lambda text: click.echo(text, err=True)) if not current_session().json else None
    options = scheduling.options(
        url=current_session().url,
        topic=topic,
        max_rejects=max_rejects,
        rejects=rejects,
        job=job,
        staging=staging,
        progress=show,
        tz=tz,
        rename=scheduling.parse_renames(renames),
        staged=staged,
        **secret_paths(),
    )
    # Spark takes ten seconds to start, and minutes on a busy machine: all that can be said is said before.
    settings = sessions.parse_conf(conf)
    kind = scheduling.check_file(source, kind, options)
    scheduling.check_columns_of(source, kind, options, master=master, conf=settings)
    with scheduling.begun(options) as begun:
        result = begun.repeated
        if result is None:
            with open_spark(master, conf) as spark:
                try:
                    result = scheduling.schedule_file(spark, source, kind, options, begun)
                except RowsRefused as error:
                    _show_refusal(error)
                    raise
    if current_session().json:
        print_json(_as_json(result))
    else:
        _show(result)


def _show_refusal(error: RowsRefused) -> None:
    """What stopped the job, with rows; behind it comes the error itself."""
    if current_session().json:
        print_json(_as_json(error.result))
    else:
        _show_rejects(error.result, err=True)


def _show(result: ScheduleResult) -> None:
    if result.repeated:
        click.echo(
            f"repeated: job {result.job} had scheduled {counted(result.messages, 'message')} before, so nothing was "
            "scheduled now; other rows need another --job"
        )
        return
    taken_s = result.write_s + result.adopt_s
    rate = f"{result.messages / taken_s:,.0f}/s; " if taken_s else ""
    click.echo(
        f"scheduled {counted(result.messages, 'message')} in {taken_s:.1f} s ({rate}written in {result.write_s:.1f} s, "
        f"taken in by the broker in {result.adopt_s:.2f} s), job {result.job}, staged {_STAGED[result.staged]}"
    )
    if result.rejected:
        click.echo(
            f"{counted(result.rejected, 'row')} were not:" if result.rejected > 1 else "1 row was not:"
        )
        _show_rejects(result, err=False)


def _show_rejects(result: ScheduleResult, *, err: bool) -> None:
    for line in result.summary():
        click.echo(f"  {line}", err=err)
    if result.rejects:
        click.echo(f"rejects: {result.rejects}", err=err)


def _as_json(result: ScheduleResult) -> dict[str, Any]:
    import msgspec

    fields: dict[str, Any] = msgspec.to_builtins(result)
    return fields
