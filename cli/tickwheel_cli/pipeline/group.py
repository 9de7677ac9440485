"""The table of the commands of `tickwheel pipeline`."""

from __future__ import annotations

import click

from tickwheel_cli.lazy import Entry, LazyGroup

_LOOKING, _CHANGING, _KEEPING = "Looking", "Scheduling", "Keeping"

COMMANDS = {
    "doctor": Entry("pipeline.doctor:doctor", "Check that Spark can run here.", _LOOKING),
    "sql": Entry("pipeline.sql:sql", "Ask data directories with Spark SQL.", _LOOKING),
    "report": Entry("pipeline.report:report", "How late, how often, what failed: a page.", _LOOKING),
    "schedule": Entry("pipeline.schedule:schedule", "Schedule the rows of files, all or none.", _CHANGING),
    "reschedule": Entry(
        "pipeline.reschedule:reschedule", "Give messages that SQL means another time.", _CHANGING
    ),
    "archive": Entry("pipeline.archive:archive", "Move what is done to Parquet files.", _KEEPING),
    "restore": Entry("pipeline.restore:restore", "Bring archived messages back.", _KEEPING),
}


@click.command(cls=LazyGroup, entries=COMMANDS)
def pipeline() -> None:
    """Bulk work on the messages with Spark, on this machine or a cluster.

    \b
    tickwheel pipeline doctor                              is everything there?
    tickwheel pipeline sql --data ./data "select state, count(*) from messages group by state"
    tickwheel pipeline report --data ./data --out ./report
    tickwheel pipeline schedule --from reminders.parquet --topic reminders
    tickwheel pipeline reschedule --where "topic = 'orders' and state = 'waiting'" --spread 2h
    tickwheel pipeline archive --older-than 30d --to archive/

    It needs PySpark (pip install 'tickwheel[spark]') and Java 17 or newer.
    """
