"""`tickwheel pipeline doctor`: can Spark run here?"""

from __future__ import annotations

import click

from tickwheel_cli.pipeline.options import open_spark, spark_options, tables_of
from tickwheel_cli.shared.failures import CommandFailed
from tickwheel_cli.shared.output import print_result
from tickwheel_cli.shared.session import current_session, json_option, security_options, url_option


@click.command()
@url_option
@spark_options
@security_options
@json_option
def doctor(master: str, conf: tuple[str, ...]) -> None:
    """Check that Spark can run here: Java, PySpark, and a job of one row.

    \b
    tickwheel pipeline doctor --master spark://spark:7077 --url tickwheel://broker:7411

    With --url, also what the driver and each executor reach by Arrow Flight: versions, what the token may query, how
    fast a stream is, and how far their clocks are from the broker's.
    """
    from tickwheel.spark.doctor import examine

    source = tables_of(()) if current_session().url else None
    checks = examine(master, lambda: open_spark(master, conf), source)
    print_result(
        [{"name": one.name, "ok": one.ok, "detail": one.detail} for one in checks],
        *(f"{'ok' if one.ok else 'missing':<8}{one.name:<10}{one.detail}" for one in checks),
    )
    if not all(one.ok for one in checks):
        raise CommandFailed(1)
