"""The table of the commands of `tickwheel pipeline`."""

from __future__ import annotations

import click

from cli.lazy import CommandEntry, LazyGroup

_LOOKING = "Looking"

COMMANDS = {
    "doctor": CommandEntry("cli.pipeline.doctor", "doctor", "Check that Spark can run here.", _LOOKING),
    "report": CommandEntry(
        "cli.pipeline.report", "report", "How late, how often, what failed: a page.", _LOOKING
    ),
    "sql": CommandEntry("cli.pipeline.sql", "sql", "Ask data directories with Spark SQL.", _LOOKING),
}


@click.command(cls=LazyGroup, entries=COMMANDS)
def pipeline() -> None:
    """Bulk work on the messages with Spark, on this machine or a cluster.

    \b
    tickwheel pipeline doctor                              is everything there?
    tickwheel pipeline sql --data ./data "select state, count(*) from messages group by state"
    tickwheel pipeline report --data ./data --out ./report

    It needs PySpark (pip install 'tickwheel[spark]') and Java 17 or newer.
    """
